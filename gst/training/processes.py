"""What several processes that train together tell each other beside gradients and rows of the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from gst.data.loader import Step
from gst.method.exchange import Peers

Entry = TypeVar("Entry")


def share_of(step: Step, peers: Peers, loss: str) -> float:
    """What to multiply the loss of a process by, so that the mean over processes is the loss of all graphs together:
    its share of the terms that the loss is a mean of, times the number of processes. An idle process has none.

    Args:
        loss: its name in `gst.cost.losses.LOSSES`.
    """
    total = _terms(peers.targets, loss)
    return 0.0 if peers.idle or not total else _terms(step.targets, loss) / total * peers.world_size


def _terms(targets: Tensor, loss: str) -> int:
    """Pairs with different targets within a graph where the loss compares pairs, else targets."""
    if loss not in ("pairwise_hinge", "diff_mat"):
        return int((~targets.isnan()).sum())
    return int((targets[:, :, None] > targets[:, None, :]).sum())


def gathered(own: Sequence[Entry]) -> list[Entry]:
    """The entries of all processes, in turns as steps were dealt out: the first of each, the second of each, ..."""
    if not (dist.is_available() and dist.is_initialized()):
        return list(own)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, list(own))
    longest = max(map(len, every))
    return [entries[place] for place in range(longest) for entries in every if place < len(entries)]
