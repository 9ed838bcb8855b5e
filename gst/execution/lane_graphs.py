"""A stream program recorded as graphs of its accelerators, one for each stretch of one memory; the memory of inputs.

All lanes of one accelerator are one graph. With several memories, graphs end where values are exchanged
(`stretches`): PyTorch's allocator keeps a graph's memory apart on one device alone.
Programs are functional, so no graph writes to inputs: plans that run one after the other share the weights' memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, no_type_check
from weakref import WeakValueDictionary

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from gst.execution.lanes import Lane, LaneExecutor, Turns, Values
from gst.lowering.calls import copied, fixed_values, is_expanded, laid_out, unexpanded
from gst.lowering.happens_before import happens_before
from gst.lowering.plan import COPY, RECORD, RUN, WAIT, Ints, Rows, StreamProgram, rows
from gst.programs import Operation, Program
from gst.util.compiled import compiled
from gst.util.recording import WARM_RUNS, Graph, is_here, new_graph, no_garbage, recorded
from gst.util.untrusted import first_line

UNDECLARED = {"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"}
"""Operators that write into running statistics while they train, without a declaration in their schemas."""


class Resident:
    """Memory of one input or constant on one device, which begins with the value that the program has for it.

    Args:
        example: that value.
        device: where the memory is.
        is_input: True if other values may be written there; a constant on its own device is not copied.
    """

    def __init__(self, example: Tensor, device: torch.device, is_input: bool) -> None:
        self._example, self._is_example = example.detach(), True
        self._source: _Source | None = None
        is_there = self._example.device == device and not is_input
        with torch.inference_mode(False):  # else it could be written to in that mode alone
            self.value = self._example if is_there else laid_out(copied(self._example, device), self._example)

    def hold(self, value: Tensor, is_steady: bool) -> None:
        """Copy a value there. A steady one is copied only if it is another tensor than the last, or was written to
        since."""
        source = _Source(value) if is_steady else None
        if source is None or not source.is_as(self._source):
            self._copy(value.detach())
        self._source, self._is_example = source, False

    def hold_example(self) -> None:
        """Copy the program's own value there, unless it is there."""
        if not self._is_example:
            self._copy(self._example)
        self._source, self._is_example = None, True

    def _copy(self, value: Tensor) -> None:
        if is_expanded(self.value):
            if value.stride() != self._example.stride():
                raise ValueError(f"an input has strides {value.stride()}, not {self._example.stride()}: it is expanded")
            unexpanded(self.value).copy_(unexpanded(value))
        else:
            self.value.copy_(value)

    def forget(self) -> None:
        """Let the next value be copied there in any case: the memory was written to."""
        self._source, self._is_example = None, False


class Residents:
    """Memory of the inputs and constants of one program, by node and device. Each lives as long as a caller holds it.

    Attributes:
        writes: True if an operation may write into an input: then earlier copies are unreliable.
        num_fills: runs before which other values than the program's own were copied there.
    """

    def __init__(self, program: Program) -> None:
        self.writes = any(map(_writes, program.operations))
        self.num_fills = 0
        self._examples, self._num_inputs = fixed_values(program), len(program.inputs)
        self._all: WeakValueDictionary[tuple[int, torch.device], Resident] = WeakValueDictionary()

    def at(self, node: int, device: torch.device) -> Resident:
        """Return the resident of an input or constant on a device."""
        resident = self._all.get((node, device))
        if resident is None:
            resident = Resident(self._examples[node], device, node < self._num_inputs)
            self._all[node, device] = resident
        return resident

    def of(self, streams: StreamProgram, devices: list[torch.device]) -> dict[tuple[int, int], Resident]:
        """Return the residents of a stream program when a run begins, by node and memory."""
        return {(node, memory): self.at(node, devices[memory]) for node, memory in streams.residents.T.tolist()}


class _Source:
    """An input at the time it was copied. It is held, so that no other tensor can lie in its memory."""

    def __init__(self, value: Tensor) -> None:
        self._value, self._version = value.detach(), None if value.is_inference() else value._version

    def is_as(self, other: _Source | None) -> bool:
        """True if it is the other one, and nothing was written to it in between."""
        return other is not None and self._version is not None and self._state() == other._state()

    def _state(self) -> tuple[object, ...]:
        value = self._value
        return value.data_ptr(), value.dtype, value.shape, value.stride(), value.device, self._version


def _writes(operation: Operation) -> bool:
    schema = getattr(operation.target, "_schema", None)
    if schema is None or schema.is_mutable or schema.name not in UNDECLARED:
        return schema is not None and bool(schema.is_mutable)
    arguments = dict(zip((each.name for each in schema.arguments), operation.args, strict=False)) | operation.kwargs
    return bool(arguments["training"]) and arguments["running_mean"] is not None


DRAWS_ON_HOST = "its random numbers are drawn on the host, which a graph cannot wait for"
PINNED_BYTES = 2**30  # of buffers on the host that accelerators copy to or from; beyond that they are pageable


class LaneGraph:
    """Runs a stream program by graphs, or eagerly.

    Args:
        executor: of the stream program.
        recorded: memories whose stretches are graphs; those of accelerators of this process if None.
        graph: makes an empty graph, see `new_graph`.
        residents: memory of inputs and constants, shared with other plans of the program; its own if None.

    Attributes:
        reason: why it runs eagerly; empty if it runs by graphs.
    """

    def __init__(
        self, executor: LaneExecutor, recorded: Collection[int] | None = None,
        graph: Callable[[torch.device, Any], Graph] = new_graph, residents: Residents | None = None,
    ) -> None:  # fmt: skip
        self.executor, self._new_graph = executor, graph
        self._all_residents = residents or Residents(executor.program)
        self._residents: dict[tuple[int, int], Resident] = {}
        self._num_fills = 0  # at which those hold the examples
        devices = executor.devices
        here = [memory for memory, device in enumerate(devices) if is_here(device)]
        self._recorded = frozenset(here if recorded is None else recorded)
        self._graphs: dict[int, list[Graph]] = {memory: [] for memory in self._recorded}
        self._values: list[Values] = []
        self._parts: list[_Part] = []
        self._pinned_bytes = 0
        self.reason = ""
        if not self._recorded:
            where = ", ".join(map(str, dict.fromkeys(devices)))
            self.reason = f"graphs are recorded on an accelerator; this runs on {where}"
            return
        if draws_on_host(executor.program):
            self.reason = DRAWS_ON_HOST
            return
        try:
            with no_garbage():
                self._record()
        except Exception as error:  # whatever an operator does that a graph cannot, and memory that is short
            self._graphs, self._values, self._parts, self._residents = {}, [], [], {}
            self.reason = first_line(error)

    @property
    def num_graphs(self) -> int:
        return sum(map(len, self._graphs.values()))

    def run(self, inputs: Sequence[Tensor] | None = None, num_steady: int = 0) -> list[Any]:
        """Run the program once, and wait until it is done. Errors are those of `LaneExecutor.run`.

        Args:
            inputs: flat inputs, which are not changed; the examples if None.
            num_steady: number of first inputs, usually parameters, that are copied only if they are other tensors than
                in the run before, or were written to since (by their `_version`).

        Returns:
            Flat outputs. The next run overwrites those of graphs.
        """
        executor = self.executor
        if self.reason:
            return executor.run(inputs)
        self._fill(inputs, num_steady)
        memories, done = self._memories(), list[Sequence[torch.Event]]()
        for part in self._parts:
            part.wait(done)
            with part.lane.stream or nullcontext():
                part.run(memories)
            done.append(part.lane.record())
        executor.synchronise()
        self._forget_written()
        return executor.outputs(memories)

    def _fill(self, inputs: Sequence[Tensor] | None, num_steady: int) -> None:
        """Copy inputs, or the examples, to where graphs read them, unless they are there."""
        executor, shared = self.executor, self._all_residents
        if inputs is None and self._num_fills == shared.num_fills:
            return
        executor.synchronise()  # the inputs may still be computed on another stream
        if inputs is None:
            for each in self._residents.values():
                each.hold_example()
            self._num_fills = shared.num_fills
        else:
            values = executor.program.check_inputs(inputs)
            shared.num_fills += 1
            for (node, _), each in self._residents.items():
                if node < len(values):
                    each.hold(values[node], node < num_steady)
        executor.synchronise()

    def _forget_written(self) -> None:
        """Copy all inputs anew before the next run, if this one may have written into them."""
        if self._all_residents.writes:
            self._all_residents.num_fills += 1
            for each in self._residents.values():
                each.forget()

    def _memories(self) -> list[Values]:
        """Return the values at the beginning of a run; graphs always write theirs to the same place."""
        return [values if memory in self._recorded else dict(values) for memory, values in enumerate(self._values)]

    def _record(self) -> None:
        """Run once, stretch by stretch: each is recorded and launched, so that the next has its values."""
        executor = self.executor
        self._residents = self._all_residents.of(executor.streams, executor.devices)
        self._fill(None, 0)
        placed = {(node, executor.devices[memory]): each.value for (node, memory), each in self._residents.items()}
        for _ in range(WARM_RUNS):
            executor.run(placed=placed)
        self._values = executor.residents(placed=placed)
        hosts = [memory for memory in range(len(executor.devices)) if memory not in self._recorded]
        cut = stretches(executor.streams, np.array(hosts, np.int64))
        keys = list(zip(cut.memory.tolist(), cut.is_copy.tolist(), strict=True))  # stretches of one key share a lane
        lanes = {key: Lane(executor.devices[key[0]], key[0]) for key in keys}
        for lane in executor.lanes:
            lane.forget_arrivals()
        memories, done = self._memories(), list[Sequence[torch.Event]]()
        for stretch, (key, needs) in enumerate(zip(keys, cut.needs.lists(), strict=True)):
            part = _Part(lanes[key], needs, lambda memories: None)
            part.wait(done)
            part.run = self._prepared(cut, stretch, part.lane, memories)
            self._parts.append(part)
            done.append(part.lane.record())
        executor.synchronise()
        self._forget_written()

    def _prepared(self, cut: Stretches, stretch: int, lane: Lane, memories: list[Values]) -> Callable[..., None]:
        """Run a stretch for the first time; return a function that runs it again."""
        executor, streams = self.executor, self.executor.streams
        if cut.is_copy[stretch]:
            return self._sent(cut.steps.lists()[stretch], lane, memories)
        steps = inner_steps(streams, cut, stretch)
        turns = executor.turns(steps)
        issue = partial(executor.issue, turns=turns)
        if lane.memory not in self._recorded:
            issue(memories)
            return issue
        if not (streams.kind[steps] == RUN).any():  # it frees what earlier graphs have made
            issue(memories)
            return lambda memories: None
        graph = self._graph(lane, turns, memories)
        with lane.stream or nullcontext():
            graph.replay()
        return lambda memories: graph.replay()

    def _graph(self, origin: Lane, turns: Turns, memories: list[Values]) -> Graph:
        """Record steps of one memory, its lanes forked from a stream and joined with it."""
        executor, graphs = self.executor, self._graphs[origin.memory]
        executor.synchronise()
        graph = self._new_graph(origin.device, graphs[0].pool() if graphs else None)
        lanes = [executor.lanes[number] for number in dict.fromkeys(number for number, _ in turns)]
        with origin.stream or nullcontext(), recorded(graph):
            for lane in lanes:
                lane.wait(origin.record())
            executor.issue(memories, turns)
            for lane in lanes:
                origin.wait(lane.record())
        graphs.append(graph)
        return graph

    def _sent(self, steps: Sequence[int], lane: Lane, memories: list[Values]) -> Callable[..., None]:
        """Copy values into buffers that stay; return a function that copies them again."""
        executor, streams, letters = self.executor, self.executor.streams, list[tuple[int, int, Any, Any, Any]]()
        for step in steps:
            if streams.kind[step] != COPY:
                continue
            node, target = int(streams.argument[step]), int(streams.target[step])
            value = memories[lane.memory][node]
            with lane.stream or nullcontext():
                buffer = lane.copy(value, executor.devices[target])
            buffer = memories[target][node] = self._pinned(buffer, lane)
            is_staged = lane.memory not in self._recorded and is_here(executor.devices[target])
            staging = self._staging(buffer) if is_staged else None
            letters.append((node, target, value if lane.memory in self._recorded else None, staging, buffer))

        def send(memories: list[Values]) -> None:
            for node, target, value, staging, buffer in letters:
                _refill(lane, buffer, staging, memories[lane.memory][node] if value is None else value)
                memories[target][node] = buffer

        return send

    def _staging(self, buffer: Any) -> Any:
        """Return pinned memory on the host with the layout of a buffer, from which an accelerator copies while the host
        continues; None beyond the budget."""
        if isinstance(buffer, list):
            return [self._staging(each) for each in buffer]
        is_dense = isinstance(buffer, Tensor) and 0 not in buffer.stride()
        if not is_dense or self._pinned_bytes + buffer.nbytes > PINNED_BYTES:
            return None
        self._pinned_bytes += buffer.nbytes
        return torch.empty_like(buffer, device="cpu", pin_memory=True)

    def _pinned(self, buffer: Any, lane: Lane) -> Any:
        """Return a copy on the host that an accelerator can write to while the host continues, within the budget."""
        if isinstance(buffer, list):
            return [self._pinned(each, lane) for each in buffer]
        if not isinstance(buffer, Tensor) or buffer.device.type != "cpu" or lane.stream is None:
            return buffer
        lane.stream.synchronize()
        if 0 in buffer.stride():
            return buffer
        if self._pinned_bytes + buffer.nbytes > PINNED_BYTES:  # what an accelerator copied without waiting is pinned
            return torch.empty_strided(buffer.shape, buffer.stride(), dtype=buffer.dtype).copy_(buffer)
        self._pinned_bytes += buffer.nbytes
        return buffer.pin_memory()


def _refill(lane: Lane, buffer: Any, staging: Any, value: Any) -> None:
    if isinstance(staging, list):
        for each in zip(buffer, staging, value, strict=True):
            _refill(lane, *each)
    elif staging is None:
        lane.refill(buffer, value)
    else:
        lane.refill(staging, value)
        lane.refill(buffer, staging)


def draws_on_host(program: Program) -> bool:
    """True if random numbers of a program depend on a seed, which the host reads (`gst.programs.step`)."""
    return any(getattr(each.target, "namespace", "") == "gst" for each in program.operations)


@dataclass
class _Part:
    """One stretch: its lane, the stretches that it waits for, and the function that runs it."""

    lane: Lane
    needs: Sequence[int]
    run: Callable[[list[Values]], object]

    def wait(self, done: Sequence[Sequence[torch.Event]]) -> None:
        for stretch in self.needs:
            self.lane.wait(done[stretch])


# Stretches ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Stretches:
    """Stretches of a stream program, in an order in which they can run: the work of one memory between two rounds of
    copies, or all copies that leave it in a round. There are as few rounds as the program allows.

    Args:
        of_step: stretch of each step.
        round: of each stretch; even for computations, odd for copies.
        memory: of each stretch: where it computes, or from where it copies.
        steps: of each stretch, in an order in which one thread can issue them.
        needs: earlier stretches that must be done before each one begins.
    """

    of_step: Int64[np.ndarray, " steps"]
    round: Int64[np.ndarray, " stretches"]
    memory: Int64[np.ndarray, " stretches"]
    steps: Rows
    needs: Rows

    @property
    def is_copy(self) -> Bool[np.ndarray, " stretches"]:
        return self.round % 2 == 1


def stretches(streams: StreamProgram, last: Ints | None = None) -> Stretches:
    """Cut a stream program into stretches. Waits belong to the step that they delay, records to the step before them.

    Args:
        streams: the stream program.
        last: memories that come last in each round, such as that of the host, whose thread launches the others' work.

    Raises:
        RaceError: lanes wait for each other, or an event is recorded twice or never.

    Examples:
        >>> from gst.lowering.plan import example
        >>> stretches(example()).of_step.tolist()  # x is made on the host, copied, and y made of it
        [0, 0, 1, 1, 1, 2, 3, 3, 3]
    """
    lane, order = streams.lane_of_step, np.argsort(happens_before(streams).when, kind="stable")
    memory = streams.lane_memory[lane]
    records = np.flatnonzero(streams.kind == RECORD)
    recorder = np.full(streams.num_events, -1)
    recorder[streams.argument[records]] = records
    awaited = np.full(streams.num_steps, -1)
    is_wait = streams.kind == WAIT
    awaited[is_wait] = recorder[streams.argument[is_wait]]
    before = np.arange(streams.num_steps) - 1
    before[streams.bounds[:-1][np.diff(streams.bounds) > 0]] = -1
    turn = _rounds(order, before, awaited, _parity(streams), memory)
    goes_last = np.zeros(len(streams.memories), np.int64)
    if last is not None:
        goes_last[last] = 1
    key = np.stack([turn, goes_last[memory], memory])
    kinds, of_step = np.unique(key, axis=1, return_inverse=True)
    of_step = of_step.reshape(-1).astype(np.int64)
    count = kinds.shape[1]
    pairs = np.stack([np.tile(of_step, 2), of_step[np.concatenate([before, awaited])]])
    pairs = pairs[:, (np.concatenate([before, awaited]) >= 0) & (pairs[0] != pairs[1])]
    needs = np.unique(pairs, axis=1) if pairs.size else pairs
    return Stretches(of_step, kinds[0], kinds[2], rows(of_step[order], order, count), rows(needs[0], needs[1], count))


def _parity(streams: StreamProgram) -> Ints:
    """Return 1 for copies, their waits and their records; 0 for all other steps."""
    index, lane = np.arange(streams.num_steps), streams.lane_of_step
    is_action = (streams.kind != WAIT) & (streams.kind != RECORD)
    copies = (streams.kind == COPY).astype(np.int64)
    first, last = streams.bounds[:-1][lane], streams.bounds[1:][lane]
    previous = np.maximum.accumulate(np.where(is_action, index, -1))
    following = np.minimum.accumulate(np.where(is_action, index, streams.num_steps)[::-1])[::-1]
    padded = np.append(copies, 0)
    behind = np.where(previous >= first, padded[previous], 0)
    ahead = np.where(following < last, padded[following], 0)
    return np.where(streams.kind == RECORD, behind, np.where(streams.kind == WAIT, ahead, copies))


@compiled
@no_type_check
def _rounds(order, before, awaited, parity, memory):
    """Return the first round of its parity for each step in which its needs are done: the step before it on its lane,
    and the record that it waits for; -1 for none. `order` is one in which the steps can happen."""
    turn = np.zeros(len(order), np.int64)
    for step in order:
        least = parity[step]
        if before[step] >= 0:
            least = max(least, turn[before[step]])
        if awaited[step] >= 0:
            record = awaited[step]
            least = max(least, turn[record] + (memory[record] != memory[step]))
        turn[step] = least + (least - parity[step]) % 2
    return turn


def inner_steps(streams: StreamProgram, cut: Stretches, stretch: int) -> Ints:
    """Return the steps of a stretch without waits for other stretches, and without records for which only others
    wait."""
    _, steps = cut.steps.of(np.array([stretch]))
    kind, event = streams.kind[steps], streams.argument[steps]
    inner = np.intersect1d(event[kind == RECORD], event[kind == WAIT])
    return steps[((kind != RECORD) & (kind != WAIT)) | np.isin(event, inner)]
