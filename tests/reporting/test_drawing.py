"""Layout of the drawings of the report: depths, bundles of edges, ticks."""

from __future__ import annotations

import numpy as np

from gst.reporting import charts, graph


def test_depths_by_hand() -> None:
    # 0 -> 1 -> 2 -> 4 and 3 -> 4: the source 3 stands next to its reader; 5 <-> 6 is a cycle, 7 is alone.
    edges = np.array([[0, 1, 2, 3, 5, 6], [1, 2, 4, 4, 6, 5]])
    assert graph.depths(edges, 8).tolist() == [0, 1, 2, 2, 3, 4, 4, 0]


def test_bundles_by_hand() -> None:
    edges = np.array([[0, 1, 2, 3, 0], [2, 3, 4, 4, 1]])
    part = np.array([0, 0, 1, 1, 2])
    pairs, counts, marked = graph.quotient(edges, part, np.array([True, False, True, True, True]))
    assert pairs.T.tolist() == [[0, 1], [1, 2]] and counts.tolist() == [2, 2] and marked.tolist() == [1, 2]


def test_discs_do_not_lie_on_each_other() -> None:
    rng = np.random.default_rng(0)
    sizes, pairs = rng.integers(20, 400, 60), rng.integers(0, 60, (2, 200))
    x, y, radius = graph._discs(sizes, np.arange(60), pairs)
    gap = np.hypot(np.subtract.outer(x, x), np.subtract.outer(y, y)) - np.add.outer(radius, radius)
    assert gap[~np.eye(60, dtype=bool)].min() > 0
    assert (y - radius).min() > 0 and (y + radius).max() < graph.HEIGHT
    assert (x - radius).min() > 0 and (x + radius).max() < graph.WIDTH


def test_ticks_are_round_and_inside() -> None:
    assert charts.Axis(0.0, 10.0, 0, 100).ticks() == [0, 2, 4, 6, 8, 10]
    log = charts.Axis.fit([1.0, 90.0], 0, 100)
    assert log.log and log.ticks() == [1, 2, 5, 10, 20, 50, 100]
