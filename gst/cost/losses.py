"""Losses over the configurations of each graph. The higher a score, the longer the runtime. NaN targets are padding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

Scores = Float[Tensor, "graphs configs"]
Loss = Callable[[Tensor, Scores], Float[Tensor, ""]]


def pairwise_hinge(scores: Scores, targets: Scores, margin: float = 1.0) -> Float[Tensor, ""]:
    """Mean of max(0, margin - (s_i - s_j)) over the pairs of one graph with y_i > y_j (TpuGraphs, section 4.1)."""
    slower = targets[:, :, None] > targets[:, None, :]  # False where either is NaN
    gaps = scores[:, :, None] - scores[:, None, :]
    return (margin - gaps).clamp(min=0)[slower].sum() / slower.sum().clamp(min=1)


def list_mle(scores: Scores, targets: Scores) -> Float[Tensor, ""]:
    """Negative log likelihood of the true order, fastest first, under Plackett-Luce (Xia et al. 2008), per
    configuration. Fast is good there, so the scores enter with a minus."""
    order = torch.where(targets.isnan(), torch.inf, targets).argsort(dim=1, stable=True)
    present = ~targets.isnan().gather(1, order)
    goodness = torch.where(present, -scores.gather(1, order), torch.finfo(scores.dtype).min / 4)
    rest = goodness.flip(1).logcumsumexp(1).flip(1)  # log sum over this one and all slower ones
    return torch.where(present, rest - goodness, 0.0).sum() / present.sum().clamp(min=1)


def log_runtime(scores: Scores, targets: Scores) -> Float[Tensor, ""]:
    """Mean squared error of scores against the logarithm of the targets."""
    present = ~targets.isnan()
    if bool((targets[present] <= 0).any()):
        raise ValueError("log_runtime needs positive targets; rank with pairwise_hinge or list_mle instead")
    return (scores[present] - targets[present].log().to(scores.dtype)).square().sum() / present.sum().clamp(min=1)


def squared_error(scores: Scores, targets: Scores) -> Float[Tensor, ""]:
    """Mean squared error of scores against the targets themselves."""
    present = ~targets.isnan()
    return (scores[present] - targets[present].to(scores.dtype)).square().sum() / present.sum().clamp(min=1)


def cross_entropy(scores: Float[Tensor, "graphs configs classes"], targets: Scores) -> Float[Tensor, ""]:
    """Mean negative log likelihood of the classes that the targets number from 0."""
    present = ~targets.isnan()
    return nn.functional.cross_entropy(scores[present], targets[present].long())


LOSSES: dict[str, Loss] = {
    "pairwise_hinge": pairwise_hinge,
    "list_mle": list_mle,
    "log_runtime": log_runtime,
    "squared_error": squared_error,
    "cross_entropy": cross_entropy,
}
