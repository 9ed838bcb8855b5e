"""Run a plan for real: its stream program, by one persistent thread for each lane."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from gst.execution.graph_executor import GraphExecutor
from gst.execution.interpreter import compiler
from gst.execution.lanes import Lane, Placed, is_here, outputs_of, residents_of, synchronise
from gst.execution.native import NativeExecutor
from gst.execution.worker import LaneSteps, Run, Worker, run_lane, started
from gst.lowering.calls import Values, bind
from gst.lowering.legality import fusion_groups
from gst.lowering.lower import ProvenLowering
from gst.lowering.plan import ExecutionError, Plan
from gst.lowering.stream_program import COPY, FREE, RECORD, RUN, WAIT, StreamProgram, rows
from gst.machine.devices import Device, overlap, select, supports
from gst.programs import Program

MAX_COMPILED = 64
Result = TypeVar("Result")


@dataclass(frozen=True)
class Transfers:
    """Values copied from one memory to another during a run, each once per memory, and their bytes."""

    copies: int
    bytes: int


@dataclass(frozen=True, eq=False)
class Compiled:
    """A plan, ready to run.

    Args:
        streams: its stream program.
        lanes: those that have steps.
        num_locks, num_events: see `Run`.
        transfers: of each run.
        order: of the operations of each device.
    """

    streams: StreamProgram
    lanes: tuple[LaneSteps, ...]
    num_locks: int
    num_events: int
    transfers: Transfers
    order: dict[str, tuple[int, ...]]


class Executor:
    """Runs plans of one program. Use it as a context manager; its threads live from enter to exit.

    A plan is lowered (`gst.lowering.lower`), and there is a thread for each lane: one for each device, and if
    there are several memories one for the copies that leave each.

    Args:
        program: what plans place.
        devices: those plans may name.
    """

    def __init__(self, program: Program, devices: Sequence[Device]) -> None:
        self.program = program
        self.devices = tuple(select([device.name for device in devices], devices))  # refuses a name given twice
        if overlap(self.devices):
            raise ValueError("devices that share cores need the compiled interpreter: a C++ compiler, and one memory")
        self.last_transfers = Transfers(0, 0)
        self.last_order: dict[str, tuple[int, ...]] = {}
        self._workers: tuple[Worker, ...] = ()  # of the devices, and of the copies from each memory
        self._lanes: tuple[Lane, ...] = ()
        self._accelerators: tuple[torch.device, ...] = ()
        self._lower = ProvenLowering(program, self.devices)
        self._compiled: OrderedDict[str, Compiled] = OrderedDict()
        self._placed: Placed = {}

    def __enter__(self) -> Self:
        threads_of = [*self.devices, *_copiers(self.devices)]
        memories = list(dict.fromkeys(device.memory for device in self.devices))
        places = {device.memory: device.torch_device for device in self.devices}
        self._workers = started(threads_of)
        self._lanes = tuple(Lane(places[each.memory], memories.index(each.memory)) for each in threads_of)
        self._accelerators = tuple(dict.fromkeys(filter(is_here, places.values())))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        workers, self._workers = self._workers, ()
        for worker in workers:
            worker.close()

    def submit(self, device: str, function: Callable[[], Result]) -> Result:
        """Call `function` on the thread of a device, with its cores and threads, and wait for it."""
        self._check_entered()
        position = self.devices.index(select([device], self.devices)[0])
        return self._workers[position].submit(function).result()

    def compile(self, plan: Plan) -> Compiled:
        """Lower a plan once, and prove that its lanes do not race; the most recent plans are remembered by key.

        Raises:
            ValueError: the plan does not fit the program or the devices.
            ExecutionError: the plan fuses operations, which only the compiled interpreter does.
        """
        key = plan.key
        if key in self._compiled:
            self._compiled.move_to_end(key)
        else:
            if plan.fusion is not None and fusion_groups(self.program, plan):
                raise ExecutionError(
                    "the plan fuses operations, and these devices run them one by one: fusion needs g++ and CPU "
                    "devices of one memory, or accelerators and at most one CPU device; leave it out with "
                    "--tasks placement,schedule (Python: fusion=None)"
                )
            self._compiled[key] = compiled(self.program, self._lower(plan), self.devices)
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return self._compiled[key]

    def run(self, plan: Plan, inputs: Sequence[Tensor] | None = None) -> list[Any]:
        """Run the program once as `plan` says, and wait for all of it.

        Inputs lie where the stream program has them when a run begins; bringing them there (to an accelerator) is no
        transfer of the step, as parameters stay where they are used. `last_transfers` and `last_order` (for each device
        its operations in their order) tell of the last run that ended well.

        Args:
            plan: for this program, on this executor's devices.
            inputs: flat inputs; the examples if None. They are not changed.

        Returns:
            Flat outputs, each in the memory where it was made (`program.unflatten` gives them structure).

        Raises:
            ValueError: the plan or the inputs do not fit the program.
            ExecutionError: an operation failed, or the plan fuses some (see `compile`).
        """
        self._check_entered()
        compiled = self.compile(plan)
        run = Run(self._residents(compiled.streams, inputs), compiled.num_locks, compiled.num_events)
        synchronise(self._accelerators)
        lanes = compiled.lanes
        futures = [
            self._workers[each.worker].submit(partial(run_lane, each, self._lanes[each.worker], run)) for each in lanes
        ]
        _wait(futures, run)
        synchronise(self._accelerators)
        self.last_transfers, self.last_order = compiled.transfers, compiled.order
        return outputs_of(self.program, compiled.streams, run.memories)

    def _residents(self, streams: StreamProgram, inputs: Sequence[Tensor] | None) -> list[Values]:
        """What lies in each memory when a run begins. Examples and constants are brought there once."""
        memories: list[Values] = [[None] * self.program.num_nodes for _ in streams.memories]
        device_of = {lane.memory: lane.device for lane in self._lanes}
        places = [device_of[memory] for memory in range(len(memories))]
        for node, memory, value in residents_of(self.program, streams, places, inputs, self._placed):
            memories[memory][node] = value
        return memories

    def _check_entered(self) -> None:
        if not self._workers:
            raise ValueError("the executor is closed; use it inside `with Executor(program, devices) as executor:`")


def _copiers(devices: Sequence[Device]) -> list[Device]:
    """For each memory, if there are several, the thread of its copies, as a device of one thread on its cores."""
    cores: dict[str, tuple[int, ...]] = {}
    for device in devices:
        cores[device.memory] = cores.get(device.memory, ()) + device.cores
    several = cores.items() if len(cores) > 1 else ()
    return [Device(f"copies of {memory}", "cpu", mine, 1, memory, "") for memory, mine in several]


def compiled(program: Program, streams: StreamProgram, devices: Sequence[Device]) -> Compiled:
    """A stream program of `devices`, which computes nothing fused, as threads run it."""
    kind, argument, target = (each.tolist() for each in (streams.kind, streams.argument, streams.target))
    torch_device = {device.memory: device.torch_device for device in devices}
    places = [torch_device[memory] for memory in streams.memories]
    waits = np.flatnonzero(streams.kind == WAIT)
    lock_of = dict(zip(waits.tolist(), range(len(waits)), strict=True))
    opened = rows(streams.argument[waits], np.arange(len(waits)), streams.num_events).lists()
    members, written = streams.members.items.tolist(), set(streams.writes.items.tolist())

    def steps(begin: int, end: int, memory: int) -> Iterator[tuple[int, int, Any]]:
        calls = bind(program, places[memory])
        for step in range(begin, end):
            what = argument[step]
            if kind[step] == RUN:
                node = members[what]
                yield RUN, node, calls[node]
                if node not in written:  # nobody reads it
                    yield FREE, node, None
            elif kind[step] == COPY:
                yield COPY, what, (target[step], places[target[step]])
            elif kind[step] == RECORD:
                yield RECORD, what, tuple(opened[what])
            else:
                yield (WAIT, lock_of[step], what) if kind[step] == WAIT else (FREE, what, None)

    lanes, bounds = [], streams.bounds.tolist()
    for lane, (name, memory) in enumerate(zip(streams.lanes, streams.lane_memory.tolist(), strict=True)):
        if bounds[lane] < bounds[lane + 1]:
            worker = lane if lane < len(devices) else len(devices) + memory
            lanes.append(LaneSteps(name, worker, memory, list(steps(bounds[lane], bounds[lane + 1], memory))))
    copied = streams.argument[streams.kind == COPY]
    return Compiled(
        streams, tuple(lanes), len(waits), streams.num_events if any(map(is_here, places)) else 0,
        Transfers(len(copied), int(program.output_bytes[copied].sum())),
        {each.name: order for each in lanes if (order := tuple(node for k, node, _ in each.steps if k == RUN))},
    )  # fmt: skip


def _wait(futures: Sequence[Future[None]], run: Run) -> None:
    try:
        wait(futures)
    except BaseException:  # Ctrl-C: leave no thread at work behind
        run.stop()
        wait(futures)
        raise
    for future in futures:
        if (error := future.exception()) is not None:
            raise error


AnyExecutor = Executor | GraphExecutor | NativeExecutor


def executor(program: Program, devices: Sequence[Device]) -> AnyExecutor:
    """The compiled interpreter where it can run these devices (CPU, one memory) and this machine has a C++ compiler;
    recorded graphs on accelerators, beside one CPU device or none; otherwise a Python thread for each lane.

    Raises:
        ValueError: devices share cores and only the Python one would run here.

    Examples:
        >>> import numpy as np
        >>> from gst.machine.devices import discover
        >>> from gst.programs import capture_module
        >>> program, core = capture_module(torch.nn.ReLU(), (torch.tensor([-1.0, 2.0]),)), discover()[0]
        >>> with executor(program, [core]) as run:
        ...     run.run(Plan((core.name,), np.zeros(program.num_nodes, np.int64)))
        [tensor([0., 2.])]
    """
    if finds_order(devices):
        return NativeExecutor(program, devices)
    if overlap(devices):
        raise ValueError("devices that share cores need the compiled interpreter: install g++, and use one memory")
    accelerators = [device.torch_device for device in devices if device.is_accelerator]
    if accelerators and all(map(is_here, accelerators)) and len(devices) - len(accelerators) <= 1:
        return GraphExecutor(program, devices)
    return Executor(program, devices)


def finds_order(devices: Sequence[Device]) -> bool:
    """Whether `executor` runs plans on these devices by the compiled interpreter, which takes what is ready while it
    runs. The Python one takes operations in the order of their priorities (`gst.lowering.plan.in_order_of`).

    Examples:
        >>> gpus = [Device(f"xpu:{number}", "xpu", (), 1, f"xpu:{number}", "example") for number in range(2)]
        >>> finds_order(gpus)
        False
    """
    return supports(devices) and compiler() is not None
