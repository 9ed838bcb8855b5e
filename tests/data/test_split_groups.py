"""Graphs of one group (`group/name`) are held out together, or not at all."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gst.data import group_of
from gst.data.loader import Selection, split
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment

NAMES = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from(["x", "y", "bin/x", "x/y/z"])), unique=True, min_size=1
).map(lambda pairs: ["/".join(pair) for pair in pairs])


@cache
def named(name: str) -> SegmentedGraph:
    """Two nodes, three configurations."""
    features, given_by_configs = np.zeros((2, 1), np.float32), np.arange(3, dtype=np.int8).reshape(3, 1, 1)
    return segment(
        Graph(features, np.array([[0], [1]]), config_nodes=np.array([0]), config_features=given_by_configs,
              targets=np.ones(3), name=name)
    )  # fmt: skip


def names_in(part: list[Selection]) -> list[str]:
    return [graph.name for graph, _ in part]


@given(NAMES, st.data())
def test_a_group_is_never_on_both_sides(names: list[str], data: st.DataObject) -> None:
    groups = sorted({name.split("/")[0] for name in names})
    valid = data.draw(st.integers(0, len(groups) - 1))
    test = data.draw(st.integers(0, len(groups) - 1 - valid))
    seed = data.draw(st.integers(0, 99))
    parts = split([named(name) for name in names], "groups", valid, test, seed)
    sides = [{group_of(name) for name in names_in(part)} for part in parts]
    assert [len(side) for side in sides] == [len(groups) - valid - test, valid, test]
    assert sorted(group for side in sides for group in side) == groups  # each on one side
    assert Counter(name for part in parts for name in names_in(part)) == Counter(names)
    assert all(configs.tolist() == [0, 1, 2] for part in parts for _, configs in part)
    assert all(names_in(part) == [name for name in names if name in names_in(part)] for part in parts)


def test_other_seeds_hold_out_other_groups() -> None:
    graphs = [named(f"{group}/{i}") for group in "abcd" for i in range(2)]
    held_out = [{group_of(name) for name in names_in(split(graphs, "groups", 1, 0, seed)[1])} for seed in range(20)]
    assert {"a", "b", "c", "d"} == set.union(*held_out)


def test_splitting_by_graphs_does_tear_groups_apart() -> None:
    """What `groups` is for."""
    graphs = [named(f"{group}/{i}") for group in "ab" for i in range(4)]
    training, held_out, _ = split(graphs, "graphs", 4, 0, seed=0)
    assert {group_of(name) for name in names_in(training)} & {group_of(name) for name in names_in(held_out)}


@pytest.mark.parametrize(("valid", "test"), [(2, 0), (1, 1), (0, 3)])
def test_no_more_groups_can_be_held_out_than_there_are(valid: int, test: int) -> None:
    """Six graphs, but two groups, of which one has to be left to learn from."""
    graphs = [named(f"{group}/{i}") for group in "ab" for i in range(3)]
    with pytest.raises(ValueError, match=rf"{valid} \+ {test} groups are to be held out, but there are only 2"):
        split(graphs, "groups", valid, test, seed=0)


@pytest.mark.parametrize(("name", "group"), [("bash/usr/bin/bash", "bash"), ("lone", "lone"), ("/x", ""), ("", "")])
def test_the_group_is_what_stands_before_the_first_slash(name: str, group: str) -> None:
    assert group_of(name) == group
