"""Small changes of plans, and mixtures of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from gst.devices import Plan
from gst.placement.task import Task


def mutate(task: Task, plan: Plan, generator: np.random.Generator) -> Plan:
    """A neighbour of `plan`: a stretch of the program, or a few groups, go to another device; priorities stay.

    Nodes that the device cannot run stay where they are. Where colocation is a constraint (costs without a program)
    groups stay whole: a stretch takes along the groups that it touches.
    """
    device = int(generator.integers(len(task.devices)))
    moved = np.zeros(task.num_nodes, bool)
    if generator.random() < 0.5:
        length = int(np.exp(generator.uniform(0, np.log(max(task.num_nodes / 2, 1)))))
        start = int(generator.integers(task.num_nodes - length + 1))
        moved[start : start + length] = True
        if task.program is None:
            moved = _of_groups(task, moved)
    else:
        chosen = np.zeros(task.num_groups, bool)
        chosen[generator.integers(len(chosen), size=int(generator.integers(1, 9)))] = True
        moved = chosen[task.colocation]
    unable = np.isinf(task.times_us[device])
    if unable.any():
        moved &= ~(_of_groups(task, unable) if task.program is None else unable)
    return task.plan(np.where(moved, device, plan.placement), plan.priority)


def crossover(task: Task, plans: Sequence[Plan], generator: np.random.Generator) -> Plan:
    """The beginning of one plan and the end of another, with the priorities of the first. Where colocation is a
    constraint a group goes with its first node."""
    first, second = generator.choice(len(plans), 2)
    early = np.arange(task.num_nodes) < generator.integers(task.num_nodes)
    if task.program is None:
        early = _of_groups(task, early)
    return task.plan(np.where(early, plans[first].placement, plans[second].placement), plans[first].priority)


def _of_groups(task: Task, nodes: Bool[np.ndarray, " nodes"]) -> Bool[np.ndarray, " nodes"]:
    """All nodes of the colocation groups of which one is among `nodes`."""
    touched = np.zeros(task.num_groups, bool)
    touched[task.colocation[nodes]] = True
    return touched[task.colocation]
