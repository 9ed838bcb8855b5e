"""Search among the designs of a kernel for the fastest: by a cost model and a validity model, and by rivals.

A search synthesises designs one after the other and sees the outcome of those alone, here from a table of labels. A
design that fails costs as much as one that succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from scipy.stats import norm

from experiments.reproductions.hlsyn.cycles.candidates import Candidates

METHODS = ("model", "boosting", "random", "exhaustive")
BATCH = 5  # designs that are synthesised between two trainings; the last of them is drawn at random
FIRST = 10  # random designs that boosting begins with
PENALTY = 1.0  # log2 cycles above the slowest, that boosting takes for a design that failed
PRIOR_LABELS = 1.0  # outcomes of equal pragmas that weigh as much as the validity model of other kernels
REACH = 1.5  # difference of pragmas, in powers of two, over which an outcome tells of another
COMPOSED = 0  # column of the analytical estimate of log2 cycles


class Prior(NamedTuple):
    """Trees trained on other kernels: for the error of the analytical estimate, and for validity.

    Args:
        residual, validity: of scikit-learn.
    """

    residual: Any
    validity: Any

    def predict(self, designs: Candidates) -> tuple[Float64[np.ndarray, " designs"], Float64[np.ndarray, " designs"]]:
        """log2 cycles of each design, and the probability that it is valid."""
        cycles = designs.columns[:, COMPOSED] + self.residual.predict(designs.columns)
        return cycles, self.validity.predict_proba(designs.columns)[:, 1]


def train_prior(others: Sequence[Candidates], seed: int = 0) -> Prior:
    """Learn from kernels whose designs were synthesised before; each kernel weighs as the root of its designs.

    Raises:
        ValueError: scikit-learn is missing, or the kernels have no valid design or no other.
    """
    ensemble = _ensemble()
    columns, labels = (np.concatenate([getattr(each, name) for each in others]) for name in ("columns", "log_cycles"))
    weight = np.concatenate([np.full(each.num_designs, each.num_designs**-0.5) for each in others])
    valid = np.isfinite(labels)
    if valid.all() or not valid.any():
        raise ValueError("the other kernels need designs that are valid and designs that are not; give all of HLSyn")
    sizes: dict[str, Any] = {"max_iter": 120, "max_leaf_nodes": 12, "min_samples_leaf": 40, "random_state": seed}
    return Prior(
        ensemble.HistGradientBoostingRegressor(learning_rate=0.06, **sizes).fit(
            columns[valid], labels[valid] - columns[valid, COMPOSED], weight[valid]
        ),
        ensemble.HistGradientBoostingClassifier(learning_rate=0.06, early_stopping=False, **sizes).fit(
            columns, valid, weight
        ),
    )


def search(
    designs: Candidates, method: str, budget: int, seed: int, prior: Prior | None = None,
    progress: Callable[[int], None] = lambda count: None,
) -> Int64[np.ndarray, " synthesised"]:  # fmt: skip
    """The designs that a method synthesises, in its order.

    Args:
        method: `model`, the lowest cycles and validity that `prior` and the designs synthesised so far promise;
            `boosting`, trained on the designs synthesised so far; `random`; or `exhaustive`, in the order of the table.
        budget: how many, at most all.
        prior: of other kernels; `model` needs it.
        progress: called with the number of designs after each batch.

    Raises:
        ValueError: there is no such method, or no valid design to search for.
    """
    if method not in METHODS:
        raise ValueError(f"there is no method {method!r}; there are {', '.join(METHODS)}")
    if not designs.is_valid.any():
        raise ValueError(f"{designs.label} has no valid design; there is nothing to search for")
    if method == "model" and prior is None:
        raise ValueError("method model needs a prior; make one with train_prior")
    budget = min(budget, designs.num_designs)
    rng = np.random.default_rng(seed)
    if method in ("random", "exhaustive"):
        progress(budget)
        return (rng.permutation(designs.num_designs) if method == "random" else np.arange(designs.num_designs))[:budget]
    chosen: list[int] = [] if method == "model" else rng.permutation(designs.num_designs)[: min(FIRST, budget)].tolist()
    progress(len(chosen))
    expected = None if prior is None else prior.predict(designs)
    while len(chosen) < budget:
        rows = np.array(chosen, np.int64)
        promise = _boosted(designs, rows, seed) if expected is None or method == "boosting" else _promise(
            designs, rows, *expected, seed
        )  # fmt: skip
        promise = promise + rng.random(designs.num_designs) * 1e-9  # ties
        promise[rows] = -np.inf
        count = min(BATCH, budget - len(chosen))
        for number in range(count):
            is_open = np.flatnonzero(np.isfinite(promise))
            place = int(rng.choice(is_open)) if number == BATCH - 1 else int(promise.argmax())
            chosen.append(place)
            if method == "model":  # another of the batch will tell of its neighbours
                promise *= 1 - 0.5 * _nearness(designs.pragmas, np.array([place]))[:, 0]
            promise[place] = -np.inf
        progress(count)
    return np.array(chosen, np.int64)


def _promise(
    designs: Candidates, rows: np.ndarray, cycles: np.ndarray, validity: np.ndarray, seed: int
) -> Float64[np.ndarray, " designs"]:
    """Expected improvement upon the best design so far, in log2 cycles, times the probability of validity. Half of the
    trees learn what the expected cycles get wrong, half the cycles themselves, so that designs that the expectation
    orders wrongly are found as well."""
    ensemble = _ensemble()
    columns = np.column_stack([designs.columns, designs.pragmas, cycles])
    valid = rows[designs.is_valid[rows]]
    mean, spread = cycles, np.full(designs.num_designs, 1.5)
    if len(valid) >= 3:
        each = np.concatenate([
            base + _trees(ensemble, columns[valid], designs.log_cycles[valid] - base[valid], columns, seed)
            for base in (cycles, np.zeros(designs.num_designs))
        ])  # fmt: skip
        mean, spread = each.mean(0), np.hypot(each.std(0), 0.1)
    near = _nearness(designs.pragmas, rows)
    likely = (PRIOR_LABELS * validity + near @ designs.is_valid[rows]) / (PRIOR_LABELS + near.sum(1))
    best = designs.log_cycles[valid].min() if len(valid) else mean.mean()
    gain = (best - mean) / spread
    return likely * spread * (gain * norm.cdf(gain) + norm.pdf(gain))


def _trees(
    ensemble: Any, columns: np.ndarray, target: np.ndarray, asked: np.ndarray, seed: int
) -> Float64[np.ndarray, "trees designs"]:  # fmt: skip
    forest = ensemble.ExtraTreesRegressor(30, max_features=0.5, random_state=seed).fit(columns, target)
    return np.stack([tree.predict(asked.astype(np.float32)) for tree in forest.estimators_])


def _nearness(pragmas: np.ndarray, rows: np.ndarray) -> Float64[np.ndarray, "designs rows"]:
    """1 for equal pragmas, less for others."""
    apart = ((pragmas[:, None] - pragmas[None, rows]).astype(np.float64) ** 2).sum(2)
    result: np.ndarray = np.exp(-apart / (2 * REACH**2))
    return result


def _boosted(designs: Candidates, rows: np.ndarray, seed: int) -> Float64[np.ndarray, " designs"]:
    """Less log2 cycles by gradient boosting on the pragmas of designs so far; those that failed count as slowest."""
    labels = designs.log_cycles[rows]
    if not np.isfinite(labels).any():
        return np.random.default_rng(seed + len(rows)).random(designs.num_designs)
    labels = np.where(np.isfinite(labels), labels, np.nanmax(labels) + PENALTY)
    boosting = _ensemble().GradientBoostingRegressor(n_estimators=100, max_depth=3, random_state=seed)
    result: np.ndarray = -boosting.fit(designs.pragmas[rows], labels).predict(designs.pragmas)
    return result


def regrets(designs: Candidates, order: np.ndarray, after: Sequence[int]) -> dict[int, float]:
    """log2 of cycles of the best valid design so far over the best of all, after so many designs; 0 is the best.

    Before any design is valid, the slowest valid one counts.

    Examples:
        >>> table = Candidates("v20/made", ({},) * 3, np.zeros((3, 0)), np.zeros((3, 1)), np.array([5.0, np.nan, 3.0]))
        >>> {count: float(regret) for count, regret in regrets(table, np.array([1, 0, 2]), (1, 2, 3)).items()}
        {1: 2.0, 2: 2.0, 3: 0.0}
    """
    found = np.fmin.accumulate(np.append(np.nanmax(designs.log_cycles), designs.log_cycles[order]))
    return {count: float(found[min(count, len(order))] - np.nanmin(designs.log_cycles)) for count in after}


def _ensemble() -> Any:
    try:
        from sklearn import ensemble
    except ImportError as error:
        raise ValueError("this search needs scikit-learn: pip install 'graph-segment-training[experiments]'") from error
    return ensemble
