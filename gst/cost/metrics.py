"""Metrics of predictions, and the registry by which a training logs, monitors and reports them.

A metric is a function of predictions and targets, NaN where these decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from gst.cost.losses import CLASSES, WITHIN_A_GRAPH


def kendall_tau(scores: Float[np.ndarray, " configs"], targets: Float[np.ndarray, " configs"]) -> float:
    """Return Kendall's tau-b, `scipy.stats.kendalltau`: the layout score of TpuGraphs.

    Examples:
        >>> round(kendall_tau(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0])), 3)
        0.333
    """
    from scipy.stats import kendalltau

    return float(kendalltau(scores, targets).statistic)


def ordered_pair_accuracy(scores: Float[np.ndarray, " configs"], targets: Float[np.ndarray, " configs"]) -> float:
    """Return the share of the pairs with different targets that the scores order rightly; equal scores count half.

    Examples:
        >>> round(float(ordered_pair_accuracy(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0]))), 3)
        0.667
    """
    total = len(targets) * (len(targets) - 1) / 2
    different = total - _tied_pairs(targets)
    if not different:
        return float("nan")
    # tau-b is concordant minus discordant pairs over a norm that follows from the ties: solved for the share
    norm = np.sqrt((total - _tied_pairs(scores)) * different)
    return 0.5 if not norm else 0.5 + 0.5 * kendall_tau(scores, targets) * norm / different


def _tied_pairs(values: Float[np.ndarray, " configs"]) -> float:
    sizes = np.unique(values, return_counts=True)[1]
    return float((sizes * (sizes - 1)).sum() / 2)


def slowdown_at_k(scores: Float[np.ndarray, " configs"], targets: Float[np.ndarray, " configs"], k: int) -> float:
    """Return (best target among the k with the lowest scores - best of all) / best of all: error@K of the tile task.

    Examples:
        >>> slowdown_at_k(np.array([1.0, 2.0, 3.0]), np.array([12.0, 10.0, 20.0]), k=1)
        0.2
    """
    top = np.argsort(scores, kind="stable")[:k]
    best = float(targets.min())
    return (float(targets[top].min()) - best) / best if best else float("nan")


def tau(scores: Float[np.ndarray, " configs"], targets: Float[np.ndarray, " configs"]) -> float:
    """Return `kendall_tau`, 0 for constant scores of different targets.

    Examples:
        >>> tau(np.array([0.1, 0.1, 0.1]), np.array([1.0, 2.0, 3.0]))
        0.0
    """
    if len(targets) < 2:
        return float("nan")
    return 0.0 if np.ptp(scores) == 0 and np.ptp(targets) > 0 else kendall_tau(scores, targets)


def mean_absolute_error(scores: Float[np.ndarray, " all"], targets: Float[np.ndarray, " all"]) -> float:
    """Return the mean absolute error in the unit of the targets.

    Examples:
        >>> mean_absolute_error(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
        1.0
    """
    return float(np.abs(scores.astype(np.float64) - targets).mean())


def root_mean_squared_error(scores: Float[np.ndarray, " all"], targets: Float[np.ndarray, " all"]) -> float:
    """Return the root of the mean squared error in the unit of the targets.

    Examples:
        >>> round(root_mean_squared_error(np.array([1.0, 2.0]), np.array([1.0, 4.0])), 3)
        1.414
    """
    return float(np.sqrt(np.square(scores.astype(np.float64) - targets).mean()))


def median_error(scores: Float[np.ndarray, " all"], targets: Float[np.ndarray, " all"]) -> float:
    """Return the median of |exp(score) - target| / target over all graphs and configurations.

    Examples:
        >>> round(median_error(np.log([1.1, 2.0, 4.0]), np.array([1.0, 2.0, 2.0])), 3)
        0.1
    """
    return float(np.median(np.abs(np.exp(scores.astype(np.float64)) - targets) / targets))


def accuracy(scores: Float[np.ndarray, "configs classes"], targets: Float[np.ndarray, " configs"]) -> float:
    """Return the share of targets that are the class of the highest score."""
    return float((scores.argmax(-1) == targets).mean())


def balanced_accuracy(scores: Float[np.ndarray, "configs classes"], targets: Float[np.ndarray, " configs"]) -> float:
    """Return the mean accuracy over the classes of the targets."""
    correct = scores.argmax(-1) == targets
    return float(np.mean([correct[targets == label].mean() for label in np.unique(targets)]))


def macro_f1(scores: Float[np.ndarray, "configs classes"], targets: Float[np.ndarray, " configs"]) -> float:
    """Return the mean of F1 over all classes that are targets or predicted (`sklearn.metrics.f1_score`).

    Examples:
        >>> round(macro_f1(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), np.array([0.0, 1.0, 1.0])), 3)
        0.667
    """
    predicted = scores.argmax(-1)
    f1 = [
        2 * ((predicted == label) & (targets == label)).sum() / ((targets == label).sum() + (predicted == label).sum())
        for label in np.union1d(targets, predicted)
    ]
    return float(np.mean(f1))


@dataclass(frozen=True)
class Metric:
    """A number that tells how well predictions agree with targets; a training logs it as `val/NAME` and `test/NAME`.

    Args:
        compute: scores `(configs,)` and targets `(configs,)`, none of them NaN -> a number. Scores are logarithms of
            runtimes with the loss `log_runtime`, and `(configs, classes)` with `cross_entropy`.
        direction: `max` if more is better.
        words: name in reports.
        losses: losses that it belongs to; all but `cross_entropy` by default.
        of_all: computed over the configurations of all graphs together; else the mean over graphs.
        is_share: reports show percent.
    """

    compute: Callable[[np.ndarray, np.ndarray], float]
    direction: Literal["max", "min"]
    words: str
    losses: Collection[str] = ()
    of_all: bool = False
    is_share: bool = False

    def belongs_to(self, loss: str) -> bool:
        """Return True if a training with this loss has the metric."""
        return loss in self.losses if self.losses else loss not in CLASSES

    def for_report(self) -> dict[str, Any]:
        """Return what a report reads."""
        return {"words": self.words, "direction": self.direction, "is_share": self.is_share}


OF_RUNTIMES = (*WITHIN_A_GRAPH, "log_runtime")  # losses whose least target is the best
METRICS: dict[str, Metric] = {
    "mae": Metric(mean_absolute_error, "min", "mean absolute error", ["squared_error"], of_all=True),
    "tau": Metric(tau, "max", "Kendall's tau"),
    "balanced_accuracy": Metric(balanced_accuracy, "max", "balanced accuracy", CLASSES),
    "accuracy": Metric(accuracy, "max", "accuracy", CLASSES),
    "ordered_pairs": Metric(ordered_pair_accuracy, "max", "pairs in order", is_share=True),
    "slowdown@1": Metric(partial(slowdown_at_k, k=1), "min", "slowdown, first", OF_RUNTIMES, is_share=True),
    "slowdown@5": Metric(partial(slowdown_at_k, k=5), "min", "slowdown, best of 5", OF_RUNTIMES, is_share=True),
    "rmse": Metric(root_mean_squared_error, "min", "root of the mean squared error", ["squared_error"], of_all=True),
    "macro_f1": Metric(macro_f1, "max", "macro F1", CLASSES),
    "median_error": Metric(median_error, "min", "median error", ["log_runtime"], of_all=True),
}
"""Metrics by name; the first that a training has is the headline of its report."""


def evaluate(loss: str, scored: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Return the metrics that belong to a loss, given the scores and the targets of each graph.

    Graphs of one target each are ranked among each other. A mean over graphs leaves out those without a value. Every
    metric is NaN if a score is.

    Examples:
        >>> evaluate("pairwise_hinge", [(np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 3.0]))])["tau"]
        1.0
    """
    if not scored:
        return {}
    if any(np.isnan(scores).any() for scores, _ in scored):  # no metric of the other graphs stands for all
        return {name: float("nan") for name, metric in METRICS.items() if metric.belongs_to(loss)}
    together = tuple(np.concatenate(each) for each in zip(*scored, strict=True))
    graphs = [together] if all(len(targets) == 1 for _, targets in scored) else scored
    return {
        name: metric.compute(*together) if metric.of_all else _mean([metric.compute(*each) for each in graphs])
        for name, metric in METRICS.items()
        if metric.belongs_to(loss)
    }


def _mean(values: Sequence[float]) -> float:
    numbers = [value for value in values if not np.isnan(value)]
    return float(np.mean(numbers)) if numbers else float("nan")
