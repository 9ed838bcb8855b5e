"""Estimates of Graph Segment Training: weights of fresh embeddings and of rows in the pooled embedding of a graph.

With h_j the embedding of segment j now, x_j its row and q_j its probability to be fresh, the difference estimator
sum_j x_j + sum_{j fresh} (h_j - x_j) / q_j has no bias (Saerndal et al., Model Assisted Survey Sampling, 1992,
chapters 3 and 6) and the variance sum_j (1 - q_j) / q_j |h_j - x_j|^2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from gst.method.regression import TINY, RowRegression

MAXIMA = ("max", "softmax")  # readouts that no correction, which may be negative, can be added to


@dataclass(frozen=True, eq=False)
class Sample:
    """Everything that may decide the weights of a step. Padding, if there is any, has no nodes and no rows.

    Args:
        is_fresh: True for segments that are encoded with gradient.
        inclusion: probability of each segment to be one of them.
        is_kept: True for segments that Stale Embedding Dropout keeps, with `keep_probability`.
        ages: steps since each row was written; -1 without a row.
        graph, node_counts: graph of each segment, and number of its nodes.
        graph_node_counts: nodes of each graph.
        learned: made by `Estimate.learns`: the learned map of rows.
    """

    is_fresh: Bool[Tensor, " segments"]
    inclusion: Float[Tensor, " segments"]
    is_kept: Bool[Tensor, " segments"]
    ages: Int64[Tensor, "segments configs"]
    graph: Int64[Tensor, " segments"]
    node_counts: Int64[Tensor, " segments"]
    graph_node_counts: Int64[Tensor, " graphs"]
    keep_probability: float = 1.0
    learned: Any = None

    @property
    def is_known(self) -> Bool[Tensor, "segments configs"]:
        """True for pairs of a segment and a configuration that have a row."""
        return self.ages >= 0

    @property
    def inverse(self) -> Float[Tensor, "segments 1"]:
        """1 / q of fresh segments, 0 of others."""
        return (self.is_fresh / self.inclusion)[:, None]


class Weights(NamedTuple):
    """Weights of a step, each `(segments, configs)` or `(segments, 1)`.

    Args:
        fresh: of the embeddings of fresh segments; 0 for others.
        stale: of rows.
        gradient: of the gradients of fresh embeddings; None stands for `fresh`.
    """

    fresh: Float[Tensor, "segments configs"]
    stale: Float[Tensor, "segments configs"]
    gradient: Float[Tensor, "segments configs"] | None = None


@dataclass(frozen=True, eq=False)
class Estimate:
    """A rule for the pooled embedding of a graph. Put it into `ESTIMATES`, or give it to `GraphSegmentTraining`.

    Args:
        name: key in `ESTIMATES`.
        words: what it does with rows, for help texts.
        weights: weights of a step. They are computed on the host, and in padded steps on the device of the model.
        reads: rows that may have a weight: `kept` are those that dropout keeps. With `all`, configurations that give a
            segment the same features share its row.
        fills: segments without a row take the mean of their rows under other configurations, else that of their
            graph. Without it their weight is 0.
        learns: makes the learned map that is applied to rows before they are summed, such as `RowRegression`.
        fixed_shapes: the weights come from operations whose shapes depend on no values, so that steps can be padded
            and recorded. Padded steps refuse an estimate that does not declare it.
        is_unbiased: the expectation over all draws is that of all segments, however old the rows are.

    Examples:
        >>> def by_age(sample):  # rows correct the sum less, the older they are
        ...     trust = 0.9**sample.ages * sample.is_known
        ...     return Weights(sample.inverse, trust * (1 - sample.inverse))
        >>> ESTIMATES["by_age"] = Estimate("by_age", "rows trusted by their age", by_age, is_unbiased=True)
        >>> del ESTIMATES["by_age"]
    """

    name: str
    words: str
    weights: Callable[[Sample], Weights]
    reads: Literal["nothing", "kept", "all"] = "all"
    fills: bool = False
    learns: Callable[[], Any] | None = None
    fixed_shapes: bool = False
    is_unbiased: bool = False


def fresh_weights(sample: Sample) -> Weights:
    """Return 1 / q for fresh segments and nothing for rows."""
    return Weights(sample.inverse, torch.zeros_like(sample.inverse))


def dropout_weights(sample: Sample) -> Weights:
    """Return the weights of Stale Embedding Dropout (Cao et al. 2023, section 3.3, equation 1) for J segments, S fresh.

    A known stale segment is kept with probability p and weight 1; a known fresh one weighs p + (1 - p) / q, where q is
    its `inclusion` (S / J for uniform draws). An unknown segment, one without a row, counts only while it is fresh,
    and weighs 1 / q. So the expected weight of every segment is 1. The estimate has no bias if rows are what the
    encoder would compute now, and with p = 0 whatever the rows are.

    Examples:
        >>> fresh, kept, two = torch.tensor([True, False]), torch.tensor([False, True]), torch.tensor([4, 4])
        >>> sample = Sample(fresh, torch.full((2,), 0.5), kept, torch.ones(2, 1).long(), two * 0, two, two[:1] * 2, 0.5)
        >>> [each.flatten().tolist() for each in dropout_weights(sample)[:2]]
        [[1.5, 0.0], [0.0, 1.0]]
    """
    scale, p = sample.inclusion.reciprocal()[:, None], sample.keep_probability
    when_fresh = torch.where(sample.is_known, p + (1 - p) * scale, scale)
    stale = (sample.is_known & (sample.is_kept & ~sample.is_fresh)[:, None]).to(when_fresh.dtype)
    return Weights(when_fresh * sample.is_fresh[:, None], stale)


def difference_weights(sample: Sample) -> Weights:
    """Return 1 / q for fresh segments, 1 for rows, and 1 - 1 / q for rows of fresh segments."""
    return Weights(sample.inverse, 1 - sample.inverse)


def composite_weights(sample: Sample) -> Weights:
    """Return 1 + kappa (1 / q - 1) for fresh segments, and for rows what is left to 1. Gradients weigh 1 / q.

    kappa = S rho / (1 + (S - 1) rho) (Battese, Harter and Fuller, JASA 83, 1988), and 1 in a graph without any row. rho
    is the share of the variance of residuals h_j - f(x_j) that segments of a graph have in common, f the learned map.
    """
    common, zeros = sample.learned.common, torch.zeros(len(sample.graph_node_counts), dtype=torch.float64)
    number = zeros.index_add(0, sample.graph, sample.is_fresh.double())
    has_rows = zeros.index_add(0, sample.graph, sample.is_known.any(1).double()) > 0
    kappa = torch.where(has_rows, number * common / (1 + (number - 1) * common).clamp(min=TINY), 1.0)
    value = sample.is_fresh[:, None] * (1 + kappa[sample.graph][:, None] * (sample.inverse - 1))
    return Weights(value, 1 - value, sample.inverse)


ESTIMATES: dict[str, Estimate] = {
    each.name: each
    for each in (
        Estimate(
            "fresh", "other segments are left out", fresh_weights, reads="nothing", fixed_shapes=True, is_unbiased=True,
        ),
        Estimate("dropout", "each row is kept with keep_probability", dropout_weights, reads="kept", fixed_shapes=True),
        Estimate(
            "difference", "all rows, their sum corrected by the fresh segments", difference_weights, fills=True,
            fixed_shapes=True, is_unbiased=True,
        ),
        Estimate(
            "composite", "all rows under a learned map, their sum corrected as far as errors are shared",
            composite_weights, fills=True, learns=RowRegression,
        ),
    )
}  # fmt: skip
"""All estimates by name; add your own at any time."""


def checked_estimate(
    pooling: str, num_fresh: int, keep_probability: float, has_table: bool, estimate: str | Estimate
) -> Estimate:
    """Return the estimate of a name, `auto` among them, or the given one.

    Raises:
        ValueError: a setting of `GraphSegmentTraining` is out of range, or two of them exclude each other.

    Examples:
        >>> checked_estimate("mean", 1, 1.0, True, "auto").name
        'difference'
    """
    if not isinstance(num_fresh, int | np.integer):
        raise ValueError(f"num_fresh is {num_fresh!r}; want a whole number of segments, from 1")
    if num_fresh < 1:
        raise ValueError(f"num_fresh is {num_fresh}; a step needs at least one fresh segment per graph")
    if not 0.0 <= keep_probability <= 1.0:
        raise ValueError(f"keep_probability is {keep_probability}; it is a probability, from 0 to 1")
    if estimate == "auto":
        corrects = has_table and keep_probability == 1 and pooling not in MAXIMA
        estimate = "difference" if corrects else "dropout"
    if isinstance(estimate, str):
        if estimate not in ESTIMATES:
            raise ValueError(f"estimate is {estimate!r}; use one of auto, {', '.join(ESTIMATES)}")
        estimate = ESTIMATES[estimate]
    name = estimate.name
    if estimate.reads == "nothing" and has_table:
        raise ValueError(f"estimate={name!r} leaves out what the table would give; use one of the two")
    if estimate.reads == "all" and keep_probability < 1:
        raise ValueError(f"keep_probability is {keep_probability}; estimate={name!r} uses all rows: leave it 1")
    if estimate.fills and pooling in MAXIMA:
        raise ValueError(f"estimate={name!r} corrects a sum, and pooling={pooling!r} is none; use 'sum' or 'mean'")
    return estimate
