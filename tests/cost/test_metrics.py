from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import slow_ordered_pairs, slow_tau
from scipy.stats import kendalltau

from gst.cost.metrics import (
    LAYOUTS,
    are_placeholders,
    kaggle_score,
    kendall_tau,
    layout_score,
    ordered_pair_accuracy,
    slowdown_at_k,
    tile_errors,
)

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


# Whole collections --------------------------------------------------------------------------------

HALF_RIGHT = (np.array([1.0, 3.0, 2.0, 4.0]), np.array([10.0, 20.0, 30.0, 40.0]))  # one pair of six is wrong
ALL_WRONG = (np.array([3.0, 2.0, 1.0]), np.array([1.0, 2.0, 4.0]))


def test_collections_are_means_over_graphs_whatever_their_size() -> None:
    graphs = {"one": HALF_RIGHT, "other": ALL_WRONG}
    assert layout_score(graphs) == pytest.approx((4 / 6 - 1) / 2)
    assert tile_errors(graphs) == pytest.approx({1: (0 + 3) / 2, 5: 0.0, 10: 0.0})
    assert tile_errors(graphs, ks=(2,)) == pytest.approx({2: (0 + 1) / 2})


def test_scores_that_order_nothing_count_nothing() -> None:
    assert layout_score({"one": HALF_RIGHT, "flat": (np.ones(3), ALL_WRONG[1])}) == pytest.approx(4 / 6 / 2)


def test_the_kaggle_score_is_the_mean_of_five() -> None:
    assert kaggle_score(dict(zip(LAYOUTS, (0.5, 0.25, 0.75, 0.5), strict=True)), 0.1) == pytest.approx(2.9 / 5)
    with pytest.raises(ValueError, match="layout/xla/random; want one of each"):
        kaggle_score({"layout/xla/random": 0.5}, 0.1)


@pytest.mark.parametrize("score", [layout_score, tile_errors])
@pytest.mark.parametrize(
    ("graphs", "problem"),
    [
        ({}, "no graphs"),
        ({"one": HALF_RIGHT, "hidden": (np.arange(4.0), np.zeros(4))}, "'hidden' has 0 for every target"),
        ({"one": (np.array([1.0, math.nan]), np.ones(2))}, "1 of 2 scores of graph 'one'"),
        ({"one": (np.ones(2), np.array([1.0, math.inf]))}, "1 of 2 targets of graph 'one'"),
    ],
)
def test_what_cannot_be_scored_is_refused_in_one_line(score, graphs: dict, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as refusal:
        score(graphs)
    assert "\n" not in str(refusal.value)


def test_equal_targets_cannot_be_ordered() -> None:
    with pytest.raises(ValueError, match="'one' has 3 equal targets"):
        layout_score({"one": (np.arange(3.0), np.full(3, 7.0))})


def test_placeholders_are_zeros_throughout() -> None:
    assert are_placeholders(np.zeros(3)) and not are_placeholders(np.array([0.0, 1.0]))
