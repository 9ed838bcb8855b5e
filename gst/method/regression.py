"""Difference, regression and composite estimator of a sum over segments, from stale rows and a few fresh embeddings.

sum_j f(x_j) + sum_{j fresh} (h_j - f(x_j)) / q_j has the expectation sum_j h_j for any rows x_j and any map f that was
fixed before the draw (Saerndal et al., Model Assisted Survey Sampling, 1992, chapter 6). The difference estimator has
f(x) = x, the regression estimator learns f, and the composite estimator replaces 1 / q_j by `composite_weights`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from embedding_cache.arrivals import OnHost
from gst.method.draws import Draw
from gst.method.rows import Known, StepRows, row_chunks

RIDGE = 0.1  # of the mean variance of a channel
MEMORY = 0.8  # share that older steps keep in the moments after another step
PRIOR_PAIRS = 1.0
FLOOR = 1e-6  # of the mean square of a row: less variance is rounding
TINY = 1e-30


def moments(
    rows: Float[Tensor, "pairs channels"], embedded: Float[Tensor, "pairs channels"]
) -> Float64[Tensor, "left right"]:
    """Return the sum of (1, x) times (1, x, h) over pairs of a row x and its new embedding h; 0 if not finite."""
    left = torch.cat([torch.ones_like(rows[:, :1]), rows.detach()], 1).double()
    sums = left.T @ torch.cat([left, embedded.detach().double()], 1)
    return torch.where(sums.isfinite().all(), sums, 0.0)


def residual_products(
    residuals: Float[Tensor, "fresh configs channels"],
    is_known: Bool[Tensor, "fresh configs"],
    graph: Int64[Tensor, " fresh"],
    num_graphs: int,
) -> Float64[Tensor, " two"]:
    """Return mean products of the residuals of two segments of one graph, and of one segment with itself.

    Both are summed over graphs and configurations with at least two known segments; zeros if not finite.

    Examples:
        >>> known, graph = torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, dtype=torch.int64)
        >>> residual_products(torch.tensor([[[3.0]], [[2.0]]]), known, graph, 1).tolist()
        [6.0, 6.5]
    """
    residuals = residuals.detach().double() * is_known[..., None]
    sums = residuals.new_zeros(num_graphs, *residuals.shape[1:]).index_add(0, graph, residuals).square().sum(-1)
    squares = residuals.new_zeros(sums.shape).index_add(0, graph, residuals.square().sum(-1))
    count = residuals.new_zeros(sums.shape).index_add(0, graph, is_known.double())
    several = (count > 1).double()
    products = ((sums - squares) / (count * (count - 1)).clamp(min=1) * several).sum()
    both = torch.stack([products, (squares / count.clamp(min=1) * several).sum()])
    return torch.where(both.isfinite().all(), both, 0.0)


def composite_weights(
    graph: Int64[Tensor, " segments"],
    fresh: Bool[Tensor, " segments"],
    weights: Float64[Tensor, "segments configs"],
    is_known: Bool[Tensor, "segments configs"],
    common: float,
) -> Float64[Tensor, "segments configs"]:
    """Return 1 + kappa (1 / q_j - 1) for fresh segments, 0 for others; `weights` are 1 / q_j, `common` is rho.

    kappa = S rho / (1 + (S - 1) rho) (Battese, Harter and Fuller, JASA 83, 1988), and 1 in a graph without any row. rho
    is the share of the variance of residuals h_j - f(x_j) that segments of a graph have in common.

    Examples:
        >>> graph, fresh = torch.zeros(3, dtype=torch.int64), torch.tensor([True, False, False])
        >>> weights, is_known = torch.tensor([[3.0], [0.0], [0.0]]).double(), torch.ones(3, 1, dtype=torch.bool)
        >>> composite_weights(graph, fresh, weights, is_known, common=0.5).flatten().tolist()
        [2.0, 0.0, 0.0]
    """
    num_graphs = int(graph[-1]) + 1 if len(graph) else 0
    number = torch.zeros(num_graphs, dtype=torch.float64).index_add(0, graph, fresh.double())
    has_rows = torch.zeros(num_graphs, dtype=torch.int64).index_add(0, graph, is_known.any(1).long()) > 0
    kappa = torch.where(has_rows, number * common / (1 + (number - 1) * common).clamp(min=TINY), 1.0)
    return fresh[:, None] * (1 + kappa[graph][:, None] * (weights - 1))


class RowRegression:
    """Ridge regression of embeddings on rows, from `moments` that forget older steps, and the estimate of rho."""

    def __init__(self) -> None:
        self._moments: Tensor | None = None
        self._products = torch.zeros(2, dtype=torch.float64)
        self._arriving: OnHost | None = None  # products of the last step
        self._map: tuple[Tensor, Tensor] | None = None

    def observe(self, moments: Float64[Tensor, "left right"], products: Float64[Tensor, " numbers"]) -> None:
        """Learn from the pairs of a step, and from its `residual_products`, of which there may be none."""
        self._moments = moments if self._moments is None else MEMORY * self._moments.to(moments.device) + moments
        self._map = None
        if len(products):
            self._settle()
            self._arriving = OnHost(products)  # wanted in the next step: the host does not wait for it now

    def learn(
        self, draw: Draw, fresh_rows: Tensor, embedded: Tensor, is_known: Known, pooling: str,
        summed: Callable[[Tensor], Tensor], with_products: bool,
    ) -> None:  # fmt: skip
        """Observe the pairs of a step; `summed` adds up numbers over all processes."""
        catalogue, chosen, device = draw.catalogue, draw.fresh.nonzero().squeeze(1), embedded.device
        size, per_node = readout_shares(catalogue.node_counts, catalogue.graph_node_counts[catalogue.graph], pooling)
        now = embedded.detach() * per_node[chosen].to(embedded.detach(), non_blocking=True)[:, None, None]
        places = tuple(each.to(device, non_blocking=True) for each in is_known[chosen].nonzero(as_tuple=True))
        pairs = moments(fresh_rows[places], now[places])
        products = pairs.new_zeros(0)
        if with_products:
            shares = size[chosen].to(now, non_blocking=True)[:, None, None]
            known = is_known[chosen].to(device, non_blocking=True)
            graph = catalogue.graph.to(device, non_blocking=True)[chosen.to(device, non_blocking=True)]
            products = residual_products((now - self(fresh_rows)) * shares, known, graph, len(catalogue.graphs))
        sums = summed(torch.cat([pairs.flatten(), products]))
        self.observe(sums[: pairs.numel()].view_as(pairs), sums[pairs.numel() :])

    @property
    def common(self) -> float:
        """Estimate of rho; 1/2 before the first residuals of two segments of one graph."""
        self._settle()
        product, square = self._products.tolist()
        return min(max(product / square, 0.0), 1.0) if square > 0 else 0.5

    def map(self) -> tuple[Float64[Tensor, "channels channels"], Float64[Tensor, " channels"]] | None:
        """Return A and b of f(x) = x A + b; None before the first step, the identity before the first pair."""
        if self._map is None and self._moments is not None:
            mean, channels = self._moments / self._moments[0, 0].clamp(min=TINY), len(self._moments) - 1
            x, y = mean[0, 1 : channels + 1], mean[0, channels + 1 :]
            variances = mean[1:, 1 : channels + 1] - torch.outer(x, x)
            covariances = mean[1:, channels + 1 :] - torch.outer(x, y)
            squares, count = mean[1:, 1 : channels + 1].trace(), self._moments[0, 0].clamp(min=TINY)
            identity, total = torch.eye(channels, dtype=mean.dtype, device=mean.device), variances.trace().clamp(min=0)
            prior = PRIOR_PAIRS * squares / count + TINY  # a pair that did not move
            multiple = ((covariances.trace() + prior) / (total + prior)).clamp(0, 1) * identity
            total = total + FLOOR * squares + TINY  # where rows are all alike, say one row alone
            ridge = RIDGE * total / channels * identity
            a = multiple + torch.linalg.solve_ex(variances + ridge, covariances - variances @ multiple).result
            has_pairs = self._moments[0, 0] > 0
            self._map = torch.where(has_pairs, a, identity), torch.where(has_pairs, y - x @ a, 0.0)
        return self._map

    def __call__(self, rows: Float[Tensor, "*rows channels"]) -> Float[Tensor, "*rows channels"]:
        """Return f(x) of each row, in its dtype; the row itself before the first step."""
        learnt = self.map()
        if learnt is None:
            return rows
        with torch.autocast(rows.device.type, enabled=False):  # which would blur what configurations differ by
            return rows @ learnt[0].to(rows) + learnt[1].to(rows)

    def mean_row(self) -> Float64[Tensor, " channels"]:
        """Return the mean of the rows of the moments."""
        assert self._moments is not None, "nothing was observed"
        return self._moments[0, 1 : len(self._moments)] / self._moments[0, 0].clamp(min=TINY)

    def _settle(self) -> None:
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            self._products = MEMORY * self._products + arriving.value()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for `copy` and `pickle`, without events of accelerators."""
        self._settle()
        return self.__dict__

    def state_dict(self) -> dict[str, Tensor | None]:
        self._settle()
        return {"moments": None if self._moments is None else self._moments.clone(), "products": self._products.clone()}

    def load_state_dict(self, state: dict[str, Tensor | None]) -> None:
        self._moments, self._map, self._arriving = state["moments"], None, None
        products = state.get("products")
        self._products = torch.zeros(2, dtype=torch.float64) if products is None else products.clone()


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


class StaleSum:
    """Sum over all segments of a graph of `weights` f(x_j), some segments at a time.

    Where segment j has no row under a configuration, x_j is the mean of its rows under the others of the step; without
    any, the mean of the rows of its graph; and without these, the mean of the regression's rows.
    """

    def __init__(self, graph: Tensor, weights: Tensor, num_graphs: int, num_configs: int, channels: int) -> None:
        self._graph, self._weights = graph, weights
        self._sum = weights.new_zeros(num_graphs, num_configs, channels)
        self._mean = weights.new_zeros(num_graphs, channels)  # of the rows that are known
        self._known = weights.new_zeros(num_graphs)
        self._lacking = weights.new_zeros(num_graphs)

    def add(
        self,
        segments: Int64[Tensor, " chunk"],
        rows: Float[Tensor, "chunk configs channels"],
        is_known: Bool[Tensor, "chunk configs"],
    ) -> None:
        """Add `segments`, with their rows per node."""
        graph, weights, has_row = self._graph[segments], self._weights[segments], is_known.any(1)
        known = is_known[..., None].to(rows)
        mean = (rows * known).sum(1) / known.sum(1).clamp(min=1)
        filled = torch.where(is_known[..., None], rows, mean[:, None])
        self._sum.index_add_(0, graph, filled * weights[:, None, None])
        self._mean.index_add_(0, graph, mean)
        self._known.index_add_(0, graph, has_row.to(weights))
        self._lacking.index_add_(0, graph, weights * ~has_row)

    def result(self, regression: RowRegression | None) -> Float[Tensor, "graphs configs channels"]:
        """Return the sums, with the map of `regression`, or the identity."""
        mean = self._mean / self._known.clamp(min=1)[:, None]
        learnt = None if regression is None else regression.map()
        if regression is None or learnt is None:
            return self._sum + (self._lacking[:, None] * mean)[:, None]
        mean = torch.where(self._known[:, None] > 0, mean, regression.mean_row().to(mean))
        a, b = (part.to(mean) for part in learnt)
        total = torch.zeros_like(self._known).index_add(0, self._graph, self._weights)
        with torch.autocast(mean.device.type, enabled=False):  # a sum has no place in half precision
            return (self._sum + (self._lacking[:, None] * mean)[:, None]) @ a + total[:, None, None] * b


def stale_sum(
    draw: Draw, value: Float64[Tensor, " segments"], rows: StepRows, is_known: Known, pooling: str, like: Tensor
) -> tuple[StaleSum, Float[Tensor, "fresh configs channels"]]:
    """Add up the rows of all segments of a step, with `value` the weight of each fresh embedding, 0 for others.

    Returns:
        The sum, and the rows of the fresh segments, both per node, like `like`.
    """
    catalogue, device = draw.catalogue, like.device
    size, per_node = readout_shares(catalogue.node_counts, catalogue.graph_node_counts[catalogue.graph], pooling)
    scale = per_node.to(like, non_blocking=True)[:, None, None]
    residual = ((1 - value) * size).to(like, non_blocking=True)
    graph = catalogue.graph.to(device, non_blocking=True)
    stale = StaleSum(graph, residual, len(catalogue.graphs), is_known.shape[1], like.shape[-1])
    fresh_rows = []
    for chunk in row_chunks(torch.arange(len(catalogue)), is_known.shape[1]):
        here = chunk.to(device, non_blocking=True)
        scaled = rows.of(chunk) * scale[here]
        stale.add(here, scaled, is_known[chunk].to(device, non_blocking=True))
        fresh_rows.append(scaled[draw.fresh[chunk].nonzero().squeeze(1).to(device, non_blocking=True)])
    return stale, torch.cat(fresh_rows)
