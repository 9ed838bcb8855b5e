"""What a plan with fusion costs in simulation: a group of operations as one operation of the roofline.

The roofline knows nothing of registers and caches: that a group pays as much as it says holds for element-wise
operations (`gst.devices.pointwise_chains`), and is hopeful for products of matrices and sums.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Float64, Int64

from gst.devices import Plan
from gst.placement.fusion.contraction import Contraction, contract
from gst.placement.machines import VIEW_US, Machine
from gst.placement.objective import SimulatedRuntime
from gst.placement.task import Task
from gst.programs import Program
from gst.programs.features import flops

REMEMBERED = 64  # sets of groups


class FusedRuntime:
    """Simulates plans on a machine of the roofline, groups of fusion included; see `gst.placement.objective.Objective`.

    A group is one operation: it takes one launch, all of its arithmetic, and of its traffic what crosses its border:
    each value from outside is read once, and those are written that others read or that the program returns. Among
    ready operations it has the greatest priority of its members. Where several values leave a group each is an item of
    it, as when it is compiled (`gst.devices.fusion`).

    A plan without groups takes as long as `SimulatedRuntime` says. NaN where that says so, and where groups are not
    legal as they stand (`gst.devices.legalise`); a group of one operation is none.

    Args:
        machine: of chips with one kind of link.
        program: what is placed there.
    """

    def __init__(self, machine: Machine, program: Program) -> None:
        self.machine, self.program = machine, program
        self.task = machine.task(program)
        self._plain = SimulatedRuntime(self.task)
        self._arithmetic = flops(program.operations)
        self._computes = np.array([not each.is_view for each in program.operations])
        self._families = families(program)
        self._remembered = lru_cache(REMEMBERED)(self._contract)

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        return np.array([self._one(plan) for plan in plans], np.float64)

    def contracted(self, plan: Plan) -> tuple[Task, Plan] | None:
        """The task in which each group of a plan is one node, and the plan for it; None if a group is not legal.

        Raises:
            ValueError: the plan has no groups, or is for another number of nodes.
        """
        found = self._find(plan)
        return None if found is None else (found.task, found.plan(plan))

    def _one(self, plan: Plan) -> float:
        if plan.fusion is None:
            return float(self._plain([plan])[0])
        found = self._find(plan)
        if found is None:
            return float("nan")
        return float(SimulatedRuntime(found.task, self._plain.check_memory)([found.plan(plan)])[0])

    def _find(self, plan: Plan) -> Contraction | None:
        if plan.fusion is None or len(plan.fusion) != self.task.num_nodes:
            raise ValueError(
                f"the plan has {'no' if plan.fusion is None else len(plan.fusion)} numbers of fusion groups, program "
                f"{self.program.name!r} has {self.task.num_nodes} nodes; make the plan again for this program"
            )
        groups = numbered(plan.fusion)
        return self._remembered(groups.tobytes()) if self._legal(groups, plan.placement) else None

    def _legal(self, groups: Int64[np.ndarray, " nodes"], placement: Int64[np.ndarray, " nodes"]) -> bool:
        """All that `legalise` asks for but that no groups wait for each other."""
        members = np.flatnonzero(groups >= 0)
        device = np.zeros(len(groups), np.int64)
        device[groups[members]] = placement[members]
        producers, readers = self._families
        return bool(
            self.task.costs.computed[members].all()
            and (device[groups[members]] == placement[members]).all()
            and (groups[producers] == groups[readers]).all()
        )

    def _contract(self, groups: bytes) -> Contraction | None:
        view_us = np.array([VIEW_US[chip.kind] for chip in self.machine.chips])
        return contract(self.task, np.frombuffer(groups, np.int64), self._times_us, view_us)

    def _times_us(
        self, group: Int64[np.ndarray, " nodes"], traffic: Float64[np.ndarray, " new_nodes"]
    ) -> Float64[np.ndarray, "devices new_nodes"]:
        """The roofline of each group; one of views alone takes what a view takes."""
        inside, size = group >= 0, len(traffic)
        arithmetic = np.bincount(group[inside], self._arithmetic[inside], size)
        computes = np.bincount(group[inside & self._computes], minlength=size) > 0
        return np.stack([chip.times_us(arithmetic, traffic, ~computes) for chip in self.machine.chips])


def numbered(fusion: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """The groups of at least two nodes as 0, 1, ... in the order of their first nodes; -1 for alone."""
    number, first, index, counts = np.unique(fusion, return_index=True, return_inverse=True, return_counts=True)
    groups = np.flatnonzero((number >= 0) & (counts >= 2))
    new = np.full(len(number), -1, np.int64)
    new[groups[np.argsort(first[groups])]] = np.arange(len(groups))
    return new[index.reshape(-1)]


def families(program: Program) -> Int64[np.ndarray, "2 pairs"]:
    """Each value that is no tensor with each of its readers, which have to be in one group with it or all alone."""
    operations = program.operations
    several = {each.producers[0] for each in operations if each.target is operator.getitem}
    several |= {node for node, each in enumerate(operations) if len(each.shapes) != 1}
    return program.graph.edges[:, np.isin(program.graph.edges[0], sorted(several))]
