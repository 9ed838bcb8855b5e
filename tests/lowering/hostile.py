"""Hostile interpreter of stream programs: a program and inputs -> outputs, under all the bad luck that events allow.

Lanes are threads that sleep at random, so that whatever no event orders happens in one order or the other. Each memory
is a table of its own: a value that was not written there, or was freed, is an error to touch. A buffer is overwritten
with NaN when the last value in it is freed, so that whoever still reads it computes nonsense. What tensors share a
buffer is seen from the tensors themselves, not from the program that is tested.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gst.lowering.calls import Call, bind, copied, eager, laid_out
from gst.lowering.plan import ExecutionError
from gst.lowering.race_check import Checked, check
from gst.lowering.stream_program import COPY, RECORD, RUN, WAIT, StreamProgram
from gst.programs import Program, Reference, outputs_differ

LAZINESS = (0.0, 0.01, 0.1)  # shares of its steps before which a lane sleeps; each lane draws one
LONGEST_MS = 1.0  # such a sleep
LATEST_MS = 5.0  # start of a lane
PATIENCE_S = 60.0  # for which a lane waits for an event


def verify(program: Program, streams: StreamProgram, runs: int = 3) -> Checked:
    """Check a stream program for races, run it by the hostile interpreter `runs` times, each with delays of its own,
    and compare outputs with those of the program run in order, and bytes with those proven.

    Raises:
        RaceError: two steps race, or lanes wait for ever.
        ExecutionError: a run fails, its outputs differ, or it takes more memory than proven.
    """
    checked = check(streams)
    want = eager(program)
    for number in range(runs):
        run = hostile_run(program, streams, number)
        if difference := outputs_differ(run.outputs, want):
            raise ExecutionError(f"hostile run of seed {number}: {difference}")
        for memory, most in run.most_bytes.items():
            if most > checked.peak_bytes[memory]:
                raise ExecutionError(
                    f"hostile run of seed {number}: {memory} held {most} bytes, proven {checked.peak_bytes[memory]}"
                )
    return checked


@dataclass(frozen=True)
class HostileRun:
    """Flat outputs of a run, and for each memory the most bytes that values which the run made took at once."""

    outputs: list[Any]
    most_bytes: dict[str, int]


def hostile_run(
    program: Program, streams: StreamProgram, seed: int, inputs: Sequence[Tensor] | None = None
) -> HostileRun:
    """Run a stream program once, one thread for each lane; inputs are not changed, and `seed` is of the delays.

    Raises:
        ValueError: the inputs do not fit the program.
        ExecutionError: a step touches what is not there, an operation fails, or a lane waits too long.
    """
    values = [laid_out(v, like) for v, like in zip(program.check_inputs(inputs), program.inputs, strict=True)]
    fixed = [*values, *(each.constant for each in program.operations[len(values) :])]
    memories = [Memory(name) for name in streams.memories]
    for node, memory in streams.residents.T.tolist():
        memories[memory].write(node, _copy(fixed[node]), forever=True)
    run = _Run(streams, bind(program, torch.device("cpu")), memories)
    with _one_thread():
        threads = [
            threading.Thread(target=run.lane, args=(lane, random.Random(f"{seed} {lane}")), daemon=True)
            for lane in range(len(streams.lanes))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if run.errors:
        raise run.errors[0]
    where = dict(streams.results.T.tolist())
    outputs = [
        memories[where[each.node]].read(each.node) if isinstance(each, Reference) else each for each in program.outputs
    ]
    return HostileRun(outputs, {memory.name: memory.most_bytes for memory in memories})


class Memory:
    """Values of nodes in one memory; buffers are overwritten when their last value is freed.

    Attributes:
        most_bytes: that the buffers of values took at once, those that are there forever left out.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._values: dict[int, Any] = {}
        self._holders: Counter[int] = Counter()  # values in each buffer, by its address
        self._lock = threading.Lock()
        self._bytes = 0
        self.most_bytes = 0

    def read(self, node: int) -> Any:
        """The value of a node.

        Raises:
            LookupError: it was never written here, or was freed.
        """
        if node not in self._values:
            raise LookupError(f"value {node} is not in {self.name}: it was not copied there, not made yet, or freed")
        return self._values[node]

    def write(self, node: int, value: Any, forever: bool = False) -> None:
        """Put a value there; its buffers are never overwritten if it stays `forever`."""
        with self._lock:
            if node in self._values:
                raise LookupError(f"value {node} is in {self.name} already")
            self._values[node] = value
            for tensor in _tensors(value):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._holders and not forever:
                    self._bytes += storage.nbytes()
                self._holders[storage._cdata] += 1 + forever
            self.most_bytes = max(self.most_bytes, self._bytes)

    def free(self, node: int) -> None:
        """Forget a value, and overwrite its buffers with NaN where no other value lies in them."""
        self.read(node)
        with self._lock:
            for tensor in _tensors(self._values.pop(node)):
                storage = tensor.untyped_storage()
                self._holders[storage._cdata] -= 1
                if not self._holders[storage._cdata]:
                    del self._holders[storage._cdata]
                    self._bytes -= storage.nbytes()
                    _overwrite(tensor)


class _Desk:
    """Values that a running group reads: those of its memory, and those that it made itself."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.made: dict[int, Any] = {}

    def __getitem__(self, node: int) -> Any:
        return self.made[node] if node in self.made else self.memory.read(node)


class _Run:
    """State that the streams of one run share."""

    def __init__(self, streams: StreamProgram, calls: Sequence[Call | None], memories: Sequence[Memory]) -> None:
        self.streams, self.calls, self.memories = streams, calls, memories
        self.members, self.writes = streams.members.lists(), streams.writes.lists()
        self.events = [threading.Event() for _ in range(streams.num_events)]
        self.errors: list[ExecutionError] = []

    def lane(self, lane: int, luck: random.Random) -> None:
        """Take all steps of a lane, or stop when another lane has failed."""
        torch.set_num_threads(1)
        streams, laziness = self.streams, luck.choice(LAZINESS)
        begin, end = streams.bounds[lane : lane + 2].tolist()
        memory = self.memories[streams.lane_memory[lane]]
        columns = (streams.kind, streams.argument, streams.target)
        time.sleep(luck.random() * LATEST_MS / 1e3)
        with torch.no_grad():
            for step, kind, argument, target in zip(
                range(begin, end), *(each[begin:end].tolist() for each in columns), strict=True
            ):
                if luck.random() < laziness:
                    time.sleep(luck.random() * LONGEST_MS / 1e3)
                try:
                    self._take(memory, kind, argument, target)
                except Exception as error:
                    reason = f"{streams.place_words(step)}: {type(error).__name__}: {error}"
                    self.errors.append(ExecutionError(reason))
                if self.errors:
                    return

    def _take(self, memory: Memory, kind: int, argument: int, target: int) -> None:
        if kind == RUN:
            desk = _Desk(memory)
            for node in self.members[argument]:
                call = self.calls[node]
                assert call is not None, f"node {node} is no operation"
                desk.made[node] = call(desk)  # type: ignore[arg-type]
            for node in self.writes[argument]:
                memory.write(node, desk.made[node])
        elif kind == COPY:
            self.memories[target].write(argument, _copy(memory.read(argument)))
        elif kind == RECORD:
            self.events[argument].set()
        elif kind == WAIT:
            until = time.monotonic() + PATIENCE_S
            while not self.events[argument].wait(0.05):
                if self.errors:
                    return
                if time.monotonic() > until:
                    raise TimeoutError(f"nobody recorded event {argument} for {PATIENCE_S:g} s")
        else:
            memory.free(argument)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run a block on one thread, and restore the thread count afterwards, which later threads would start from."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _copy(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_copy(each) for each in value]
    return copied(value, value.device) if isinstance(value, Tensor) else value


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for each in value for tensor in _tensors(each)] if isinstance(value, list | tuple) else []


def _overwrite(tensor: Tensor) -> None:
    """Fill the whole buffer of a tensor with NaN; with the greatest number, or true, where there is no NaN."""
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (storage.nbytes() // tensor.element_size(),))  # type: ignore[call-overload]
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        whole.fill_(float("nan"))
    else:
        whole.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max)
