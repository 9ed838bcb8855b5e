from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import slow_ordered_pairs, slow_tau
from scipy.stats import kendalltau

from gst.cost.metrics import are_placeholders, kendall_tau, ordered_pair_accuracy, slowdown_at_k

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


def test_placeholders_are_zeros_throughout() -> None:
    assert are_placeholders(np.zeros(3)) and not are_placeholders(np.array([0.0, 1.0]))
