"""Runtimes of one program from few measurements, by a linear model of its layout decisions and pairs of them.

A program runs its operations one after another, so its runtime is a sum over them, and what an operation takes depends
on the layouts of its own tensors. That makes runtimes, not their logarithms or ranks, nearly additive in the states of
the configurable nodes; a copy between two operations whose layouts differ adds terms of pairs (the functional ANOVA
decomposition of order two, Hoeffding 1948). It does not transfer to other programs; `CostModel` does.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float64, Int64

from gst.cost.metrics import kendall_tau
from gst.graphs.graph import Graph

MAIN_PENALTY = 1e-4  # of a squared cost, in measurements: only costs that cannot be told apart are held at zero
PAIR_PENALTIES = (0.3, 3.0, 30.0)
MOST_DECISIONS = 16  # of which pairs are told apart: their equations are dense
FOLDS = 5  # of cross-validation, to choose among these and no pairs at all
HUBER = 1.345  # standard deviations (Huber 1964: 95 % efficient on normal noise)
ROUNDS = 8


def decisions(graph: Graph) -> Int64[np.ndarray, "configs decisions"]:
    """The state of each decision under each configuration, numbered by first appearance.

    Examples:
        >>> layouts = np.array([[[0], [0], [5]], [[1], [1], [5]], [[0], [0], [5]]], np.int8)  # two nodes agree
        >>> edges, nodes = np.zeros((2, 0), np.int64), np.arange(3)
        >>> decisions(Graph(np.zeros((3, 1), np.float32), edges, nodes, nodes, layouts, np.ones(3))).tolist()
        [[0], [1], [0]]

    Configurable nodes whose states always change together are one decision: operations along which the compiler hands a
    layout on. In the AlexNet graph of TpuGraphs 26 nodes make 9 decisions. Nodes that never change make none.
    """
    columns: dict[bytes, np.ndarray] = {}
    for node in range(len(graph.config_nodes)):
        _, first, state = np.unique(graph.config_features[:, node], axis=0, return_index=True, return_inverse=True)
        numbered = np.argsort(np.argsort(first))[state.ravel()]
        if len(first) > 1:
            columns.setdefault(numbered.tobytes(), numbered)
    return np.stack([*columns.values()], axis=1) if columns else np.zeros((graph.num_configs, 0), np.int64)


class StateModel:
    """Runtime = base + cost of every decision's state + cost of every pair of states, fitted by robust least squares.

    Examples:
        >>> layouts = np.array([[[a], [b]] for a in range(3) for b in range(3)], np.int8)
        >>> runtimes = np.array([10.0 + 2 * a + 3 * b for a in range(3) for b in range(3)])
        >>> nodes, edges = np.arange(2), np.zeros((2, 0), np.int64)
        >>> graph = Graph(np.zeros((2, 1), np.float32), edges, nodes, nodes, layouts, runtimes)
        >>> model = StateModel().fit(graph, measured=np.array([0, 1, 2, 3, 6]))    # numbers of measured configurations
        >>> model.predict().round().tolist()        # all configurations of the graph, in the unit of its targets
        [10.0, 13.0, 16.0, 12.0, 15.0, 18.0, 14.0, 17.0, 20.0]

    Pairs enter if they order held-out measurements better (Kendall's tau) by more than the standard error of five-fold
    cross-validation; with fewer than 50 measurements or more than 16 decisions they are left out. A cost that the
    measurements do not determine is zero. The equations are as many as the costs, or as the measurements if these are
    fewer.
    """

    def fit(self, graph: Graph, measured: Int64[np.ndarray, " measured"] | None = None, seed: int = 0) -> StateModel:
        """Fit to the targets of the `measured` configurations, all of them by default.

        Args:
            seed: of the folds.

        Raises:
            ValueError: fewer than two measurements, or one of them is missing (NaN).
        """
        chosen = np.arange(graph.num_configs) if measured is None else np.asarray(measured)
        runtimes = graph.targets[chosen]
        if len(chosen) < 2 or not np.isfinite(runtimes).all():
            raise ValueError(
                f"{len(chosen)} measurements of {graph.name!r}, {int(np.isfinite(runtimes).sum())} of them numbers; "
                f"give at least two, all of them numbers"
            )
        states = decisions(graph)
        self._features, main = _indicators(states)
        self.pair_penalty = self._choose_penalty(chosen, runtimes, main, np.random.default_rng(seed))
        self._base, self._costs = self._solve(chosen, runtimes, main, self.pair_penalty)
        return self

    def predict(self) -> Float64[np.ndarray, " configs"]:
        """Predict the runtimes of all configurations of the fitted graph."""
        return self._base + self._features[:, : len(self._costs)] @ self._costs

    def _choose_penalty(
        self, chosen: np.ndarray, runtimes: np.ndarray, main: int, random: np.random.Generator
    ) -> float | None:
        """The penalty of pairs, None to leave them out."""
        if len(chosen) < 10 * FOLDS or self._features.shape[1] == main:
            return None
        folds = np.array_split(random.permutation(len(chosen)), FOLDS)
        plain = self._cross_validated(chosen, runtimes, main, None, folds)
        best: tuple[float, float | None] = (0.0, None)
        for penalty in PAIR_PENALTIES:
            gains = self._cross_validated(chosen, runtimes, main, penalty, folds) - plain
            if gains.mean() > max(best[0], gains.std(ddof=1) / FOLDS**0.5):
                best = (gains.mean(), penalty)
        return best[1]

    def _cross_validated(
        self, chosen: np.ndarray, runtimes: np.ndarray, main: int, penalty: float | None, folds: list[np.ndarray]
    ) -> np.ndarray:
        """tau on each of the folds, of a fit to the others."""
        taus = []
        for fold in folds:
            rest = np.setdiff1d(np.arange(len(chosen)), fold)
            base, costs = self._solve(chosen[rest], runtimes[rest], main, penalty)
            taus.append(kendall_tau(base + self._features[chosen[fold], : len(costs)] @ costs, runtimes[fold]))
        return np.array(taus)

    def _solve(
        self, chosen: np.ndarray, runtimes: np.ndarray, main: int, pair_penalty: float | None
    ) -> tuple[float, np.ndarray]:
        """Huber's estimate by iteratively reweighted ridge regression, and the base that goes with it."""
        width = main if pair_penalty is None else self._features.shape[1]
        x = self._features[chosen][:, :width]
        penalty = np.where(np.arange(width) < main, MAIN_PENALTY, pair_penalty or 0.0)
        weight, middle = np.ones(len(chosen)), float(np.median(runtimes))
        base, costs = middle, np.zeros(width)
        for _ in range(ROUNDS):
            total = weight.sum()
            mean_x, mean_y = x.T @ weight / total, weight @ (runtimes - middle) / total
            if len(chosen) < width:  # as many equations as measurements, which are fewer than costs
                root = np.sqrt(weight)
                centred = (x.toarray() - mean_x) * root[:, None]
                scaled = centred / penalty
                kernel = scaled @ centred.T + np.eye(len(chosen))
                costs = np.linalg.solve(kernel, root * (runtimes - middle - mean_y)) @ scaled
            else:
                weighted = x.multiply(weight[:, None]).tocsr()
                gram = (x.T @ weighted).toarray() - total * np.outer(mean_x, mean_x)
                moment = weighted.T @ (runtimes - middle) - total * mean_x * mean_y
                costs = np.linalg.solve(gram + np.diag(penalty), moment)
            base = middle + mean_y - mean_x @ costs
            residual = np.abs(runtimes - base - x @ costs)
            scale = HUBER * 1.4826 * np.median(residual)  # the median of normal noise is 1 / 1.4826 of its deviation
            weight = np.where(residual <= scale, 1.0, scale / np.maximum(residual, 1e-300))
        return float(base), costs


def _indicators(states: Int64[np.ndarray, "configs decisions"]) -> tuple[sp.csr_matrix, int]:
    """A column for each state of each decision, then one for each pair of states that occurs; and how many the first
    are."""
    singles = [states[:, d] for d in range(states.shape[1])]
    pairs = [
        np.unique(states[:, a] * (states[:, b].max() + 1) + states[:, b], return_inverse=True)[1].ravel()
        for a, b in (combinations(range(states.shape[1]), 2) if states.shape[1] <= MOST_DECISIONS else ())
    ]
    widths = [int(column.max()) + 1 for column in (*singles, *pairs)]
    first = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
    terms = len(singles) + len(pairs)
    columns = np.stack([*singles, *pairs], axis=1) + first[:-1] if terms else np.zeros((len(states), 0), np.int64)
    rows = np.arange(len(states) + 1) * terms
    shape = (len(states), int(first[-1]))
    return sp.csr_matrix((np.ones(columns.size), columns.ravel(), rows), shape), int(first[len(singles)])
