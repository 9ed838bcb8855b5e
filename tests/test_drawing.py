"""What the drawings of the report are laid out by: depths, places, colours, ticks."""

from __future__ import annotations

import numpy as np

from gst import charts, drawing


def test_depths_by_hand() -> None:
    # 0 -> 1 -> 2 -> 4 and 3 -> 4: the source 3 stands next to its reader; 5 <-> 6 is a cycle, 7 is alone.
    edges = np.array([[0, 1, 2, 3, 5, 6], [1, 2, 4, 4, 6, 5]])
    assert drawing.depths(edges, 8).tolist() == [0, 1, 2, 2, 3, 4, 4, 0]


def test_nodes_never_share_a_place() -> None:
    rng = np.random.default_rng(0)
    target = np.repeat(np.arange(8, 900), 2)
    edges = np.stack([np.maximum(target - rng.integers(1, 30, len(target)), 0), target])
    column, lane = drawing.places(edges, 900)
    assert lane.min() >= 0 and lane.max() <= drawing.MAX_LANES - 1
    for place in np.unique(column):
        assert (np.diff(np.sort(lane[column == place])) > 0.99).all()


def test_joined_segments_differ_in_colour() -> None:
    ring = np.arange(40)
    edges = np.stack([np.r_[ring, ring], np.r_[ring + 1, ring + charts.NUM_COLOURS] % 40])
    colour = drawing.colours(edges, 40)
    assert (colour[edges[0]] != colour[edges[1]]).all()


def test_ticks_are_round_and_inside() -> None:
    assert charts.Axis(0.0, 10.0, 0, 100).ticks() == [0, 2, 4, 6, 8, 10]
    log = charts.Axis.fit([1.0, 90.0], 0, 100)
    assert log.log and log.ticks() == [1, 2, 5, 10, 20, 50, 100]
