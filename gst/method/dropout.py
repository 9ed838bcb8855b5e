"""Stale Embedding Dropout: how much each segment of a graph weighs in one training step."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def segment_weights(
    fresh: Bool[Tensor, " segments"],
    inclusion: Float[Tensor, " segments"],
    is_known: Bool[Tensor, "segments configs"],
    kept: Bool[Tensor, " segments"],
    keep_probability: float,
) -> Float[Tensor, "segments configs"]:
    """Weights of the J segments of one graph, S of them fresh (Cao et al. 2023, section 3.3, equation 1).

    A known stale segment is kept with probability p and weight 1; a known fresh one weighs p + (1 - p) / q, where q is
    the probability with which it was chosen (S / J where all are equally likely). An unknown segment (nothing was ever
    computed for it under this configuration) counts only while it is fresh, and then weighs 1 / q. So the expected
    weight of every segment is 1.

    Args:
        fresh: the segments encoded with gradient in this step.
        inclusion: q of each segment, > 0.
        is_known: whether something can stand in for the segment when it is stale.
        kept: which segments Stale Embedding Dropout keeps if they are stale: `gst.method.sampling.choose_kept`.
        keep_probability: p, in [0, 1].
    """
    scale = inclusion.reciprocal()[:, None]
    when_fresh = torch.where(is_known, keep_probability + (1 - keep_probability) * scale, scale)
    when_stale = (is_known & kept[:, None]).to(when_fresh.dtype)
    return torch.where(fresh[:, None], when_fresh, when_stale)
