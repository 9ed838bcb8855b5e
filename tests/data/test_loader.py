"""Steps: dealt out in a seeded order, read one step ahead, and split into parts."""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import random_graph

from gst.data import group_of
from gst.data.loader import Prefetched, Selection, Step, StepLoader, split
from gst.data.synthetic import synthetic_program
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment

GRAPHS = [segment(random_graph(seed, num_configs=7 + 4 * seed)) for seed in range(3)]
EVERYTHING = [(graph, torch.arange(graph.num_configs)) for graph in GRAPHS]


def dealt(steps: list[Step]) -> list[tuple[str, int]]:
    return [
        (graph.name, config)
        for step in steps
        for graph, row in zip(step.graphs, step.configs.tolist(), strict=True)
        for config in row
        if config >= 0
    ]


def plain(steps: list[Step]) -> list[tuple]:
    return [(tuple(graph.name for graph in step.graphs), step.configs.tolist()) for step in steps]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("graphs_per_step", "configs_per_graph"), [(1, 1), (1, 4), (2, 3), (3, 100), (50, 2)])
def test_an_epoch_holds_every_configuration_once(graphs_per_step: int, configs_per_graph: int, shuffle: bool) -> None:
    loader = StepLoader(EVERYTHING, graphs_per_step, configs_per_graph, shuffle=shuffle)
    for _ in range(2):
        steps = list(loader)
        every = [(graph.name, config) for graph in GRAPHS for config in range(graph.num_configs)]
        assert Counter(dealt(steps)) == Counter(every) and len(steps) == len(loader)
        assert shuffle or dealt(steps) == every
        assert all(len(step.graphs) <= graphs_per_step and step.configs.shape[1] <= configs_per_graph for step in steps)


def test_targets_belong_to_their_configurations_and_padding_is_nan() -> None:
    for step in StepLoader(EVERYTHING, 2, 4):
        assert step.targets.dtype == torch.float64
        for graph, configs, targets in zip(step.graphs, step.configs.tolist(), step.targets.tolist(), strict=True):
            for config, target in zip(configs, targets, strict=True):
                assert math.isnan(target) if config < 0 else target == graph.targets[config]


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list:
        loader = StepLoader(EVERYTHING, 2, 3, seed=seed)
        loader.load_state_dict({"epoch": epoch, "position": 0})
        return plain(list(loader))

    orders = {(seed, epoch): order(seed, epoch) for seed in range(2) for epoch in range(2)}
    assert all(order(*key) == value for key, value in orders.items())
    assert all(a != b for a, b in itertools.combinations(orders.values(), 2))
    running = StepLoader(EVERYTHING, 2, 3, seed=1)
    assert [plain(list(running)), plain(list(running))] == [orders[1, 0], orders[1, 1]]


@pytest.mark.parametrize("done", [0, 1, 4, 8, 9])
def test_a_resumed_loader_goes_on_with_the_very_same_steps(done: int) -> None:
    loader, resumed = StepLoader(EVERYTHING, 1, 4, seed=5), StepLoader(EVERYTHING, 1, 4, seed=5)
    stream = itertools.chain(loader, loader, loader)
    seen = list(itertools.islice(stream, done))
    assert len(seen) == done
    resumed.load_state_dict(loader.state_dict())
    assert plain(list(itertools.islice(itertools.chain(resumed, resumed, resumed), 12))) == plain(
        list(itertools.islice(stream, 12))
    )


def test_an_epoch_left_early_starts_anew_when_asked_again() -> None:
    """Lightning looks at two validation steps before it trains, and validates all of them later."""
    loader = StepLoader(EVERYTHING, 1, 4, shuffle=False)
    list(itertools.islice(loader, 2))
    assert len(list(loader)) == len(loader)


def test_as_many_lists_of_each_graph_as_asked_for() -> None:
    loader = StepLoader(EVERYTHING, 2, 3, lists_per_graph=2)
    epochs = [list(loader) for _ in range(30)]
    for steps in epochs:
        assert Counter(graph.name for step in steps for graph in step.graphs) == {graph.name: 2 for graph in GRAPHS}
        assert len(steps) == len(loader) == 3 and len(set(dealt(steps))) == 18
    assert len({config for steps in epochs for config in dealt(steps)}) == sum(graph.num_configs for graph in GRAPHS)


@pytest.mark.parametrize(("valid", "test"), [(0, 0), (2, 3), (1, 0)])
def test_configurations_are_split_disjointly_and_completely(valid: int, test: int) -> None:
    parts = split(GRAPHS, "configs", valid, test, seed=3)
    for i, graph in enumerate(GRAPHS):
        pieces = [part[i][1].tolist() for part in parts]
        assert sorted(itertools.chain(*pieces)) == list(range(graph.num_configs))
        assert [len(piece) for piece in pieces[1:]] == [valid, test] and all(part[i][0] is graph for part in parts)


@pytest.mark.parametrize(("valid", "test"), [(0, 0), (1, 1), (2, 0)])
def test_graphs_are_split_disjointly_and_completely(valid: int, test: int) -> None:
    parts = split(GRAPHS, "graphs", valid, test, seed=3)
    assert [len(part) for part in parts] == [3 - valid - test, valid, test]
    assert Counter(graph.name for part in parts for graph, _ in part) == Counter(graph.name for graph in GRAPHS)
    assert all(configs.tolist() == list(range(graph.num_configs)) for part in parts for graph, configs in part)


@pytest.mark.parametrize(
    "arguments",
    [{"graphs_per_step": 0}, {"configs_per_graph": 0}, {"lists_per_graph": 0}, {"lists_per_graph": -1}],
    ids=str,
)
def test_impossible_loaders_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        StepLoader(EVERYTHING, **arguments)


@pytest.mark.parametrize(
    ("by", "valid", "test"),
    [("configs", 4, 3), ("graphs", 2, 1), ("configs", -1, 1), ("graphs", 1, -1), ("graphs", -2, 0), ("nodes", 1, 1)],
)
def test_impossible_splits_are_refused(by: Any, valid: int, test: int, unchecked: None) -> None:
    with pytest.raises(ValueError):
        split(GRAPHS, by, valid, test, seed=0)


def test_an_epoch_left_early_is_followed_by_the_next() -> None:
    graph = synthetic_program(50, 40)
    loader = StepLoader([(segment(graph), torch.arange(40))], configs_per_graph=8)

    def first_two() -> list[list[int]]:
        return [step.configs[0].tolist() for step, _ in zip(loader, range(2), strict=False)]

    assert first_two() != first_two()
    assert loader.epoch == 1


# Reading one step ahead --------------------------------------------------------------------------


def test_steps_come_in_order_with_what_was_read_for_them() -> None:
    drawn: list[tuple[int, int]] = []

    def begin(step: int, ahead: int) -> Callable[[], tuple[int, bool]]:
        assert threading.current_thread() is threading.main_thread()
        drawn.append((step, ahead))
        return lambda: (10 * step, threading.current_thread() is threading.main_thread())

    assert list(Prefetched(range(4), begin)) == [(i, (10 * i, False)) for i in range(4)]
    assert drawn == [(0, 0), (1, 1), (2, 1), (3, 1)]
    assert list(Prefetched([], begin)) == []


def test_what_cannot_be_decided_ahead_is_drawn_once_the_step_before_was_computed() -> None:
    """Odd steps hang on the one before them."""
    happened: list[tuple[str, int, int]] = []

    def begin(step: int, ahead: int) -> Callable[[], int] | None:
        happened.append(("draw", step, ahead))
        return None if ahead and step % 2 else lambda: 10 * step

    for step, read in Prefetched(range(4), begin):
        assert read == 10 * step
        happened.append(("compute", step, 0))
    undecided, decided = [("draw", 1, 1), ("compute", 0, 0), ("draw", 1, 0)], [("draw", 2, 1), ("compute", 1, 0)]
    assert happened == [
        ("draw", 0, 0), *undecided, *decided, ("draw", 3, 1), ("compute", 2, 0), ("draw", 3, 0), ("compute", 3, 0),
    ]  # fmt: skip


def test_what_goes_wrong_in_the_thread_is_raised_in_front() -> None:
    def read() -> None:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(Prefetched(range(2), lambda step, ahead: read))


# Groups of graphs are held out together, or not at all -------------------------------------------


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


@pytest.mark.parametrize(("valid", "test"), [(2, 0), (1, 1), (0, 3)])
def test_no_more_groups_can_be_held_out_than_there_are(valid: int, test: int) -> None:
    """Six graphs, but two groups, of which one has to be left to learn from."""
    graphs = [named(f"{group}/{i}") for group in "ab" for i in range(3)]
    with pytest.raises(ValueError, match=rf"{valid} \+ {test} groups are to be held out, but there are only 2"):
        split(graphs, "groups", valid, test, seed=0)
