"""Estimates of Graph Segment Training: weights of fresh embeddings and of rows in the pooled embedding of a graph.

With h_j the embedding of segment j now, x_j its row and q_j its probability to be fresh, the difference estimator
sum_j x_j + sum_{j fresh} (h_j - x_j) / q_j has no bias (Saerndal et al., Model Assisted Survey Sampling, 1992,
chapters 3 and 6) and the variance sum_j (1 - q_j) / q_j |h_j - x_j|^2. Eager, padded, recorded and distributed steps
all call `combine`; they differ in their `RowSource`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from gst.method.draws import Catalogue
from gst.method.readouts import Combination, GraphPool
from gst.method.regression import TINY, RowRegression
from gst.util.packing import sent

SUMS = ("sum", "mean")  # readouts that a correction, which may be negative, can be added to


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
        corrects = has_table and keep_probability == 1 and pooling in SUMS
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
    if estimate.fills and pooling not in SUMS:
        raise ValueError(f"estimate={name!r} corrects a sum, and pooling={pooling!r} is none; use 'sum' or 'mean'")
    return estimate


Part = tuple[Int64[Tensor, " chunk"], Float[Tensor, "chunk configs channels"]]


@runtime_checkable
class RowSource(Protocol):
    """Rows of the segments of one step.

    Attributes:
        are_of_now: True if rows are what the encoder computes now, for every segment.
    """

    are_of_now: bool = False

    def ages(self) -> Int64[Tensor, "segments configs"]:
        """Return the steps since each row was written; -1 where there is none, as at padding."""

    def parts(self, is_read: Bool[Tensor, " segments"]) -> Iterator[Part]:
        """Yield some segments at a time, at least those that are read, and their rows."""

    def summed(self, values: Float64[Tensor, " numbers"]) -> Float64[Tensor, " numbers"]:
        """Return the sum of `values` over all processes of the step."""
        return values


class RowsOfNow(RowSource):
    """Rows of a model without a table: other segments are encoded too, without gradient.

    Args:
        encode: yields segments and their embeddings, some at a time.
    """

    are_of_now = True

    def __init__(self, encode: Callable[[Tensor], Iterator[Part]], num_segments: int, num_configs: int) -> None:
        self._encode, self._shape = encode, (num_segments, num_configs)

    def ages(self) -> Int64[Tensor, "segments configs"]:
        return torch.zeros(self._shape, dtype=torch.int64)

    def parts(self, is_read: Bool[Tensor, " segments"]) -> Iterator[Part]:
        return self._encode(is_read.nonzero().squeeze(1))


def combine(
    estimate: Estimate,
    sample: Sample,
    chosen: Int64[Tensor, " fresh"],
    embedded: Float[Tensor, "fresh configs channels"],
    pooling: Combination,
    rows: RowSource | None,
) -> Float[Tensor, "graphs configs numbers"]:
    """Return the estimate of the pooled embeddings; `embedded` are the segments `chosen`. A learned map learns."""
    value, stale, gradient = estimate.weights(sample)
    is_fresh, shape = sample.is_fresh[:, None], sample.ages.shape
    if rows is not None and rows.are_of_now:  # so the row of a fresh segment is its embedding
        gradient = value if gradient is None else gradient
        value, stale = value + stale * is_fresh, stale * ~is_fresh
    fills = estimate.fills and rows is not None and not rows.are_of_now
    if gradient is not None:
        scale = torch.where(value != 0, gradient / value, 0.0).expand(shape)[chosen].to(embedded, non_blocking=True)
        embedded = embedded.detach() + (embedded - embedded.detach()) * scale[..., None]  # the values stay
    pool = GraphPool(sample.graph_node_counts.to(embedded.device, non_blocking=True), pooling)
    add_parts(pool, [(chosen, embedded)], value.expand(shape), sample.node_counts, sample.graph)
    if rows is None or estimate.reads == "nothing":
        return pool.result()
    if fills:
        return pool.result() + _filled_sum(sample, stale, chosen, embedded.detach(), pooling, rows)
    stale = torch.where(sample.is_known, stale, 0.0)
    return add_parts(pool, rows.parts((stale != 0).any(1)), stale, sample.node_counts, sample.graph).result()


def add_parts(
    pool: GraphPool,
    parts: Iterable[Part],
    weights: Float[Tensor, "segments configs"],
    node_counts: Int64[Tensor, " segments"],
    graph: Int64[Tensor, " segments"],
) -> GraphPool:
    """Add segments to the pool, some at a time, with their weights among those of all segments."""
    for chunk, part in parts:
        pool.add(part, *_on(part.device, weights[chunk].to(part.dtype), node_counts[chunk], graph[chunk]))
    return pool


def pool_all(
    catalogue: Catalogue, num_configs: int, parts: Iterable[Part], pooling: Combination, device: torch.device
) -> Float[Tensor, "graphs configs channels"]:
    """Return the pooled embeddings of graphs whose segments are all in `parts`."""
    pool = GraphPool(catalogue.graph_node_counts.to(device, non_blocking=True), pooling)
    ones = torch.ones(len(catalogue), num_configs)
    return add_parts(pool, parts, ones, catalogue.node_counts, catalogue.graph).result()


def _on(device: torch.device, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors of the host on a device, by one copy; those of the device as they are."""
    if all(each.device.type == device.type for each in tensors):
        return tensors
    return tuple(sent({str(place): each for place, each in enumerate(tensors)}, device).values())


def _filled_sum(
    sample: Sample, stale: Tensor, chosen: Tensor, embedded: Tensor, pooling: Combination, rows: RowSource
) -> Float[Tensor, "graphs configs channels"]:
    """Return the weighted sum of all rows, those that are missing filled in, under the learned map if there is one."""
    dtype, num_graphs = embedded.dtype, len(sample.graph_node_counts)
    size, per_node = readout_shares(sample.node_counts, sample.graph_node_counts[sample.graph], pooling)
    weights, scale, graph, is_known = _on(
        embedded.device, (stale * size[:, None]).to(dtype), per_node.to(dtype), sample.graph, sample.is_known
    )
    total = FilledSum(graph, weights, num_graphs, sample.ages.shape[1], embedded.shape[-1])
    fresh_rows = []
    for chunk, part in rows.parts(torch.ones_like(sample.is_fresh)):
        here = chunk.to(embedded.device, non_blocking=True)
        part = part * scale[here][:, None, None]
        total.add(here, part, is_known[here])
        if sample.learned is not None:
            places = sample.is_fresh[chunk].nonzero().squeeze(1)
            fresh_rows.append(part[places.to(embedded.device, non_blocking=True)])
    result = total.result(sample.learned)
    if sample.learned is not None:
        now = embedded * per_node[chosen].to(embedded, non_blocking=True)[:, None, None]
        sample.learned.learn(
            torch.cat(fresh_rows), now, size[chosen], sample.is_known[chosen], sample.graph[chosen], num_graphs,
            rows.summed,
        )  # fmt: skip
    return result


def readout_shares(
    node_counts: Int64[Tensor, " segments"], nodes_of_graph: Int64[Tensor, " segments"], pooling: str
) -> tuple[Float64[Tensor, " segments"], Float64[Tensor, " segments"]]:
    """Return two factors of each segment in a readout by `sum` or `mean`: the weight of the mean embedding of its
    nodes in the readout of its graph, and what turns its own pooled embedding into that mean.

    Examples:
        >>> [each.tolist() for each in readout_shares(torch.tensor([2, 6]), torch.tensor([8, 8]), "mean")]
        [[0.25, 0.75], [1.0, 1.0]]
        >>> [each.tolist() for each in readout_shares(torch.tensor([2, 4]), torch.tensor([6, 6]), "sum")]
        [[2.0, 4.0], [0.5, 0.25]]
    """
    nodes = node_counts.double()
    if pooling == "mean":
        return nodes / nodes_of_graph, torch.ones_like(nodes)
    return nodes, nodes.clamp(min=1).reciprocal()  # padding has no nodes


class FilledSum:
    """Sum over all segments of a graph of `weights` f(x_j), some segments at a time.

    Where segment j has no row under a configuration, x_j is the mean of its rows under the others of the step; without
    any, the mean of the rows of its graph; and without these, the mean of the rows that the map was learned from.
    """

    def __init__(self, graph: Tensor, weights: Tensor, num_graphs: int, num_configs: int, channels: int) -> None:
        self._graph, self._weights = graph, weights
        self._sum = weights.new_zeros(num_graphs, num_configs, channels)
        self._mean = weights.new_zeros(num_graphs, channels)  # of the rows that are known
        self._num_known = weights.new_zeros(num_graphs)
        self._lacking = weights.new_zeros(num_graphs, weights.shape[1])

    def add(
        self,
        segments: Int64[Tensor, " chunk"],
        rows: Float[Tensor, "chunk configs channels"],
        is_known: Bool[Tensor, "chunk configs"],
    ) -> None:
        """Add `segments`, with their rows per node."""
        graph, weights, has_row = self._graph[segments], self._weights[segments], is_known.any(1)
        mask = is_known[..., None].to(rows)
        mean = (rows * mask).sum(1) / mask.sum(1).clamp(min=1)
        filled = torch.where(is_known[..., None], rows, mean[:, None])
        self._sum.index_add_(0, graph, filled * weights[..., None])
        self._mean.index_add_(0, graph, mean)
        self._num_known.index_add_(0, graph, has_row.to(weights))
        self._lacking.index_add_(0, graph, weights * ~has_row[:, None])

    def result(self, learned: RowRegression | None) -> Float[Tensor, "graphs configs channels"]:
        """Return the sums, under the learned map, or the identity."""
        mean = self._mean / self._num_known.clamp(min=1)[:, None]
        linear = None if learned is None else learned.map()
        if learned is None or linear is None:
            return self._sum + self._lacking[..., None] * mean[:, None]
        mean = torch.where(self._num_known[:, None] > 0, mean, learned.mean_row().to(mean))
        a, b = (part.to(mean) for part in linear)
        total = torch.zeros_like(self._lacking).index_add(0, self._graph, self._weights)
        with torch.autocast(mean.device.type, enabled=False):  # a sum has no place in half precision
            return (self._sum + self._lacking[..., None] * mean[:, None]) @ a + total[..., None] * b
