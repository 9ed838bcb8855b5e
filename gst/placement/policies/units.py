"""What a policy decides about as one, and what it is told of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64

from gst.lowering.plan import Plan
from gst.placement.baselines.units import in_order, unit_times_us
from gst.placement.task import Task
from gst.programs.features import FEATURE_NAMES

DIMENSIONS = [FEATURE_NAMES.index(f"log_dim_{axis}") for axis in range(4)]


@dataclass(frozen=True, eq=False)
class PolicyUnits:
    """Operations that are placed as one, numbered in the order of the first that computes anything.

    Args:
        of_node: unit of each node.
        kinds: how many operations of each kind that occurs are in each unit.
        sizes: sums over the operations of each unit: bytes of outputs, then, of a captured program, the first four
            dimensions of outputs, else the microseconds that each takes on its fastest device.
        edges: producer -> consumer between different units, each pair once.
        times_us: of all operations of a unit on each device; infinite where one of them cannot run.
    """

    of_node: Int64[np.ndarray, " nodes"]
    kinds: Float32[np.ndarray, "units kinds"]
    sizes: Float32[np.ndarray, "units sizes"]
    edges: Int64[np.ndarray, "2 edges"]
    times_us: Float64[np.ndarray, "devices units"]

    @property
    def count(self) -> int:
        return len(self.kinds)

    @property
    def able(self) -> Bool[np.ndarray, "devices units"]:
        return np.isfinite(self.times_us)

    @staticmethod
    def of_task(task: Task, most: int | None = None) -> PolicyUnits:
        """The colocation groups of a task, merged into no more than `most` (see `merged`)."""
        unit = in_order(task, task.colocation)
        unit = unit if most is None else merged(task, unit, most)
        count = int(unit.max()) + 1
        present, kind = np.unique(task.graph.opcodes, return_inverse=True)
        kinds = np.zeros((count, len(present)), np.float32)
        np.add.at(kinds, (unit, kind.reshape(-1)), 1)
        sizes = np.stack([np.bincount(unit, column, count) for column in _sizes(task)], axis=1).astype(np.float32)
        return PolicyUnits(unit, kinds, sizes, between(task.costs.edges, unit), unit_times_us(task, unit))

    def plan(self, task: Task, devices: Int64[np.ndarray, " units"]) -> Plan:
        """The plan that puts each unit on its device; one that cannot run there goes where it is fastest, which is
        what TensorFlow, on which the published policies ran, calls soft placement."""
        able = self.able[devices, np.arange(self.count)]
        return task.plan(np.where(able, devices, self.times_us.argmin(0))[self.of_node])


def merged(task: Task, unit: Int64[np.ndarray, " nodes"], most: int) -> Int64[np.ndarray, " nodes"]:
    """At most `most` units made of smaller ones.

    As Mirhoseini et al. (ICML 2017) do, a unit whose values only one other unit reads is joined with that one, and so
    on with what comes of it; those that take the least time go first, and no more of them than necessary. Where that
    is not enough, the order of the units is cut into at most `most` stretches, the longest of which takes as little as
    possible.
    """
    while (count := int(unit.max()) + 1) > most:
        joined = _joined_with_sole_readers(task, unit, count - most)
        if int(joined.max()) + 1 == count:
            return in_order(task, _stretches(_fastest(unit_times_us(task, unit)), most)[unit])
        unit = in_order(task, joined)
    return unit


def between(edges: Int64[np.ndarray, "2 edges"], unit: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, "2 pairs"]:
    """Edges between different units, each pair once."""
    pairs = unit[edges]
    pairs = pairs[:, pairs[0] != pairs[1]]
    count = int(unit.max()) + 1
    return np.stack(np.divmod(np.unique(pairs[0] * count + pairs[1]), count)).astype(np.int64)


def _joined_with_sole_readers(task: Task, unit: Int64[np.ndarray, " nodes"], many: int) -> Int64[np.ndarray, " nodes"]:
    """Join up to `many` units with the only one that reads them, in the order of what they take."""
    edges, count = between(task.costs.edges, unit), int(unit.max()) + 1
    sole = np.bincount(edges[0], minlength=count)[edges[0]] == 1
    reader = dict(zip(edges[0, sole].tolist(), edges[1, sole].tolist(), strict=True))
    took = _fastest(unit_times_us(task, unit))
    parent = list(range(count))

    def root(each: int) -> int:
        while parent[each] != each:
            parent[each] = parent[parent[each]]
            each = parent[each]
        return each

    for each in sorted(reader, key=lambda each: took[each]):
        if many and root(each) != root(reader[each]):
            parent[root(each)] = root(reader[each])
            many -= 1
    return np.unique([root(each) for each in range(count)], return_inverse=True)[1].reshape(-1)[unit]


def _stretches(took_us: Float64[np.ndarray, " units"], most: int) -> Int64[np.ndarray, " units"]:
    """Cut a sequence into at most `most` stretches by the least limit, to a millionth of the whole, that stretches need
    not exceed when each is filled before the next is begun."""
    low, high = 0.0, float(took_us.sum()) * (1 + 1e-9)  # sums differ in their last digits
    while high - low > 1e-6 * took_us.sum():
        middle = (low + high) / 2
        low, high = (low, middle) if _filled(took_us, middle)[-1] < most else (middle, high)
    return _filled(took_us, high)


def _filled(took_us: Float64[np.ndarray, " units"], limit_us: float) -> Int64[np.ndarray, " units"]:
    """Number of the stretch of each unit; what takes longer than the limit alone is a stretch of its own."""
    number, filled, stretch = 0, 0.0, np.zeros(len(took_us), np.int64)
    for position, each in enumerate(took_us.tolist()):
        if filled and filled + each > limit_us:
            number, filled = number + 1, 0.0
        filled += each
        stretch[position] = number
    return stretch


def _sizes(task: Task) -> list[np.ndarray]:
    """Columns that `PolicyUnits.sizes` sums up."""
    if task.program is None:
        return [task.costs.output_bytes, _fastest(task.times_us)]
    return [task.costs.output_bytes, *np.expm1(task.graph.node_features[:, DIMENSIONS].astype(np.float64)).T]


def _fastest(times_us: Float64[np.ndarray, "devices columns"]) -> Float64[np.ndarray, " columns"]:
    """Of the devices that can run it; 0 where none can."""
    least = times_us.min(0)
    return np.where(np.isfinite(least), least, 0.0)
