from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import slow_ordered_pairs, slow_tau
from scipy.stats import kendalltau
from sklearn.metrics import balanced_accuracy_score, f1_score, mean_absolute_error, root_mean_squared_error

from gst.cost.losses import LOSSES
from gst.cost.metrics import METRICS, evaluate, kendall_tau, ordered_pair_accuracy, slowdown_at_k

with_ties = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=15)


@pytest.mark.filterwarnings("ignore:One or more sample arguments is too small")
@given(with_ties)
def test_tau_is_scipys_and_that_of_all_pairs(pairs: list[tuple[int, int]]) -> None:
    scores, targets = np.array(pairs, float).T.copy()
    tau = kendall_tau(scores, targets)
    assert tau == pytest.approx(kendalltau(scores, targets).statistic, abs=1e-9, nan_ok=True)
    assert tau == pytest.approx(slow_tau(scores, targets), abs=1e-9, nan_ok=True)


@given(with_ties)
def test_ordered_pairs_are_those_counted_one_by_one(pairs: list[tuple[int, int]]) -> None:
    scores, targets = np.array(pairs, float).T.copy()
    assert ordered_pair_accuracy(scores, targets) == pytest.approx(slow_ordered_pairs(scores, targets), nan_ok=True)


def test_many_pairs_do_not_overflow() -> None:
    targets = np.arange(200_000.0)
    assert ordered_pair_accuracy(targets, targets) == pytest.approx(1) == kendall_tau(targets, targets)


@pytest.mark.parametrize(("k", "slowdown"), [(1, 1.0), (2, 0.5), (3, 0.5), (4, 0.0), (5, 0.0), (9, 0.0)])
def test_slowdowns_worked_by_hand(k: int, slowdown: float) -> None:
    scores, targets = np.array([0.4, 0.1, 0.3, 0.2, 0.9]), np.array([2.0, 4.0, 5.0, 3.0, 7.0])
    assert slowdown_at_k(scores, targets, k) == slowdown


@pytest.mark.parametrize("metric", [kendall_tau, ordered_pair_accuracy, lambda s, t: slowdown_at_k(s, t, 1)])
def test_placeholders_of_hidden_labels_give_nan(metric) -> None:
    """The test parts of TpuGraphs hold 0 for every runtime."""
    assert math.isnan(metric(np.arange(4.0), np.zeros(4)))


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("seed", range(5))
def test_metrics_are_those_of_scikit_learn(seed: int) -> None:
    random = np.random.default_rng(seed)
    scores, targets = random.normal(size=(40, 5)).astype(np.float32), random.integers(4, size=40).astype(np.float64)
    ours = evaluate("cross_entropy", [(scores, targets)])
    assert ours["macro_f1"] == pytest.approx(f1_score(targets, scores.argmax(-1), average="macro"))
    assert ours["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(targets, scores.argmax(-1)))
    ours = evaluate("squared_error", [(scores[:9, 0], targets[:9]), (scores[9:, 0], targets[9:])])
    assert "slowdown@1" not in ours, "the least of any targets is not the best"
    assert ours["mae"] == pytest.approx(mean_absolute_error(targets, scores[:, 0]))
    assert ours["rmse"] == pytest.approx(root_mean_squared_error(targets, scores[:, 0]))


def test_a_ranking_is_a_mean_over_graphs_and_graphs_of_one_target_are_ranked_together() -> None:
    up, down, flat = np.array([1.0, 2.0]), np.array([2.0, 1.0]), np.array([3.0, 3.0])
    assert evaluate("list_mle", [(up, up), (up, down), (up, up), (up, flat)])["tau"] == pytest.approx(1 / 3)
    assert evaluate("list_mle", [(up, flat)])["tau"] != evaluate("list_mle", [(flat, up)])["tau"] == 0
    assert evaluate("list_mle", [(up[:1], up[:1]), (up[1:], up[1:])])["tau"] == 1
    assert evaluate("list_mle", []) == {}


def test_every_loss_has_metrics() -> None:
    for loss in LOSSES:
        assert any(metric.belongs_to(loss) for metric in METRICS.values())
