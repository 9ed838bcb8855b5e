"""Scores of whole collections: means over graphs, what counts nothing, and what cannot be scored."""

from __future__ import annotations

import math

import numpy as np
import pytest

from experiments.reproductions.kaggle.scores import LAYOUTS, kaggle_score, layout_score, tile_errors

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
