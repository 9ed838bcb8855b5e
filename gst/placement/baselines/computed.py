"""The computed operations of a task as a problem of their own, and plans of the whole task from their placement."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64

from gst.lowering.plan import Plan, priority_of
from gst.placement.baselines.arrays import edge_lists, places, scheduled
from gst.placement.baselines.list_kernels import place_the_rest
from gst.placement.baselines.list_schedules import in_groups, task_scheduled
from gst.placement.baselines.units import limits_bytes, smallest_units
from gst.placement.task import Task


class ComputedOperations:
    """Computed operations of a task, in its smallest units. Inputs and constants follow the first operation that reads
    them.

    Attributes:
        nodes: numbers of the operations in the task.
        what: operations and devices; links never queue.
        transfers: mean microseconds to hand over the value of each operation to a different device.
    """

    def __init__(self, task: Task) -> None:
        self._task, self._all, self._units = task, task_scheduled(task), smallest_units(task)
        arrays, use = self._all.arrays, self._all.use
        self.nodes = np.flatnonzero(task.costs.computed)
        number = np.full(task.num_nodes, -1)
        number[self.nodes] = np.arange(len(self.nodes))
        edges = number[task.costs.edges]
        unit, groups = np.unique(self._units.of[self.nodes], return_inverse=True)
        apart = ~np.eye(len(use), dtype=bool)
        self.what = scheduled(
            in_groups(
                arrays._replace(
                    **edge_lists(edges[:, (edges >= 0).all(0)], len(self.nodes), by_node=True)._asdict(),
                    times=np.ascontiguousarray(arrays.times[:, self.nodes]), amounts=arrays.amounts[self.nodes],
                    limits=limits_bytes(task), file_rank=np.arange(len(self.nodes)),
                ),
                groups.astype(np.int64), self._units.load_bytes[unit],
            ),
            use,
        )  # fmt: skip
        fixed, per_byte = (arrays.fixed[apart], arrays.per_amount[apart]) if len(use) > 1 else (np.zeros(1),) * 2
        self.transfers: Float64[np.ndarray, " computed"] = fixed.mean() + per_byte.mean() * arrays.amounts[self.nodes]

    def plan(self, home: Int64[np.ndarray, " computed"], order: Int64[np.ndarray, " computed"]) -> Plan | None:
        """Return the plan of the task with this placement and order; None if the rest does not fit the memories."""
        placement, device = np.full(self._task.num_nodes, -1), np.full(self._units.count, -1)
        placement[self.nodes] = home
        device[self._units.of[self.nodes]] = home
        placed, memory = device >= 0, self._all.arrays.memory
        room = self.what.arrays.limits - np.bincount(
            memory[device[placed]], self._units.load_bytes[placed], len(self.what.arrays.limits)
        )
        every = in_groups(self._all.arrays, self._units.of, self._units.load_bytes)
        place_the_rest(placement, every, places(self._units.times_us, room, device))
        if (placement < 0).any():
            return None
        others = np.flatnonzero(~self._task.costs.computed)
        return self._task.plan(placement, priority_of(np.concatenate([others, self.nodes[order]])))
