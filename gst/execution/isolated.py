"""Executor of plans in a child process: a plan that crashes or hangs it fails with a reason, and the caller goes on.

The parent first sends the program and the devices, and receives the program's key. Then it sends requests: the name of
a method of `Runner` and its arguments. Each answer is a value, an error to raise instead or None, and True if the child
ends because it is unreliable now.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor
from torch.utils import _pytree as pytree

from gst.execution.costs import event_times_us, measured_links
from gst.execution.executor import AnyExecutor, GraphExecutor, NativeExecutor, executor, measure_costs, runs_in_turns
from gst.execution.groups import group_records
from gst.execution.measure import Measurement, measure, timed
from gst.lowering.calls import HOST, Costs, eager, profiled_costs
from gst.lowering.plan import ExecutionError, Plan, RunsInTurns, Timeline, says_no_memory
from gst.machine.devices import Device, least_memory_limit, limit_memory, select
from gst.machine.load import LoadGate, LoadMeter, lock_devices
from gst.programs import Program, differ_beyond_rounding, kind_for, outputs_differ
from gst.programs.program import distances
from gst.programs.traces import traced
from gst.util.process import WAITING, Child, ChildFailed, connect
from gst.util.progress import notice

START_LIMIT_S = 900.0  # to import, trace, perhaps compile the interpreter or a plan, and run the program once


class IsolatedExecutor:
    """Runs plans of one program in a child process, which ends with its parent. Use it as a context manager.

    OpenMP's threads in the child wait as `gst.util.process.WAITING` sets, since they would steal the cores of other
    devices. After a crash, a timeout, an error or wrong outputs the next request starts a new child.

    Args:
        program: directory of a saved program (`Program.save`), or the name of one (`gst.programs.traced`).
        devices: those that plans may name. Their least memory limit holds for the intermediate values of a run, on
            accelerators for all memory of the process.
        time_limit_s: seconds for each run.

    Raises:
        ValueError: the program or a device is missing, or the program does not run by itself.
    """

    def __init__(self, program: Path | str, devices: Sequence[Device], time_limit_s: float = 60) -> None:
        self.devices = tuple(select([device.name for device in devices], devices))
        self.time_limit_s = time_limit_s
        self.program_key, self.num_started = "", 0
        self.lost: ValueError | None = None  # why no further child can be had
        self._program = program
        self._eager_reasons: set[str] = set()
        self._child: Child | None = None

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def costs(self, repetitions: int = 5) -> Costs:
        """Measure the costs of each operation alone on each device, without a memory limit; raise ValueError if the
        program does not run on one alone."""
        try:
            with lock_devices(self.devices):
                meter = LoadMeter()  # here, where the time of the child is not that of others
                costs: Costs = self._request(START_LIMIT_S, "costs", repetitions)
                return replace(costs, load=round(meter.share(), 4))
        except ExecutionError as failure:
            names = ", ".join(device.name for device in self.devices)
            raise ValueError(f"the program does not run on each of {names} alone: {failure}") from failure

    def timelines(self, plans: Sequence[Plan], repetitions: int = 3) -> RunsInTurns:
        """Return the begin and end of each operation in each run of each plan; raise ExecutionError if one fails."""
        with lock_devices(self.devices):
            meter = LoadMeter()
            runs = self._request(START_LIMIT_S, "timelines", list(plans), repetitions)
            return RunsInTurns(runs, round(meter.share(), 4))

    def groups(self, plan: Plan) -> dict[int, float]:
        """Return compiled time / time of its operations for each group that a plan fuses, by its first node; 1 for a
        group that runs one by one. New structures are compiled first, which takes seconds each. Raises as `check`."""
        with lock_devices(self.devices):
            shares: dict[int, float] = self._request(START_LIMIT_S, "groups", plan)
            return shares

    def compile(self, plan: Plan) -> None:
        """Lower a plan, and compile groups of new structures. Raises as `check`."""
        self._request(START_LIMIT_S, "compile", plan)

    def check(self, plan: Plan) -> None:
        """Run a plan once and compare its outputs with those of the program run in order.

        Raises:
            ExecutionError: it fails, or gives other outputs; the message is the reason.
            ValueError: it is no plan for this program on these devices.
        """
        self.compile(plan)
        reason: str = self._request(self.time_limit_s, "check", plan)
        if reason and reason not in self._eager_reasons:
            notice(f"a plan runs eagerly, not by graphs: {reason}")
            self._eager_reasons.add(reason)

    def time(self, plan: Plan) -> tuple[float, int | None]:
        """Return milliseconds of one run, and the most bytes of intermediate values, if counted. Raises as `check`."""
        elapsed_ms, peak_bytes = self._request(self.time_limit_s, "time", plan)
        return elapsed_ms, peak_bytes

    @property
    def next_child(self) -> int:
        """Number of the child that will run the next plan."""
        return self.num_started + (self._child is None)

    def _start(self) -> None:
        self._child = Child("gst.execution.isolated", (), {**os.environ, **WAITING})
        self.num_started += 1
        try:
            key = self._ask(START_LIMIT_S, self._program, self.devices)
            if self.program_key not in ("", key):
                raise ValueError("the program is another one than at the start; was its source changed meanwhile?")
        except (ExecutionError, ValueError) as error:
            self._stop()
            words = "the program does not run, or the process for it does not start: "
            self.lost = ValueError(words * isinstance(error, ExecutionError) + str(error))
            raise self.lost from error
        self.program_key = key

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def _request(self, limit_s: float, name: str, *arguments: Any) -> Any:
        """Return the result of a method of the child's `Runner`; a new child is started if there is none."""
        if self._child is None:
            self._start()
        return self._ask(limit_s, name, arguments)

    def _ask(self, limit_s: float, *message: Any) -> Any:
        assert self._child is not None
        try:
            value, error, ends = self._child.ask(message, limit_s)
        except ChildFailed as failure:
            self._stop()
            raise ExecutionError(str(failure)) from None
        except BaseException:
            self._stop()
            raise
        if ends:
            self._stop()
        if error is not None:
            raise error
        return value


def measure_plans(
    isolated: IsolatedExecutor,
    plans: Sequence[Plan],
    repetitions: int = 5,
    warmup: int = 1,
    gate: LoadGate | None = None,
    beside: Mapping[str, Callable[[], float]] = MappingProxyType({}),
    progress: Callable[[int, int], None] | None = None,
    seconds: float = math.inf,
) -> list[Measurement]:
    """Time plans alternately (`measure`), each after a run whose outputs are compared. A plan that fails in any run is
    'failed'; after a new child starts, the others run once without the clock.

    Args:
        isolated: entered.
        plans: of its program.
        repetitions, warmup, gate, progress, seconds: see `measure`.
        beside: other callables to compare with, by label: a call runs one once and returns its milliseconds. Their
            measurements follow those of the plans.

    Raises:
        ValueError: one of them is no plan for this program on these devices, or no new child starts.
    """
    used = isolated.devices if beside else _in_use(isolated, plans)
    with lock_devices(used):
        turns = [_Turn(isolated, plan) for plan in plans]
        runs: dict[str, Callable[[], float]] = {f"{i}:{turn.plan.key}": turn.run for i, turn in enumerate(turns)}
        measurements = measure(
            {**runs, **beside}, repetitions, warmup, gate, progress=progress, time_of=lambda run: run(), seconds=seconds
        )
    if isolated.lost is not None:  # that is no outcome of a plan
        raise isolated.lost
    measured = [
        replace(measurements[label], plan_key=turn.plan.key, peak_bytes=turn.peak_bytes)
        for label, turn in zip(runs, turns, strict=True)
    ]
    return measured + [measurements[label] for label in beside]


def _in_use(isolated: IsolatedExecutor, plans: Sequence[Plan]) -> list[Device]:
    """Return the GPUs that plans use; all devices if they use a core, as cores share caches and memory."""
    names = {plan.devices[place] for plan in plans for place in np.unique(plan.placement).tolist()}
    used = [device for device in isolated.devices if device.name in names]
    return used if all(device.is_accelerator for device in used) else list(isolated.devices)


class _Turn:
    """One of several plans that are timed alternately."""

    def __init__(self, isolated: IsolatedExecutor, plan: Plan) -> None:
        self.isolated, self.plan = isolated, plan
        self.peak_bytes: int | None = None
        self._failure: ExecutionError | None = None
        try:
            isolated.check(plan)
        except ExecutionError as failure:
            self._failure = failure
        self._child = isolated.next_child

    def run(self) -> float:
        if self._failure is not None:
            raise self._failure
        if self._child != self.isolated.next_child:
            self.isolated.compile(self.plan)
            self.isolated.time(self.plan)
            self._child = self.isolated.next_child
        elapsed_ms, self.peak_bytes = self.isolated.time(self.plan)
        return elapsed_ms


BETWEEN = 2.0  # times the distance between the host and the accelerator: a plan on both may be off by it


@dataclass(frozen=True)
class ReferenceOutputs:
    """Reference outputs of a program, for comparison with those of plans.

    Args:
        want: flat outputs, on the host.
        again: outputs for other inputs, computed alike; None where plans round as these do.
        least: allowed error of each output; empty where plans round as these do.
    """

    program: Program
    want: Sequence[Any]
    again: Callable[[Sequence[Tensor]], list[Any]] | None = None
    least: Sequence[float] = ()

    def difference(self, got: Sequence[Any]) -> str | None:
        """Return the first difference between flat outputs and these, beyond rounding; None if they agree."""
        if self.again is None:
            return outputs_differ(got, self.want)
        return differ_beyond_rounding(got, self.want, self.again, self.program.inputs, self.least)


def reference(program: Program, devices: Sequence[Device]) -> ReferenceOutputs:
    """Run all operations in order on the first accelerator of some devices; on the host if it cannot run them.

    cuDNN rounds the factors of convolutions to TF32 (11 of 24 bits) by default, so plans are compared with outputs of
    the same accelerator.
    """

    def run(inputs: Sequence[Tensor] | None, device: torch.device) -> list[Any]:
        return pytree.tree_map_only(Tensor, Tensor.cpu, eager(program, inputs, device))

    home, on_host = next((each.torch_device for each in devices if each.is_accelerator), HOST), run(None, HOST)
    if home != HOST:
        try:
            want = run(None, home)
        except RuntimeError:  # an operation, or memory, that it lacks
            return ReferenceOutputs(program, on_host, partial(run, device=HOST))
        least = [BETWEEN * each for each in distances(want, on_host)]
        return ReferenceOutputs(program, want, partial(run, device=home), least)
    return ReferenceOutputs(program, on_host)


# In the child ---------------------------------------------------------------------------------------------------------


PAST_THE_LIMIT = "out of memory: "  # what the compiled interpreter says of a run that it stopped itself


def main() -> None:
    parent, _ = connect()
    source, devices = parent.recv()
    try:
        is_saved = not isinstance(source, str)
        program = Program.load(source) if is_saved else traced(source, kind=kind_for(each.kind for each in devices))
        limit = least_memory_limit(devices)
        with executor(program, devices) as made:
            if isinstance(made, NativeExecutor):
                made.memory_limit = None  # what is no run of a plan may take all there is
            runner = Runner(made, reference(program, devices), limit)
            parent.send((program.key, None, False))
            with suppress(EOFError):
                while not _answer(parent, runner, *parent.recv()):
                    pass
    except ValueError as error:
        parent.send((None, ValueError(str(error)), True))


def _answer(parent: Connection[Any, Any], runner: Runner, request: str, arguments: tuple[Any, ...]) -> bool:
    """Serve a request and send its result; True if this process ends."""
    value: Any = None
    error: Exception | None = None
    ends = False
    try:
        value = getattr(runner, request)(*arguments)
    except ExecutionError as failure:
        stopped = isinstance(runner.executor, NativeExecutor) and failure.reason.startswith(PAST_THE_LIMIT)
        error, ends = ExecutionError(failure.reason if stopped else _reason(str(failure))), not stopped
    except ValueError as refusal:
        error = ValueError(str(refusal))
    except Exception as failure:
        error, ends = ExecutionError(_reason(f"{type(failure).__name__}: {failure}")), True
    parent.send((value, error, ends))
    return ends


@dataclass(frozen=True)
class Runner:
    """Serves the requests of `IsolatedExecutor` by an entered executor of the program."""

    executor: AnyExecutor
    reference: ReferenceOutputs
    limit: int | None  # bytes that the intermediate values of a plan may take

    def costs(self, repetitions: int) -> Costs:
        """Measure times of each operation alone on each device, and all other data of a simulation."""
        if isinstance(self.executor, NativeExecutor):
            return measure_costs(self.executor, repetitions)
        program, devices = self.executor.program, self.executor.devices
        times = profile_devices(self.executor, repetitions)
        return profiled_costs(program, devices, times, measured_links(devices))

    def timelines(self, plans: Sequence[Plan], repetitions: int) -> list[list[Timeline]]:
        """Return the runs of each plan; none if the executor keeps no timelines."""
        return runs_in_turns(self.executor, plans, repetitions) if isinstance(self.executor, NativeExecutor) else []

    def groups(self, plan: Plan) -> dict[int, float]:
        """Return compiled time / time of the operations for each legal group of a plan, by its first node."""
        if isinstance(self.executor, GraphExecutor):
            return self.executor.group_shares(plan)
        if not isinstance(self.executor, NativeExecutor):
            return {}
        records = group_records(self.executor.program, plan, self.executor.devices)
        return {group.nodes[0]: record.share for group, record in records}

    def compile(self, plan: Plan) -> None:
        """Lower a plan, and compile the groups that it fuses."""
        self.executor.compile(plan)

    def check(self, plan: Plan) -> str:
        """Run a plan, compare its outputs, and return the reason why it runs eagerly, empty if it runs by graphs.

        Raises:
            ExecutionError: outputs differ beyond rounding.
        """
        with self._limited():
            got = self.executor.run(plan)
            reason = self.executor.record(plan).reason if isinstance(self.executor, GraphExecutor) else ""
        if difference := self.reference.difference(got):
            raise ExecutionError(f"wrong outputs: {difference}")
        return reason

    def time(self, plan: Plan) -> tuple[float, int | None]:
        """Return milliseconds of a run, and the most bytes of its intermediate values if that is counted."""
        self.executor.compile(plan)
        with self._limited():
            if isinstance(self.executor, GraphExecutor):
                return self.executor.time_ms(plan), None
            elapsed_ms = timed(partial(self.executor.run, plan))
        return elapsed_ms, self.executor.last_timeline.peak_bytes if isinstance(self.executor, NativeExecutor) else None

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Limit the bytes of intermediate values, or, where they are not counted, of each accelerator."""
        accelerators = {device.torch_device for device in self.executor.devices if device.is_accelerator}

        def limit(num_bytes: int | None) -> None:
            if isinstance(self.executor, NativeExecutor):
                self.executor.memory_limit = num_bytes
            elif self.limit is not None:
                for device in accelerators:
                    limit_memory(device, num_bytes)

        limit(self.limit)
        try:
            yield
        finally:
            limit(None)


def profile_devices(executor: GraphExecutor, repetitions: int) -> Float64[np.ndarray, "devices nodes"]:
    """Return profiled microseconds of each operation on each device; equal devices share times."""
    kinds = [(device.kind, device.threads, device.description) for device in executor.devices]
    times = {}
    for kind in dict.fromkeys(kinds):
        device = executor.devices[kinds.index(kind)]
        measured = partial(event_times_us, executor.program, device.torch_device, repetitions)
        times[kind] = executor.submit(device.name, measured)
    return np.stack([times[kind] for kind in kinds])


def _reason(words: str) -> str:
    first = (words.strip().splitlines() or [""])[0]
    return f"out of memory: {first}" if says_no_memory(words) else first


if __name__ == "__main__":
    main()
