"""Stream programs: the steps of each lane of each memory, as flat arrays.

A lane is a thread or a stream of an accelerator. Each memory has a lane for each device that computes there, and one
for the copies that leave it. Lanes wait for each other by events alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

RUN, COPY, RECORD, WAIT, FREE = range(5)
VERBS = ("run", "copy", "record", "wait", "free")
Ints = Int64[np.ndarray, " _"]


class Rows(NamedTuple):
    """Lists of whole numbers one after the other; list i is `items[bounds[i]:bounds[i + 1]]`.

    Examples:
        >>> Rows(np.array([0, 2, 2, 3]), np.array([7, 8, 9])).lists()
        [[7, 8], [], [9]]
    """

    bounds: np.ndarray
    items: np.ndarray

    def lists(self) -> list[list[int]]:
        """Return the lists as Python's."""
        bounds, items = self.bounds.tolist(), self.items.tolist()
        return [items[begin:end] for begin, end in pairwise(bounds)]

    def of(self, keys: Ints) -> tuple[Ints, Ints]:
        """Return the items of these lists one after the other, each behind the position of its list in `keys`.

        Examples:
            >>> Rows(np.array([0, 2, 2, 3]), np.array([7, 8, 9])).of(np.array([2, 0]))
            (array([0, 1, 1]), array([9, 7, 8]))
        """
        sizes = np.diff(self.bounds)[keys]
        position = np.repeat(np.arange(len(keys)), sizes)
        offset = np.arange(len(position)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return position, self.items[self.bounds[keys][position] + offset]


def rows(keys: Ints, items: Ints, count: int) -> Rows:
    """Return the items of each key 0 .. count - 1, in their order.

    Examples:
        >>> rows(np.array([1, 0, 1]), np.array([7, 8, 9]), 3).lists()
        [[8], [7, 9], []]
    """
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(keys, minlength=count), out=bounds[1:])
    return Rows(bounds, items[np.argsort(keys, kind="stable")].astype(np.int64))


def inverse(order: Ints) -> Ints:
    """Return the place of each number in an order of all numbers 0, 1, ..."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place


@dataclass(frozen=True, eq=False)
class StreamProgram:
    """Steps of every lane in one run of a program under a plan. Frozen: a changed program is a new one.

    Args:
        memories: names of the memories.
        lanes: names of the lanes.
        lane_memory: memory of each lane.
        bounds: steps of lane i are those from `bounds[i]` to `bounds[i + 1]`, in the order in which it takes them.
        kind: of each step: `RUN`, `COPY`, `RECORD`, `WAIT` or `FREE`.
        argument: of each step: the group that it runs in the memory of its lane, the node whose value it copies from
            that memory or frees in it, or the event that it records or waits for. Each event is recorded once.
        target: of each step: the memory to which it copies; -1 for other steps.
        members: nodes of each group, in the order in which they are computed.
        reads: nodes outside each group whose values it reads.
        writes: nodes of each group whose values others read or the program returns.
        residents: pairs (node, memory) of inputs and constants that are there from the start and are never freed.
        results: pairs (node, memory) of the values that must be there at the end.
        made: pairs (node, memory) of the values that a run makes, in increasing order.
        holds: buffers in which each of `made` lies; a view lies in those of its base, several results in several.
        buffer_bytes: of each buffer. It is taken when its first value is made, and given back when its last is freed.
        transient_bytes: that each group takes while it runs, in addition to its results.
        resident_bytes: of each of `residents`.
    """

    memories: tuple[str, ...]
    lanes: tuple[str, ...]
    lane_memory: Int64[np.ndarray, " lanes"]
    bounds: Int64[np.ndarray, " bounds"]
    kind: Int64[np.ndarray, " steps"]
    argument: Int64[np.ndarray, " steps"]
    target: Int64[np.ndarray, " steps"]
    members: Rows
    reads: Rows
    writes: Rows
    residents: Int64[np.ndarray, "2 residents"]
    results: Int64[np.ndarray, "2 results"]
    made: Int64[np.ndarray, "2 values"]
    holds: Rows
    buffer_bytes: Int64[np.ndarray, " buffers"]
    transient_bytes: Int64[np.ndarray, " groups"]
    resident_bytes: Int64[np.ndarray, " residents"]

    @property
    def num_steps(self) -> int:
        return len(self.kind)

    @property
    def num_events(self) -> int:
        is_event = (self.kind == RECORD) | (self.kind == WAIT)
        return int(self.argument[is_event].max(initial=-1)) + 1

    @property
    def lane_of_step(self) -> Int64[np.ndarray, " steps"]:
        return np.repeat(np.arange(len(self.lanes)), np.diff(self.bounds))

    def step_words(self, step: int) -> str:
        """Return one step in words."""
        kind, argument = int(self.kind[step]), int(self.argument[step])
        if kind == RUN:
            _, nodes = self.members.of(np.array([argument]))
            return f"run {' + '.join(map(str, nodes.tolist()))}"
        if kind == COPY:
            return f"copy {argument} to {self.memories[self.target[step]]}"
        return f"{VERBS[kind]} {argument if kind == FREE else f'event {argument}'}"

    def place_words(self, step: int) -> str:
        """Return a step and its place: 'step 3 of cpu:0 (free 7)'."""
        lane = int(np.searchsorted(self.bounds, step, "right")) - 1
        return f"step {step - self.bounds[lane]} of {self.lanes[lane]} ({self.step_words(step)})"


def example() -> StreamProgram:
    """Return two lanes in two memories and one for copies: `x` is made of `w` on the host, copied, and `y` made of
    it."""
    numbers = lambda *values: np.array(values, np.int64)  # noqa: E731
    return StreamProgram(
        memories=("host", "gpu"), lanes=("cpu:0", "copies of host", "gpu:0"), lane_memory=numbers(0, 0, 1),
        bounds=numbers(0, 2, 6, 9), kind=numbers(RUN, RECORD, WAIT, COPY, RECORD, FREE, WAIT, RUN, FREE),
        argument=numbers(0, 0, 0, 1, 1, 1, 1, 1, 1), target=numbers(-1, -1, -1, 1, -1, -1, -1, -1, -1),
        members=Rows(numbers(0, 1, 2), numbers(1, 2)), reads=Rows(numbers(0, 1, 2), numbers(0, 1)),
        writes=Rows(numbers(0, 1, 2), numbers(1, 2)), residents=numbers(0, 0).reshape(2, 1),
        results=numbers(2, 1).reshape(2, 1), made=numbers(1, 1, 2, 0, 1, 1).reshape(2, 3),
        holds=Rows(numbers(0, 1, 2, 3), numbers(0, 1, 2)), buffer_bytes=numbers(8, 8, 8),
        transient_bytes=numbers(0, 0), resident_bytes=numbers(8),
    )  # fmt: skip
