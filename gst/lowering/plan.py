"""Plans: device, priority and fusion group of every operation; their runs; and the stream programs that they become.

A stream program holds the steps of each lane of each memory, as flat arrays. A lane is a thread or a stream of an
accelerator. Each memory has a lane for each device that computes there, and one for the copies that leave it. Lanes
wait for each other by events alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from gst.machine.devices import Device
from gst.programs import Program
from gst.util.untrusted import plain, read_json, shown
from gst.util.writing import atomic_write

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


SCHEMA = 1


NO_MEMORY = (
    "out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory", "bad_alloc",
    "alloc_failed",
)  # fmt: skip


def says_no_memory(words: str) -> bool:
    """True if the message of an error, of any library, reports that memory is short."""
    return any(each in words.lower() for each in NO_MEMORY)


class ExecutionError(RuntimeError):
    """Failure of a run of a program or plan. The executor can be used again.

    Args:
        reason: the error, or the end of the process.
        device: name of the device on which an operation failed; empty if the run failed as a whole.
        node: that operation, or -1 if the device failed before its first.

    Examples:
        >>> print(ExecutionError("IndexError: index out of range", "cpu:1", 7))
        node 7 failed on cpu:1: IndexError: index out of range
    """

    def __init__(self, reason: str, device: str = "", node: int = -1) -> None:
        super().__init__(reason, device, node)  # all of them, so that it can be pickled
        self.reason, self.device, self.node = reason, device, node

    def __str__(self) -> str:
        return f"node {self.node} failed on {self.device}: {self.reason}" if self.device else self.reason


@dataclass(frozen=True, eq=False)
class Plan:
    """A plan for one program on named devices. Frozen: a changed plan is a new plan.

    Args:
        devices: names of the devices, as `gst.machine.devices` gives them.
        placement: index into `devices` for every node of the program.
        priority: among the operations that are ready on one device, the one with the greatest number runs first;
            program order if not given.
        fusion: operations with the same number >= 0 are compiled into one; -1 = alone. None fused if not given.

    Raises:
        ValueError: lengths differ, or a node is placed on a device that is not in the list.

    Examples:
        >>> plan = Plan(("cpu:0", "cpu:1"), np.array([0, 1, 1]), priority=np.array([0, 2, 5]))
        >>> Plan.from_dict(plan.to_dict()).key == plan.key
        True
    """

    devices: tuple[str, ...]
    placement: Int64[np.ndarray, " nodes"]
    priority: Int64[np.ndarray, " nodes"] | None = None
    fusion: Int64[np.ndarray, " nodes"] | None = None

    def __post_init__(self) -> None:
        if self.placement.size and not 0 <= int(self.placement.min()) <= int(self.placement.max()) < len(self.devices):
            raise ValueError(
                f"placement uses devices {int(self.placement.min())}..{int(self.placement.max())}, "
                f"but the plan names {len(self.devices)}: {', '.join(self.devices)}"
            )
        for label in ("priority", "fusion"):
            values = getattr(self, label)
            if values is not None and values.shape != self.placement.shape:
                raise ValueError(f"{label} has shape {values.shape}, want {self.placement.shape} like placement")

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits that are equal for equal plans."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def homes(self, names: Sequence[str]) -> Int64[np.ndarray, " nodes"]:
        """Return for each node the position of its device among these names; raise ValueError if it is not there."""
        if self.devices == names:  # in searches, always
            return self.placement.astype(np.int64)
        positions = {name: position for position, name in enumerate(names)}
        if unknown := [name for name in self.devices if name not in positions]:
            raise ValueError(f"the plan uses device {unknown[0]!r}; there are {', '.join(names)}")
        return np.array([positions[name] for name in self.devices], np.int64)[self.placement]

    def to_dict(self) -> dict:
        """Return a record for JSON; `from_dict` reads it."""
        as_list = lambda values: None if values is None else values.tolist()  # noqa: E731
        arrays = {name: as_list(getattr(self, name)) for name in ("placement", "priority", "fusion")}
        return {"schema": SCHEMA, "devices": list(self.devices), **arrays}

    @staticmethod
    def from_dict(record: Any) -> Plan:
        """Read a record of `to_dict`.

        Raises:
            ValueError: it is something else, or of another version.
        """
        if not isinstance(record, dict):
            raise ValueError(f"a plan is an object, got {shown(record)}")
        if record.get("schema") != SCHEMA:
            raise ValueError(
                f"plan has schema {shown(record.get('schema'))}, this version reads {SCHEMA}; make the plan again"
            )
        devices = record.get("devices")
        if not isinstance(devices, list) or not all(isinstance(name, str) for name in devices):
            raise ValueError(f"devices of a plan are {shown(devices)}, want a list of names")
        optional = lambda key: None if record.get(key) is None else _numbers(record, key)  # noqa: E731
        return Plan(tuple(devices), _numbers(record, "placement"), optional("priority"), optional("fusion"))

    def save(self, path: Path) -> None:
        """Write `path` completely or not at all."""
        with atomic_write(path) as file:
            json.dump(self.to_dict(), file)

    @staticmethod
    def load(path: Path) -> Plan:
        """Read a file of `save`.

        Raises:
            ValueError: it is missing or no plan; the message names the file.
        """
        try:
            return Plan.from_dict(read_json(path))
        except ValueError as error:
            raise ValueError(f"{path} is no plan ({plain(error)})") from error


@dataclass(frozen=True, eq=False)
class Timeline:
    """Begin and end of each operation in a run of a plan, executed or simulated, and its device.

    Args:
        device: position of the device of each node among those of the executor or the simulator.
        begin_us, end_us: of each operation, since the start of the run; 0 for inputs and constants.
        live_bytes: bytes of intermediate values, outputs included, at its end; empty if they were not counted.
        own_bytes: the most that the operation itself took while it ran, its result included; empty likewise.
        peak_bytes: the most bytes at any moment, including those only taken while operations run; None likewise.
    """

    device: Int64[np.ndarray, " nodes"]
    begin_us: Float64[np.ndarray, " nodes"]
    end_us: Float64[np.ndarray, " nodes"]
    live_bytes: Int64[np.ndarray, " counted"] = field(default_factory=partial(np.zeros, 0, np.int64))
    own_bytes: Int64[np.ndarray, " counted"] = field(default_factory=partial(np.zeros, 0, np.int64))
    peak_bytes: int | None = None

    @property
    def makespan_us(self) -> float:
        """End of the last operation."""
        return float(self.end_us.max(initial=0.0))

    @property
    def order(self) -> Int64[np.ndarray, " nodes"]:
        """Nodes in the order in which they began; of several that began at once those that ended first."""
        return np.lexsort((self.end_us, self.begin_us))


@dataclass(frozen=True, eq=False)
class RunsInTurns:
    """Runs of several plans, which alternated.

    Args:
        runs: of each plan, in order; empty if the executor keeps no timelines.
        load: share of the cores that other processes took meanwhile, 0 .. 1.
    """

    runs: Sequence[Sequence[Timeline]]
    load: float

    def with_more(self, later: RunsInTurns) -> RunsInTurns:
        """Return these and later runs of the same plans, with the lesser load: the shortest run of each operation
        counts."""
        runs = [[*mine, *more] for mine, more in zip(self.runs, later.runs, strict=True)]
        return RunsInTurns(runs, min(self.load, later.load))


def _numbers(record: dict[str, Any], key: str) -> Int64[np.ndarray, " nodes"]:
    values = record.get(key)
    if not isinstance(values, list) or not all(type(value) is int and abs(value) < 2**63 for value in values):
        raise ValueError(f"{key} of a plan is {shown(values)}, want a list of whole numbers of 64 bits")
    return np.array(values, np.int64)


def positions_of_nodes(plan: Plan, program: Program, devices: Sequence[Device]) -> Int64[np.ndarray, " nodes"]:
    """Return for each node the position of its device in `devices`.

    Raises:
        ValueError: the plan has another number of nodes than the program, or names a device not in `devices`.
    """
    if len(plan.placement) != program.num_nodes:
        raise ValueError(
            f"the plan places {len(plan.placement)} nodes, program {program.name!r} has {program.num_nodes}; "
            "make the plan again for this program"
        )
    return plan.homes([device.name for device in devices])


def ranks(plan: Plan) -> Int64[np.ndarray, " nodes"]:
    """Return ranks 0 .. nodes - 1 of the nodes, distinct: of ready operations the one of least rank runs first. A
    greater priority gives a lesser rank; equal priorities keep the order of the program.

    Examples:
        >>> ranks(Plan(("cpu:0",), np.array([0, 0, 0]), priority=np.array([1, 7, 1]))).tolist()
        [1, 0, 2]
    """
    nodes = len(plan.placement)
    if plan.priority is None:
        return np.arange(nodes)
    priority = plan.priority.astype(np.int64)
    most = 2**62 // max(nodes, 1)
    if nodes and -most < priority.min() and priority.max() < most:
        order = np.argsort(np.arange(nodes) - priority * nodes)  # distinct keys need no stable sort, which is slower
    else:
        order = np.argsort(~priority, kind="stable")
    return inverse(order)


def priority_of(order: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Return `Plan.priority` of an order of all nodes: the first gets the greatest number, the last 0.

    Examples:
        >>> priority_of(np.array([2, 0, 1])).tolist()
        [1, 0, 2]
    """
    return inverse(order[::-1])


def in_order_of(plan: Plan, run: Timeline) -> Plan:
    """Return the plan whose priorities are the order in which operations began in a run of it.

    Examples:
        >>> plan = Plan(("cpu:0",), np.array([0, 0, 0]))
        >>> run = Timeline(plan.placement, np.array([0.0, 7.0, 5.0]), np.array([5.0, 9.0, 7.0]))
        >>> ranks(in_order_of(plan, run)).tolist()
        [0, 2, 1]
    """
    return replace(plan, priority=priority_of(run.order))


def contracted_plan(plan: Plan, node_of: Int64[np.ndarray, " nodes"], origin: Int64[np.ndarray, " new_nodes"]) -> Plan:
    """Return the plan of a program in which several nodes of one device became one (`gst.lowering.fusion.Rewritten`):
    it runs where they did, with the greatest of their priorities, and fuses nothing more."""
    priority = None
    if plan.priority is not None:
        greatest = np.full(len(origin), np.iinfo(np.int64).min)
        np.maximum.at(greatest, node_of, plan.priority)
        priority = greatest[node_of[origin]]
    return Plan(plan.devices, plan.placement[origin], priority)
