"""Learned linear map from rows to present embeddings, and the share of its errors that segments of a graph share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from embedding_cache.storage import OnHost

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
    """
    residuals = residuals.detach().double() * is_known[..., None]
    sums = residuals.new_zeros(num_graphs, *residuals.shape[1:]).index_add(0, graph, residuals).square().sum(-1)
    squares = residuals.new_zeros(sums.shape).index_add(0, graph, residuals.square().sum(-1))
    count = residuals.new_zeros(sums.shape).index_add(0, graph, is_known.double())
    several = (count > 1).double()
    products = ((sums - squares) / (count * (count - 1)).clamp(min=1) * several).sum()
    both = torch.stack([products, (squares / count.clamp(min=1) * several).sum()])
    return torch.where(both.isfinite().all(), both, 0.0)


class RowRegression:
    """Ridge regression of embeddings on rows, from `moments` that forget older steps, and the estimate of rho."""

    def __init__(self) -> None:
        self._moments: Tensor | None = None
        self._products = torch.zeros(2, dtype=torch.float64)
        self._arriving: OnHost | None = None  # products of the last step
        self._map: tuple[Tensor, Tensor] | None = None

    def observe(self, moments: Float64[Tensor, "left right"], products: Float64[Tensor, " two"] | None = None) -> None:
        """Learn from the pairs of a step, and from its `residual_products`."""
        self._moments = moments if self._moments is None else MEMORY * self._moments.to(moments.device) + moments
        self._map = None
        if products is not None:
            self._settle()
            self._arriving = OnHost(products)  # wanted in the next step: the host does not wait for it now

    def learn(
        self,
        rows: Float[Tensor, "fresh configs channels"],
        embedded: Float[Tensor, "fresh configs channels"],
        shares: Float64[Tensor, " fresh"],
        is_known: Bool[Tensor, "fresh configs"],
        graph: Int64[Tensor, " fresh"],
        num_graphs: int,
        summed: Callable[[Tensor], Tensor],
    ) -> None:
        """Observe the fresh segments of a step.

        Args:
            rows, embedded: their rows and embeddings, per node.
            shares: weights of these in the readout of their graphs.
            is_known, graph: on the host.
            summed: adds up numbers over all processes.
        """
        device = embedded.device
        places = tuple(each.to(device, non_blocking=True) for each in is_known.nonzero(as_tuple=True))
        pairs = moments(rows[places], embedded[places])
        residuals = (embedded - self(rows)) * shares.to(embedded, non_blocking=True)[:, None, None]
        is_known, graph = is_known.to(device, non_blocking=True), graph.to(device, non_blocking=True)
        sums = summed(torch.cat([pairs.flatten(), residual_products(residuals, is_known, graph, num_graphs)]))
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
        learned = self.map()
        if learned is None:
            return rows
        with torch.autocast(rows.device.type, enabled=False):  # which would blur what configurations differ by
            return rows @ learned[0].to(rows) + learned[1].to(rows)

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
