"""Any number of processes trains as one does: the same graphs, segments, gradients, rows. Real processes, real sockets.

The laws run in double precision under plain DistributedDataParallel, where sums in another order are all that differs.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import Any

import pytest
import torch
from ranks import in_processes
from reference import random_graph
from torch import Tensor, nn

from embedding_cache import EmbeddingTable
from embedding_cache.sharded import ShardedTable
from gst.cost.losses import pairwise_hinge
from gst.data.loader import Selection, Step, StepLoader
from gst.graphs.segments import segment
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head
from gst.training.processes import reduced, share_of
from tests.choices import with_rest

CHANNELS, TOGETHER, EPOCHS = 8, 4, 2
Trained = tuple[list[Tensor], dict[str, Any] | None]
Answers = Callable[[int], list[dict[str, Any]]]
VARIANTS: dict[str, dict[str, Any]] = {
    "every segment": {"num_fresh": 99},
    "GST-One": {"num_fresh": 1, "estimate": "fresh"},
    "GST+ED": {"num_fresh": 1, "table": True, "keep_probability": 0.5},
    "GST+E, composite": {"num_fresh": 2, "table": True, "estimate": "composite"},
    "GST+EFD": {"num_fresh": 1, "table": True, "keep_probability": 0.5, "frozen": True},
}
OF_FOUR = ("every segment", "GST+ED", "GST+EFD")  # trained by four processes too
ACCUMULATED = {"num_fresh": 99, "table": True, "estimate": "dropout"}


def selections() -> list[Selection]:
    """Graphs with different numbers of configurations, 11 lists of at most 4; most segments hold no configurable node
    and have one row for all configurations."""
    sizes = {0: (9, 5), 1: (12, 3), 2: (10, 1), 3: (7, 4)}
    made = [random_graph(s, num_configs=n, num_configurable=c) for s, (n, c) in sizes.items()]
    graphs = [segment(replace(graph, name=f"graph {s}"), max_nodes=6) for s, graph in enumerate(made)]
    return [(graph, torch.arange(graph.num_configs)) for graph in graphs]


def loaders(world_size: int, together: int = TOGETHER) -> list[StepLoader]:
    return [
        StepLoader(selections(), together // world_size, 4, seed=3, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]


def dealt(step: Step) -> list[tuple[str, tuple[int, ...]]]:
    return [(graph.name, tuple(row)) for graph, row in zip(step.graphs, step.configs.tolist(), strict=True)]


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_step_of_all_processes_is_the_step_of_one_and_no_list_is_drawn_twice(world_size: int) -> None:
    (alone,), several = loaders(1), loaders(world_size)
    for _ in range(2):
        whole, parts = list(alone), [list(loader) for loader in several]
        assert {len(part) for part in parts} == {len(alone)}
        for step, *own in zip(whole, *parts, strict=True):
            busy = [part for part in own if part.peers is not None and not part.peers.idle]
            assert Counter(dealt(step)) == Counter(itertools.chain(*map(dealt, busy)))
        assert world_size == 2 or any(part[-1].peers.idle for part in parts)  # 11 lists: 3 in the last step


def alike() -> list[Selection]:
    """Graphs with equally many pairs to compare in all of their lists."""
    made = [random_graph(seed, num_configs=8) for seed in range(4)]
    graphs = [segment(replace(graph, name=f"graph {s}"), max_nodes=6) for s, graph in enumerate(made)]
    return [(graph, torch.arange(graph.num_configs)) for graph in graphs]


def train(
    rank: int, world_size: int, variant: dict[str, Any], data: list[Selection], together: int, accumulate: int = 1
) -> Trained:
    """Parameters after two epochs, and what the table holds, of which the first process is told."""
    settings = {key: value for key, value in variant.items() if key not in ("table", "frozen")}
    torch.manual_seed(0)
    encoder, table = SAGE(CHANNELS, 2, num_opcodes=8), None
    if variant.get("table"):
        shard = EmbeddingTable(1, CHANNELS, torch.float64)
        table = shard if world_size == 1 else ShardedTable(shard)
    model = GraphSegmentTraining(encoder, Head(CHANNELS), table=table, **settings, seed=5).double()
    model.embed([data[0][0]], torch.zeros(1, 1, dtype=torch.int64))
    loader = StepLoader(data, together // world_size, 4, seed=3, rank=rank, world_size=world_size)
    model.register(graph for graph, _ in data)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for epoch in range(EPOCHS):
        if epoch and variant.get("frozen"):
            model.freeze_encoder()
        parallel = model if world_size == 1 else nn.parallel.DistributedDataParallel(model)
        for number, step in enumerate(loader, start=1):
            ends = number % accumulate == 0 or number == len(loader)
            with nullcontext() if ends or world_size == 1 else parallel.no_sync():
                draw = model.draw(step.graphs, step.configs, peers=step.peers)
                loss = pairwise_hinge(parallel(prefetched=model.load(draw)), step.targets)
                share = 1.0 if step.peers is None else share_of(step, step.peers, "pairwise_hinge")
                (loss * share / accumulate).backward()
            if ends:
                optimizer.step()
                optimizer.zero_grad()
    state = None if model.table is None else model.table.get_extra_state()
    return [parameter.detach() for parameter in model.parameters()], state


def train_all(rank: int, world_size: int) -> dict[str, Any]:
    names = VARIANTS if world_size <= 2 else OF_FOUR
    trained: dict[str, Any] = {name: train(rank, world_size, VARIANTS[name], selections(), TOGETHER) for name in names}
    if world_size <= 2:
        trained["at once"] = train(rank, world_size, ACCUMULATED, alike(), 4)
        trained["accumulated"] = train(rank, world_size, ACCUMULATED, alike(), 2, accumulate=2)
    if world_size == 2:
        trained["logged"] = reduced({"mean": (float(rank), fmean), "sum": (rank + 1.0, sum), "max": (float(rank), max)})
    return trained


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What each process ends with, given the number of processes; one alone is this one."""
    folder = tmp_path_factory.mktemp("meetings")

    @cache
    def by_world_size(world_size: int) -> list[dict[str, Trained]]:
        if world_size > 1:
            return in_processes(world_size, train_all, folder)
        with torch.random.fork_rng(devices=[]):
            return [train_all(0, 1)]

    return by_world_size


def assert_close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def by_key(state: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    order = state["keys"].argsort()
    return state["keys"][order], state["written"][order], state["rows"][order]


OF_TWO = [(2, name) for name in VARIANTS]


@pytest.mark.parametrize(("world_size", "name"), with_rest([*OF_TWO, *((4, name) for name in OF_FOUR)], OF_TWO))
def test_several_processes_follow_the_training_of_one(name: str, world_size: int, trained: Answers) -> None:
    parameters, table = trained(1)[0][name]
    for answer in trained(world_size):
        assert_close(answer[name][0], parameters)
    if table is not None:
        state = trained(world_size)[0][name][1]
        assert state is not None and len(state["keys"]) > 20
        (keys, written, rows), (our_keys, our_written, our_rows) = by_key(table), by_key(state)
        assert torch.equal(our_keys, keys) and (VARIANTS[name].get("frozen") or torch.equal(our_written, written))
        assert_close(our_rows, rows)


def test_all_processes_log_the_same(trained: Answers) -> None:
    assert [each["logged"] for each in trained(2)] == [{"mean": 0.5, "sum": 3.0, "max": 1.0}] * 2


@pytest.mark.parametrize("world_size", [1, 2])
def test_accumulated_steps_are_one_larger_step(world_size: int, trained: Answers) -> None:
    at_once, accumulated = (trained(world_size)[0][name] for name in ("at once", "accumulated"))
    assert_close(accumulated[0], at_once[0])
    assert at_once[1] is not None and accumulated[1] is not None
    (keys, _, rows), (our_keys, _, our_rows) = by_key(at_once[1]), by_key(accumulated[1])
    assert torch.equal(our_keys, keys)
    assert_close(our_rows, rows)


def test_a_position_within_an_epoch_is_of_steps_of_one_size() -> None:
    (two, _), (four, *_) = loaders(2), loaders(4)
    whole = [dealt(step) for step in two]
    stream = iter(two)
    next(stream)
    within = two.state_dict()
    four.load_state_dict(within)  # as many graphs in a step of all
    assert len(list(four)) == len(whole) - 1
    (other,) = loaders(1, together=2)
    with pytest.raises(ValueError, match="graphs_per_step"):
        other.load_state_dict(within)
    list(stream)
    other.load_state_dict({**within, "position": len(two)})  # the end of an epoch is one for all
    assert other.state_dict()["epoch"] == within["epoch"] + 1
