"""Estimate of a sum over all segments from stale rows of all and fresh embeddings of a few: difference and regression.

With h_j the embedding of segment j now, x_j what the table says of it, f(x) = x A + b a map that was fixed before the
fresh segments were drawn, and q_j the probability with which j was drawn,

    sum_j f(x_j) + sum_{j fresh} (h_j - f(x_j)) / q_j

has the expectation sum_j h_j, whatever the rows and the map are: 1{j fresh} has expectation q_j (Saerndal, Swensson and
Wretman, Model Assisted Survey Sampling, 1992, chapter 6). Its gradient has the expectation of that of sum_j h_j, since
rows and map are constants and d h_j weighs 1{j fresh} / q_j. A linear head keeps both; any other sees the error of the
sum to second order, E g(s + e) = g(s) + g''(s) E e^2 / 2. The error depends on the residuals h_j - f(x_j) alone. The
difference estimator has f(x) = x; the regression estimator learns f, which takes out what the encoder did to all rows
alike since they were written.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

RIDGE = 0.1  # of the mean variance of a channel
MEMORY = 0.8  # share that older steps keep in the moments after another step
FLOOR = 1e-6  # of the mean square of a row: less variance is rounding
TINY = 1e-30


def moments(
    rows: Float[Tensor, "pairs channels"], embedded: Float[Tensor, "pairs channels"]
) -> Float64[Tensor, "left right"]:
    """Sums over pairs of a row x and the embedding h that takes its place of (1, x) times (1, x, h); zeros where a
    value is not finite. Those of several processes add up."""
    left = torch.cat([torch.ones_like(rows[:, :1]), rows.detach()], 1).double()
    sums = left.T @ torch.cat([left, embedded.detach().double()], 1)
    return torch.where(sums.isfinite().all(), sums, 0.0)


class RowRegression:
    """Ridge regression of embeddings on the rows they replace, shrunk towards the best multiple of the rows, from
    `moments` that forget older steps."""

    def __init__(self) -> None:
        self._moments: Tensor | None = None
        self._map: tuple[Tensor, Tensor] | None = None

    def observe(self, moments: Float64[Tensor, "left right"]) -> None:
        """Learn from the pairs of a step."""
        self._moments = moments if self._moments is None else MEMORY * self._moments.to(moments.device) + moments
        self._map = None

    def map(self) -> tuple[Float64[Tensor, "channels channels"], Float64[Tensor, " channels"]] | None:
        """A and b of f(x) = x A + b; None before the first step."""
        if self._map is None and self._moments is not None:
            mean, channels = self._moments / self._moments[0, 0].clamp(min=TINY), len(self._moments) - 1
            x, y = mean[0, 1 : channels + 1], mean[0, channels + 1 :]
            variances = mean[1:, 1 : channels + 1] - torch.outer(x, x)
            covariances = mean[1:, channels + 1 :] - torch.outer(x, y)
            floor = FLOOR * mean[1:, 1 : channels + 1].trace() + TINY  # where rows are all alike, say one row alone
            identity, total = torch.eye(channels).to(mean), variances.trace().clamp(min=0) + floor
            multiple = (covariances.trace() / total).clamp(0, 1) * identity
            ridge = RIDGE * total / channels * identity
            a = multiple + torch.linalg.solve_ex(variances + ridge, covariances - variances @ multiple).result
            self._map = a, y - x @ a
        return self._map

    def mean_row(self) -> Float64[Tensor, " channels"]:
        """The mean of the rows of the moments."""
        assert self._moments is not None, "nothing was observed"
        return self._moments[0, 1 : len(self._moments)] / self._moments[0, 0].clamp(min=TINY)

    def state_dict(self) -> dict[str, Tensor | None]:
        return {"moments": None if self._moments is None else self._moments.clone()}

    def load_state_dict(self, state: dict[str, Tensor | None]) -> None:
        self._moments, self._map = state["moments"], None


class StaleSum:
    """Sum over all segments of a graph of (1 - 1{j fresh} / q_j) f(x_j), some segments at a time.

    Where segment j has no row under a configuration, x_j is the mean of its rows under the others of the step; where it
    has none at all, that of the rows of its graph; and where these have none, the mean of the regression's rows.

    Args:
        graph: the graph of each segment.
        weights: (1 - 1{j fresh} / q_j) times the nodes of the segment, in units of what the readout divides by.
        num_graphs, num_configs, channels: of the result.
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
        """With the map of `regression`, or the identity."""
        mean = self._mean / self._known.clamp(min=1)[:, None]
        learnt = None if regression is None else regression.map()
        if regression is None or learnt is None:
            return self._sum + (self._lacking[:, None] * mean)[:, None]
        mean = torch.where(self._known[:, None] > 0, mean, regression.mean_row().to(mean))
        a, b = (part.to(mean) for part in learnt)
        total = torch.zeros_like(self._known).index_add(0, self._graph, self._weights)
        return (self._sum + (self._lacking[:, None] * mean)[:, None]) @ a + total[:, None, None] * b
