"""Execution of plans: by the compiled interpreter on the cores of one memory, by recorded graphs elsewhere.

`executor` returns the executor for given devices: `GraphExecutor` or `NativeExecutor`.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from gst.execution.groups import LaneGroups, fused, load, lower, machine
from gst.execution.lane_graphs import LaneGraph, Residents
from gst.execution.lanes import LaneExecutor
from gst.execution.measure import timed
from gst.lowering.calls import Costs, copied, laid_out, num_weights, profiled_costs, shortest_us
from gst.lowering.lower import ProvenLowering
from gst.lowering.plan import ExecutionError, Plan, Timeline, positions_of_nodes, ranks, says_no_memory
from gst.machine.devices import MOST_CORES, Device, least_memory_limit, select, supports
from gst.programs import Program, Reference
from gst.util.process import keep_freed_memory
from gst.util.recording import Graph, is_here, new_graph
from gst.util.untrusted import plain

MAX_SCHEDULES = 256
MAX_PLANS = 64  # that stay lowered, and recorded as far as memory allows
HOST = Device("host", "cpu", (), 1, "host", "the thread that launches graphs")

Result = TypeVar("Result")


def _check_open(process: int | None) -> None:
    """Raise ValueError unless an executor runs, with threads of this process: `process` is theirs, None when closed."""
    if process is None:
        raise ValueError("the executor is closed; use it inside `with executor(program, devices) as run:`")
    if process != os.getpid():
        raise ValueError("the threads of the executor stayed in the parent of this forked process; open another one")


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A plan, ready to run.

    Args:
        schedule: the interpreter's form of it.
        home: position of the device of each node of the program.
        outputs: of the program that runs.
        node_of: node of that program that computes each node; another one where groups are compiled.
    """

    schedule: Any
    home: Int64[np.ndarray, " nodes"]
    outputs: tuple[Any, ...]
    node_of: Int64[np.ndarray, " nodes"]


class NativeExecutor:
    """Runs plans of one program on CPU devices of one memory, which may share cores. Use it as a context manager.

    A core runs the ready operation of the greatest priority among those that use it, and an operation on several cores
    starts when it is the choice of all of them. There is one persistent thread for the first core of each device.

    Args:
        program: the program that plans place.
        devices: those that plans may name.

    Attributes:
        memory_limit: bytes that intermediate values may take, the least limit of the devices.

    Raises:
        ValueError: a device is no CPU device or has a memory of its own, or there is no C++ compiler.
    """

    def __init__(self, program: Program, devices: Sequence[Device]) -> None:
        self.program = program
        self.devices = tuple(select([device.name for device in devices], devices))
        if not supports(self.devices):
            raise ValueError(f"the compiled interpreter runs CPU devices of one memory, at most {MOST_CORES:,} cores")
        self.memory_limit = least_memory_limit(self.devices)
        load()
        keep_freed_memory()  # else each run meets pages that the last one gave back, above all where plans alternate
        self._lowered = lower(program, len(self.devices))
        self._machine: Any = None
        self._schedules: OrderedDict[str, Scheduled] = OrderedDict()
        self._last: Scheduled | None = None

    def __enter__(self) -> Self:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # helpers of the calling thread would be too many, see `gst.util.process`
        self._machine, self._process = machine(self.devices), os.getpid()
        return self

    def __exit__(self, *error: object) -> None:
        closing, self._machine = self._machine, None
        closing.close()
        torch.set_num_threads(self._threads)

    def compile(self, plan: Plan) -> Scheduled:
        """Schedule a plan once; the most recent plans are kept. Groups that the plan fuses are compiled and run so if
        that is faster (`gst.execution.groups.fused`).

        Raises:
            ValueError: the plan does not fit the program or the devices.
        """
        key = plan.key
        if key not in self._schedules:
            home, node_of = positions_of_nodes(plan, self.program, self.devices), np.arange(self.program.num_nodes)
            program, lowered, homes = self.program, self._lowered, home
            if plan.fusion is not None:
                made = fused(program, plan, self.devices)
                if made.num_groups:
                    program, plan, node_of = made.program, made.plan, made.node_of
                    lowered = lower(program, len(self.devices))
                    homes = positions_of_nodes(plan, program, self.devices)
            schedule = torch.classes.gst.Schedule(lowered, homes.tolist(), ranks(plan).tolist())
            self._schedules[key] = Scheduled(schedule, home, program.outputs, node_of)
            if len(self._schedules) > MAX_SCHEDULES:
                self._schedules.popitem(last=False)
        self._schedules.move_to_end(key)
        return self._schedules[key]

    def run(self, plan: Plan, inputs: Sequence[Tensor] | None = None) -> list[Any]:
        """Run the program once under a plan, and wait for all of it; `last_timeline` describes the run.

        Args:
            plan: for this program, on this executor's devices.
            inputs: flat inputs, which are not changed; the examples if None.

        Returns:
            Flat outputs (`program.unflatten` gives them structure).

        Raises:
            ValueError: the plan or the inputs do not fit the program.
            ExecutionError: an operation failed, or the memory limit was passed.
        """
        _check_open(self._process if self._machine is not None else None)
        self._last = scheduled = self.compile(plan)
        values = [each.detach() if each.requires_grad else each for each in self.program.check_inputs(inputs)]
        if inputs is not None:
            values = [laid_out(value, like) for value, like in zip(values, self.program.inputs, strict=True)]
        self._machine.run(scheduled.schedule, values, self.memory_limit or 0)
        if (failed := self._machine.failed_node()) >= 0:
            node = int(np.flatnonzero(scheduled.node_of == failed)[0])
            raise ExecutionError(self._machine.reason(), self.devices[scheduled.home[node]].name, node)
        made = iter(self._machine.results([each.node for each in scheduled.outputs if isinstance(each, Reference)]))
        return [next(made) if isinstance(each, Reference) else each for each in scheduled.outputs]

    @property
    def last_timeline(self) -> Timeline:
        """Timeline of the last run. Operations that ran as one have the times and bytes of that one."""
        assert self._last is not None, "nothing has run"
        ran, node_of = self._machine, self._last.node_of
        of_runs = ran.begins(), ran.ends(), ran.live(), ran.within()
        begin, end, live, own = (np.array(each)[node_of] for each in of_runs)
        return Timeline(self._last.home, begin, end, live, own, ran.peak())


def runs_in_turns(executor: NativeExecutor, plans: Sequence[Plan], repetitions: int = 3) -> list[list[Timeline]]:
    """Run plans alternately, equal ones once; return the runs of each plan, in order, without their memory."""
    distinct = {plan.key: plan for plan in plans}
    runs: dict[str, list[Timeline]] = {key: [] for key in distinct}
    for _ in range(repetitions):
        for key, plan in distinct.items():
            executor.run(plan)
            latest = executor.last_timeline
            runs[key].append(Timeline(latest.device, latest.begin_us, latest.end_us))
    return [runs[plan.key] for plan in plans]


def measure_costs(executor: NativeExecutor, repetitions: int = 5) -> Costs:
    """Run the program of an entered executor on each device alone, once more than is counted; devices with as many
    threads share their times. The shortest of `repetitions` times of each operation counts."""
    by_threads: dict[int, list[Timeline]] = {}
    for device in executor.devices:
        if device.threads not in by_threads:
            plan, runs = Plan((device.name,), np.zeros(executor.program.num_nodes, np.int64)), []
            for _ in range(repetitions + 1):
                executor.run(plan)
                runs.append(executor.last_timeline)
            by_threads[device.threads] = runs[1:]
    of_devices = [by_threads[device.threads] for device in executor.devices]
    own_bytes = np.stack([np.min([each.own_bytes for each in mine], axis=0) for mine in of_devices])
    costs = profiled_costs(executor.program, executor.devices, np.stack([shortest_us(mine) for mine in of_devices]))
    return replace(costs, own_bytes=own_bytes)


def executor(program: Program, devices: Sequence[Device]) -> AnyExecutor:
    """Return the executor of plans of a program: `NativeExecutor` for CPU devices of one memory, otherwise
    `GraphExecutor`.

    Raises:
        ValueError: an accelerator is not here, or there is no C++ compiler for CPU devices.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from gst.lowering.plan import Plan
        >>> from gst.machine.devices import discover
        >>> from gst.programs import capture_module
        >>> program, core = capture_module(torch.nn.ReLU(), (torch.tensor([-1.0, 2.0]),)), discover()[0]
        >>> with executor(program, [core]) as run:
        ...     run.run(Plan((core.name,), np.zeros(program.num_nodes, np.int64)))
        [tensor([0., 2.])]
    """
    if supports(devices):
        return NativeExecutor(program, devices)
    if missing := [each.name for each in devices if each.is_accelerator and not is_here(each.torch_device)]:
        raise ValueError(f"this process has no accelerator {missing[0]!r}; run plans on its own devices (gst devices)")
    return GraphExecutor(program, devices)


class GraphExecutor:
    """Runs plans of one program. Use it as a context manager.

    A plan is lowered, its fusion groups are compiled where that is faster (`LaneGroups`), and its lanes are recorded as
    graphs of their accelerators (`LaneGraph`). Elsewhere the lanes run eagerly. One thread launches everything and
    computes the CPU's part. All recorded plans read inputs, weights and constants in the same memory (`Residents`).

    Args:
        program: the program that plans place.
        devices: those that plans may name.
        recorded, graph: see `LaneGraph`.
    """

    def __init__(
        self, program: Program, devices: Sequence[Device], recorded: Collection[int] | None = None,
        graph: Callable[[torch.device, Any], Graph] = new_graph,
    ) -> None:  # fmt: skip
        self.program = program
        self.devices = tuple(select([device.name for device in devices], devices))  # refuses a name given twice
        self._recorded, self._new_graph = recorded, graph
        homes = (device.torch_device for device in self.devices if device.is_accelerator)
        self._home = next(filter(is_here, homes), None)
        self._worker: ThreadPoolExecutor | None = None
        self._lower = ProvenLowering(program, self.devices)
        self._groups = LaneGroups(program, self.devices)
        self._residents = Residents(program)
        self._lanes: OrderedDict[str, LaneExecutor] = OrderedDict()
        self._graphs: OrderedDict[str, LaneGraph] = OrderedDict()
        self._given: list[Tensor] | None = None  # inputs of runs that are timed

    def __enter__(self) -> Self:
        self._worker = worker_on(next((device for device in self.devices if not device.is_accelerator), HOST))
        self._process = os.getpid()
        return self

    def __exit__(self, *error: object) -> None:
        if self._worker is not None and self._process == os.getpid():
            with suppress(RuntimeError):  # Python ends, and with it the thread
                self._on_worker(self._graphs.clear)
            self._worker.shutdown()
        self._worker = None

    def submit(self, device: str, function: Callable[[], Result]) -> Result:
        """Call `function` on the thread that launches, and wait for it; raise ValueError without such a device."""
        select([device], self.devices)
        return self._on_worker(function)

    def compile(self, plan: Plan) -> LaneExecutor:
        """Lower a plan, prove that its lanes do not race, and compile its groups. The most recent plans are kept.

        Raises:
            ValueError: the plan does not fit the program or the devices.
        """
        return self._on_worker(partial(self._compile, plan))

    def record(self, plan: Plan) -> LaneGraph:
        """Record a plan, which runs it a few times. Where memory is short, the least recently used recordings are
        dropped. Raises as `compile`."""
        return self._on_worker(partial(self._record, plan))

    def run(self, plan: Plan, inputs: Sequence[Tensor] | None = None, num_steady: int = 0) -> list[Any]:
        """Run the program once under a plan, and wait for all of it.

        Args:
            plan: for this program, on this executor's devices.
            inputs: flat inputs, which are not changed; the examples if None.
            num_steady: of the inputs, see `LaneGraph.run`.

        Returns:
            Flat outputs, which no later run overwrites: in the memory of the first accelerator, on the caller's current
            stream; without an accelerator each where it was made.

        Raises:
            ValueError: the plan or the inputs do not fit the program.
            ExecutionError: an operation failed, or memory is short.
        """
        run = partial(self._run, plan, inputs, num_steady, self._callers_stream())
        return self._on_worker(partial(self._with_memory, plan, run))

    def time_ms(self, plan: Plan) -> float:
        """Return the milliseconds of a run as callers make it: inputs that are no weights are copied from the first
        accelerator, and outputs to it. A plan that runs eagerly has its inputs in place. Raises as `run`."""
        graph, steady = self.record(plan), num_weights(self.program)

        def time() -> float:
            inputs = None if graph.reason else self._calls_inputs(steady)
            return timed(partial(self._run, plan, inputs, steady, self._callers_stream()))

        return self._on_worker(partial(self._with_memory, plan, time))

    def _callers_stream(self) -> torch.Stream | None:
        return None if self._home is None else torch.accelerator.current_stream(self._home)

    def _run(
        self, plan: Plan, inputs: Sequence[Tensor] | None, num_steady: int, stream: torch.Stream | None
    ) -> list[Any]:
        graph = self._record(plan)
        outputs = graph.run(inputs, num_steady)
        if graph.reason and stream is None:
            return outputs
        with stream or nullcontext():  # the memory is the caller's, who may free it while work of that stream reads it
            outputs = [self._handed_over(each) if isinstance(each, Tensor) else each for each in outputs]
        graph.executor.synchronise()
        return outputs

    def _handed_over(self, value: Tensor) -> Tensor:
        return value.clone() if self._home is None else value.to(self._home, copy=True)

    def _calls_inputs(self, steady: int) -> list[Tensor]:
        """Return inputs of a caller who has all but the weights on the first accelerator."""
        if self._given is None:
            inputs, home = self.program.inputs, self._home
            others = inputs[steady:] if home is None else [copied(value, home) for value in inputs[steady:]]
            self._given = [*inputs[:steady], *others]
        return self._given

    def group_shares(self, plan: Plan) -> dict[int, float]:
        """See `LaneGroups.shares`."""
        return self._on_worker(partial(self._groups.shares, plan))

    def _compile(self, plan: Plan) -> LaneExecutor:
        key = plan.key
        if key not in self._lanes:
            streams = self._lower(plan)
            groups = {} if plan.fusion is None else self._with_memory(plan, partial(self._groups.calls, plan))
            self._lanes[key] = LaneExecutor(self.program, streams, self.devices, groups=groups)
            if len(self._lanes) > MAX_PLANS:
                oldest, _ = self._lanes.popitem(last=False)
                self._graphs.pop(oldest, None)
        self._lanes.move_to_end(key)
        return self._lanes[key]

    def _record(self, plan: Plan) -> LaneGraph:
        lanes, key = self._compile(plan), plan.key
        if key not in self._graphs:
            while True:
                graph = LaneGraph(lanes, self._recorded, self._new_graph, self._residents)
                if not (says_no_memory(graph.reason) and self._forget_another(key)):
                    break
            self._graphs[key] = graph
        self._graphs.move_to_end(key)
        return self._graphs[key]

    def _with_memory(self, plan: Plan, function: Callable[[], Result]) -> Result:
        """Return the result of a function; where memory is short it is called again, with fewer recorded plans."""
        while True:
            try:
                return function()
            except RuntimeError as error:  # `ExecutionError` is one too
                if not says_no_memory(str(error)):
                    raise
                if not self._forget_another(plan.key):
                    raise ExecutionError(f"out of memory: {plain(error)}") from error

    def _forget_another(self, key: str) -> bool:
        """Drop the least recently used recording other than that of `key`; True if there was one."""
        other = next((each for each in self._graphs if each != key), None)
        if other is not None:
            del self._graphs[other]
        return other is not None

    def _on_worker(self, function: Callable[[], Result]) -> Result:
        _check_open(self._process if self._worker is not None else None)
        assert self._worker is not None
        return self._worker.submit(function).result()


AnyExecutor = GraphExecutor | NativeExecutor


def worker_on(device: Device) -> ThreadPoolExecutor:
    """Start one thread for the life of an executor, bound to a device's cores, with its number of threads. New threads
    would lose the primitive caches of oneDNN."""

    def begin() -> None:
        if device.cores and hasattr(os, "sched_setaffinity"):
            with suppress(OSError):  # not allowed here: the device works, unbound
                os.sched_setaffinity(threading.get_native_id(), device.cores)
        torch.get_num_threads()  # a thread takes the process's number when first asked: now, not later
        torch.set_num_threads(device.threads)
        torch.set_grad_enabled(False)

    threads = torch.get_num_threads()  # also fixes this thread's own number before the worker sets another
    worker = ThreadPoolExecutor(1, device.name, begin)
    worker.submit(lambda: None).result()
    torch.set_num_threads(threads)
    return worker
