"""Eager executor of stream programs: every lane is a stream of its accelerator, with the events of that stream.

One thread issues all steps, each wait behind the record of its event. A lane of the CPU computes when it is issued; so
does a lane of an accelerator that is not here, with fake tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gst.lowering.calls import bind, copied, fixed_values, laid_out, unexpanded
from gst.lowering.plan import COPY, FREE, RECORD, RUN, WAIT, ExecutionError, Ints, StreamProgram
from gst.machine.devices import Device
from gst.programs import Program, Reference
from gst.util.recording import is_here

Values = dict[int, Any]  # of nodes, in one memory
GroupCall = Callable[[Values], Iterable[tuple[int, Any]]]  # outputs of a fusion group: node and value of each
Turns = list[tuple[int, list[int]]]  # lane, and steps that it takes one after the other
Placed = dict[tuple[int, torch.device], Tensor]  # examples and constants, by node and device


def synchronise(devices: Iterable[torch.device]) -> None:
    """Wait for all work on those of the devices that are accelerators of this process."""
    for device in dict.fromkeys(devices):
        if is_here(device):
            torch.accelerator.synchronize(device)


def issue_order(streams: StreamProgram, rng: np.random.Generator | None = None) -> Ints:
    """Return all steps in an order in which one thread can issue them: each lane in its order, and each wait behind the
    record of its event.

    Args:
        streams: a stream program.
        rng: chooses the lane of the next step. If None, lanes alternate, each as far as it can.

    Raises:
        ExecutionError: lanes wait for each other for ever.

    Examples:
        >>> from gst.lowering.plan import example
        >>> issue_order(example()).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """
    kind, argument = streams.kind.tolist(), streams.argument.tolist()
    place, ends = streams.bounds[:-1].tolist(), streams.bounds[1:].tolist()
    recorded: set[int] = set()
    order: list[int] = []

    def advance(lane: int, most: int) -> bool:
        begin = place[lane]
        while place[lane] < min(ends[lane], begin + most):
            step = place[lane]
            if kind[step] == WAIT and argument[step] not in recorded:
                break
            if kind[step] == RECORD:
                recorded.add(argument[step])
            order.append(step)
            place[lane] += 1
        return place[lane] > begin

    lanes = np.arange(len(ends))
    while len(order) < len(kind):
        turn = lanes if rng is None else rng.permutation(lanes)
        most = len(kind) if rng is None else int(rng.integers(1, 4))
        if not sum(advance(lane, most) for lane in turn.tolist()):
            lane = next(lane for lane in lanes.tolist() if place[lane] < ends[lane])
            raise ExecutionError(f"{streams.place_words(place[lane])} waits for ever: no lane can go on")
    return np.array(order, np.int64)


class LaneExecutor:
    """Runs one stream program, as often as it is called.

    Args:
        program: the program.
        streams: its lowered form.
        devices: for which it was lowered; their memories are those of the stream program.
        order: of its steps; that of `issue_order` if None.
        groups: functions that compute the outputs of fusion groups, by their operations; other groups run one by one.

    Raises:
        ValueError: a memory of the stream program is that of no device.
    """

    def __init__(
        self, program: Program, streams: StreamProgram, devices: Sequence[Device], order: Ints | None = None,
        groups: Mapping[tuple[int, ...], GroupCall] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        of_memory = {device.memory: device.torch_device for device in devices}
        if missing := [memory for memory in streams.memories if memory not in of_memory]:
            raise ValueError(f"no device has the memory {missing[0]!r}; there are {', '.join(of_memory)}")
        self.program, self.streams = program, streams
        self.devices = [of_memory[memory] for memory in streams.memories]
        self._calls = [bind(program, device) for device in self.devices]
        self._members, self._writes = streams.members.lists(), [set(each) for each in streams.writes.lists()]
        self._compiled = [groups.get(tuple(sorted(members))) for members in self._members]
        self._lane_of_step = streams.lane_of_step.tolist()
        self._turns = self.turns(issue_order(streams) if order is None else order)
        memories = streams.lane_memory.tolist()
        self.lanes = [Lane(self.devices[memory], memory) for memory in memories]
        self._placed: Placed = {}

    def run(self, inputs: Sequence[Tensor] | None = None, placed: Placed | None = None) -> list[Any]:
        """Run the program once, and wait until every lane is done.

        Args:
            inputs: flat inputs, which are not changed; the examples if None, which are brought to the devices once.
            placed: examples and constants on devices; those of earlier runs if None.

        Returns:
            Flat outputs, each in the memory where the stream program leaves it.

        Raises:
            ValueError: the inputs do not fit the program.
            ExecutionError: a step failed; the message names it.
        """
        memories = self.residents(inputs, placed)
        self.synchronise()
        self.issue(memories)
        self.synchronise()
        return self.outputs(memories)

    def residents(self, inputs: Sequence[Tensor] | None = None, placed: Placed | None = None) -> list[Values]:
        """Return the values in each memory when a run begins; see `run`."""
        memories: list[Values] = [{} for _ in self.devices]
        placed, examples = self._placed if placed is None else placed, fixed_values(self.program)
        values = self.program.check_inputs(inputs) if inputs is not None else []
        values = [laid_out(value, like) for value, like in zip(values, examples, strict=False)]
        for node, memory in self.streams.residents.T.tolist():
            device = self.devices[memory]
            if node < len(values):
                memories[memory][node] = _at(values[node].detach(), device)
                continue
            if (node, device) not in placed:
                placed[node, device] = _at(examples[node].detach(), device)
            memories[memory][node] = placed[node, device]
        return memories

    def turns(self, order: Ints) -> Turns:
        """Group steps, in an order in which they can be issued, by lane."""
        return [(lane, list(steps)) for lane, steps in groupby(order.tolist(), self._lane_of_step.__getitem__)]

    def issue(self, memories: list[Values], turns: Turns | None = None) -> None:
        """Issue steps to their lanes; accelerators may still compute when this returns.

        Args:
            memories: values in each; the results are added.
            turns: the steps, with all records for which they wait; every step if None.
        """
        streams, events = self.streams, dict[int, list[torch.Event]]()
        kind, argument, target = streams.kind.tolist(), streams.argument.tolist(), streams.target.tolist()
        step = -1
        try:
            with torch.no_grad():
                for number, steps in self._turns if turns is None else turns:
                    lane = self.lanes[number]
                    with lane.stream or nullcontext():
                        for step in steps:
                            if kind[step] == RUN:
                                self._compute(argument[step], lane.memory, memories[lane.memory])
                            elif kind[step] == COPY:
                                value = memories[lane.memory][argument[step]]
                                value = lane.copy(value, self.devices[target[step]])
                                _write(memories[target[step]], argument[step], value)
                            elif kind[step] == RECORD:
                                events[argument[step]] = lane.record()
                            elif kind[step] == WAIT:
                                lane.wait(events[argument[step]])
                            else:
                                assert kind[step] == FREE
                                lane.free(memories[lane.memory].pop(argument[step]))
        except Exception as error:  # whatever operators raise
            raise ExecutionError(f"{streams.place_words(step)}: {type(error).__name__}: {error}") from error

    def _compute(self, group: int, memory: int, values: Values) -> None:
        if (compiled := self._compiled[group]) is not None:
            for node, value in compiled(values):
                _write(values, node, value)
            return
        calls, writes = self._calls[memory], self._writes[group]
        members = self._members[group]
        for node in members:
            _write(values, node, calls[node](values))  # type: ignore[misc, arg-type]
        for node in members:
            if node not in writes:
                del values[node]

    def outputs(self, memories: Sequence[Values]) -> list[Any]:
        """Return flat outputs of the program, from the values of nodes in each memory at the end."""
        where, outputs = dict(self.streams.results.T.tolist()), self.program.outputs
        return [memories[where[each.node]][each.node] if isinstance(each, Reference) else each for each in outputs]

    def synchronise(self) -> None:
        """Wait for all work on the accelerators of the lanes."""
        synchronise(self.devices)


class Lane:
    """A lane of a memory: its stream, and for each accelerator to which it copies a stream on that.

    Args:
        device: where its memory is.
        memory: number of that memory.
    """

    def __init__(self, device: torch.device, memory: int) -> None:
        self.device, self.memory = device, memory
        self.stream = torch.Stream(device) if is_here(device) else None
        self._arrivals: dict[torch.device, torch.Stream] = {}

    def copy(self, value: Any, device: torch.device) -> Any:
        """Return a copy on another device. Kinds of devices differ in the side whose stream copies, so the lane has
        both streams."""
        if isinstance(value, list | tuple):
            return [self.copy(each, device) for each in value]
        with self._arrival(device):
            return copied(value, device, non_blocking=True) if isinstance(value, Tensor) else value

    def refill(self, buffer: Any, value: Any) -> None:
        """Copy a value into a buffer that `copy` returned for one like it."""
        if isinstance(buffer, list):
            for each, part in zip(buffer, value, strict=True):
                self.refill(each, part)
        elif isinstance(buffer, Tensor):
            with self._arrival(buffer.device):
                unexpanded(buffer).copy_(unexpanded(value), non_blocking=True)

    def forget_arrivals(self) -> None:
        """Drop the streams of earlier copies: a recorded lane has its own events only."""
        self._arrivals.clear()

    def _arrival(self, device: torch.device) -> AbstractContextManager[Any]:
        if not is_here(device):
            return nullcontext()
        if device not in self._arrivals:
            self._arrivals[device] = torch.Stream(device)
        return self._arrivals[device]

    def record(self) -> list[torch.Event]:
        """Return events that happen when all work issued to this lane is done."""
        streams = [*([] if self.stream is None else [self.stream]), *self._arrivals.values()]
        return [stream.record_event() for stream in streams]

    def wait(self, events: Sequence[torch.Event]) -> None:
        """Let later work of this lane begin when these events have happened."""
        for event in events:
            if self.stream is None:
                event.synchronize()
            else:
                self.stream.wait_event(event)

    def free(self, value: Any) -> None:
        """Release memory once this lane gets here. The allocator knows only the stream that took the memory."""
        if self.stream is not None:
            for each in [value] if isinstance(value, Tensor) else pytree.tree_leaves(value):
                if isinstance(each, Tensor):
                    each.record_stream(self.stream)


def _at(value: Tensor, device: torch.device) -> Tensor:
    """Return the value on a device with its strides; itself if it is there."""
    return value if value.device == device else copied(value, device)


def _write(values: Values, node: int, value: Any) -> None:
    if node in values:
        raise LookupError(f"value {node} is there already")
    values[node] = value
