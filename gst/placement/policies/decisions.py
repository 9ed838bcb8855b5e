"""Decisions of a policy: drawn from its log probabilities, turned into plans, and read back from plans."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gst.lowering.fusion import legalise
from gst.lowering.plan import Plan
from gst.placement.policies.inputs import PolicyInputs
from gst.placement.task import Task

LEVELS = 8
"""Levels of priority, one of which a schedule decides for each group; the greatest runs first."""

LogProbabilities = Mapping[str, Float[Tensor, "units actions"]]
"""Log probabilities of the actions of each task: `placement`, the devices of groups; `schedule`, the levels of groups;
`fusion`, 1 for each node that is fused with its first producer."""

Decisions = Mapping[str, Int64[Tensor, "plans units"]]
"""Actions of each task."""


def draw(log_probabilities: LogProbabilities, count: int, generator: torch.Generator) -> Decisions:
    """Draw the decisions of `count` plans, every unit by itself."""
    return {
        name: torch.multinomial(each.detach().exp(), count, replacement=True, generator=generator).T
        for name, each in log_probabilities.items()
    }


def plans_of(task: Task, inputs: PolicyInputs, decisions: Decisions) -> list[Plan]:
    """Turn decisions into plans.

    Every node goes where its group goes. Operations of a greater level run first, those of one level, and all of them
    without a schedule, by upward rank, as in HEFT. A node is fused with its first producer if both are on one device;
    groups of fusion are then made legal (`gst.lowering.fusion.legalise`).

    Raises:
        ValueError: fusion was decided, but there is no program whose operations could be fused.
    """
    group, longest_first = inputs.group.numpy(), np.argsort(np.argsort(inputs.upward_rank, kind="stable"))
    arrays = {name: each.numpy() for name, each in decisions.items()}
    plans = []
    for number in range(len(arrays["placement"])):
        placement = arrays["placement"][number][group]
        level = arrays["schedule"][number][group] if "schedule" in arrays else 0
        fusion = _fusion(task, inputs, placement, arrays["fusion"][number]) if "fusion" in arrays else None
        plans.append(Plan(task.names, placement, level * len(group) + longest_first, fusion))
    return plans


def _fusion(
    task: Task, inputs: PolicyInputs, placement: Int64[np.ndarray, " nodes"], fuse: Int64[np.ndarray, " nodes"]
) -> Int64[np.ndarray, " nodes"]:
    if task.program is None:
        raise ValueError(f"task {task.name!r} has no program whose operations could be fused; leave fusion out")
    producer, nodes = inputs.producer.numpy(), np.arange(task.num_nodes)
    joined = (fuse == 1) & (producer >= 0) & (placement[producer] == placement)
    root = np.where(joined, producer, nodes)
    while (root != root[root]).any():
        root = root[root]
    return legalise(task.program, root, placement)
