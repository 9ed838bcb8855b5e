from __future__ import annotations

import copy
import io
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from reference import (
    HALO,
    KINDS,
    SlowTraining,
    models,
    random_graph,
    rows_in_use,
    whole_graph_prediction,
    without_cut_edges,
)
from torch import Tensor, nn

from embedding_cache import EmbeddingTable
from embedding_cache.storage import Tier
from gst.cost.losses import pairwise_hinge
from gst.cost.metrics import kendall_tau
from gst.data.loader import Prefetched
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.method.batch import NodeStates, SegmentBatch
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head
from partitioners import partition
from tests.choices import with_rest
from tests.relabelling import relabelled_graph

POOLINGS = ("sum", "mean", "max")
ALL = 99  # more segments than any graph here has


def features_of(batch: SegmentBatch) -> Tensor:
    """An encoder without parameters: node features next to configuration features."""
    return batch.expanded().x.view(batch.num_configs, batch.num_nodes, -1).transpose(0, 1)


def as_it_is(pooled: Tensor) -> Tensor:
    return pooled


def table_for(channels: int = 6, dtype: torch.dtype = torch.float64) -> EmbeddingTable:
    return EmbeddingTable(1, channels, dtype)


def gradients(prediction: Tensor, *modules: nn.Module) -> list[Tensor]:
    parameters = [p for module in modules for p in module.parameters() if not nn.parameter.is_lazy(p)]
    loss = (prediction * torch.linspace(1, 2, prediction.numel()).view_as(prediction)).square().sum()
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def assert_equal(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


# All segments fresh --------------------------------------------------------------------------------


def assert_equal_to_the_whole_graph(kind: str, pooling: str, halo: int, graph: Graph, parts: np.ndarray) -> None:
    """Without context the whole graph is that without cut edges."""
    seen = graph if halo else without_cut_edges(graph, parts)
    encoder, head = models(kind, graph)
    model = GraphSegmentTraining(encoder, head, pooling, num_fresh=ALL)
    every = torch.arange(graph.num_configs)[None]
    ours = model([segment(graph, parts=parts, halo=halo)], every)
    truth = whole_graph_prediction(encoder, head, seen, pooling)
    assert_equal([ours, *gradients(ours, encoder, head)], [truth, *gradients(truth, encoder, head)])


CUTS = [("metis", 5), ("random", 5), ("metis", 0)]
HALOS = [*HALO.items(), *((kind, 0) for kind in KINDS)]


@pytest.mark.parametrize(
    ("kind", "halo", "pooling", "method", "num_configurable"),
    with_rest(
        [(*halo, pooling, *cut) for halo in HALOS for pooling in POOLINGS for cut in CUTS],
        [
            *((*halo, "mean", *CUTS[place % 3]) for place, halo in enumerate(HALOS)),
            *(("sage", 0, pooling, *CUTS[0]) for pooling in POOLINGS),
        ],
    ),
)
def test_all_segments_fresh_is_training_on_the_whole_graph(
    kind: str, halo: int, pooling: str, method: str, num_configurable: int
) -> None:
    graph = random_graph(7, num_configurable=num_configurable)
    parts = partition(graph.edges, graph.num_nodes, 4, method)
    assert without_cut_edges(graph, parts).num_edges < graph.num_edges
    assert_equal_to_the_whole_graph(kind, pooling, halo, graph, parts)


@pytest.mark.parametrize(("kind", "halo"), [("gcn", HALO["gcn"] - 1), ("sage", HALO["sage"] - 1)])
def test_with_less_context_training_is_not_that_on_the_whole_graph(kind: str, halo: int) -> None:
    graph = random_graph(7)
    parts = partition(graph.edges, graph.num_nodes, 4, "random")
    encoder, head = models(kind, graph)
    ours = GraphSegmentTraining(encoder, head, num_fresh=ALL)([segment(graph, parts=parts, halo=halo)])
    assert not torch.allclose(ours, whole_graph_prediction(encoder, head, graph, "mean"), rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "pooling", "max_rows"),
    with_rest(
        ((kind, *rest) for kind in KINDS for rest in (("sum", 1 << 18), ("mean", 9), ("max", 41), ("mean", 1))),
        [("sage", "sum", 1 << 18), ("plain", "mean", 9), ("gin", "max", 41), ("sage", "mean", 1)],
    ),
)
def test_exact_is_all_segments_fresh_however_it_is_chunked(kind: str, pooling: str, max_rows: int) -> None:
    graphs = [segment(random_graph(seed, 10 + 8 * seed, num_configs=3 + seed), 6) for seed in range(3)]
    configs = torch.tensor([[0, 2, 1, -1], [3, 1, 0, 2], [4, -1, -1, -1]])
    encoder, head = models(kind, random_graph(0))
    model = GraphSegmentTraining(encoder, head, pooling, num_fresh=ALL, max_rows=max_rows)
    exact = model.exact(graphs, configs)
    assert not exact.requires_grad and exact.equal(model.eval()(graphs, configs))
    trained = model.train()(graphs, configs)
    assert trained.requires_grad
    assert_equal([exact[configs >= 0]], [trained[configs >= 0]])


@pytest.mark.parametrize("max_rows", [1, 9, 40])
def test_exact_never_encodes_more_rows_than_it_may(max_rows: int) -> None:
    graph, sizes = segment(random_graph(0, 40, num_configs=7), 6, halo=1), []

    def encoder(batch: SegmentBatch) -> Tensor:
        sizes.append((batch.num_nodes * batch.num_configs, batch.num_segments * batch.num_configs))
        return features_of(batch)

    GraphSegmentTraining(encoder, as_it_is, max_rows=max_rows, check_encoder=False).exact([graph])
    assert all(rows <= max_rows or pairs == 1 for rows, pairs in sizes)
    rows, configurable = np.diff(graph.row_ptr), np.diff(graph.config_ptr) > 0
    assert sum(rows for rows, _ in sizes) == (np.where(configurable, 7, 1) * rows).sum() < 7 * rows.sum()


# Some segments fresh -------------------------------------------------------------------------------


ROUNDED = {torch.float64: 1e-6, torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}
"""Half the distance to the next number, as a share of it: how far a row of the table may be from the one pushed."""

TABLES = [
    ("recomputed", None, torch.float64),
    ("omitted", None, torch.float64),
    *(("table", *each) for each in itertools.product(get_args(Tier), [torch.float64, torch.bfloat16, torch.float16])),
]


@pytest.mark.parametrize(
    ("kind", "pooling", "rest", "tier", "dtype"),
    with_rest(
        [(kind, pooling, *table) for kind in KINDS for pooling in POOLINGS for table in TABLES],
        [
            ("sage", "sum", "recomputed", None, torch.float64),
            ("sage", "max", "omitted", None, torch.float64),
            ("plain", "max", "table", "device", torch.float64),
            ("sage", "mean", "table", "disk", torch.bfloat16),
            ("plain", "sum", "table", "pinned", torch.float16),
        ],
    ),
)
def test_training_is_its_slow_twin(
    kind: str, pooling: str, rest: str, tier: Any, dtype: torch.dtype, tmp_path: Path
) -> None:
    graphs = [segment(random_graph(seed, 8 + 9 * seed, num_configs=4 + seed), 6, halo=seed % 2) for seed in range(3)]
    assert len({graph.num_segments for graph in graphs}) == 3
    steps = [
        ([0, 1, 2], [[0, 3, 1], [4, 2, -1], [5, -1, -1]]),
        ([1, 1, 0], [[4, 0, -1], [1, 2, 3], [3, 2, 0]]),
        ([2], [[5, 0, 1]]),
        ([2, 0, 1], [[5, 1, 2], [0, 1, 3], [4, 2, 1]]),
        ([0, 1, 2], [[3, 0, -1], [2, 4, -1], [1, 5, 0]]),
    ]
    encoder, head = models(kind, random_graph(0))
    twin = SlowTraining(copy.deepcopy(encoder), copy.deepcopy(head), pooling, 2, 0.5, rest, seed=3, table_dtype=dtype)
    path = tmp_path if tier == "disk" else None
    table = EmbeddingTable(1, 6, dtype, tier=tier, path=path) if rest == "table" else None
    estimate = "fresh" if rest == "omitted" else "dropout"
    model = GraphSegmentTraining(encoder, head, pooling, 2, 0.5, table, seed=3, estimate=estimate)
    optimizers = [torch.optim.Adam([*m.encoder.parameters(), *m.head.parameters()], 0.01) for m in (model, twin)]
    for which, columns in steps:
        chosen, configs = [graphs[i] for i in which], torch.tensor(columns)
        ours, theirs = model(chosen, configs)[configs >= 0], twin(chosen, configs)
        theirs = torch.stack([theirs[place] for place in map(tuple, (configs >= 0).nonzero().tolist())])
        assert_equal([ours], [theirs])
        assert_equal(gradients(ours, encoder, head), gradients(theirs, twin.encoder, twin.head))
        for optimizer, prediction in zip(optimizers, (ours, theirs), strict=True):
            optimizer.zero_grad()
            prediction.square().mean().backward()
            optimizer.step()
        if table is not None:
            rows, theirs = rows_in_use(table)[1], torch.stack(list(twin.table.values()))
            assert rows.dtype == dtype
            error = {"rtol": ROUNDED[dtype], "atol": 1e-6}
            torch.testing.assert_close(rows.double().sort(0).values, theirs.sort(0).values, **error)


def test_steps_that_were_read_ahead_are_the_same_steps() -> None:
    graphs = [segment(random_graph(seed, 30), 6) for seed in range(2)]
    steps = [(graphs[i % 2 :][:1], torch.tensor([[i % 3, (i + 1) % 3]])) for i in range(6)]

    def train(ahead: bool) -> list[Tensor]:
        table = EmbeddingTable(1, 6, torch.float64)
        model = GraphSegmentTraining(*models("sage", random_graph(0)), "mean", 2, 0.5, table, seed=1)
        if not ahead:
            return [model(*step).detach() for step in steps]
        read = Prefetched(steps, lambda step, ahead: partial(model.load, model.draw(*step, ahead)))
        return [model(prefetched=prefetched).detach() for _, prefetched in read]

    assert all(a.equal(b) for a, b in zip(train(True), train(False), strict=True))


# Symmetries ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "pooling", "halo"),
    with_rest(
        itertools.product(KINDS, POOLINGS, [0, 2]), [("sage", "mean", 0), ("gin", "max", 2), ("nodes", "sum", 0)]
    ),
)
def test_names_of_nodes_do_not_matter(kind: str, pooling: str, halo: int) -> None:
    graph, order = random_graph(4), np.random.default_rng(0).permutation(24)
    parts = partition(graph.edges, graph.num_nodes, 4)
    model = GraphSegmentTraining(*models(kind, graph), pooling)
    scores = model.exact([segment(graph, parts=parts, halo=halo)])
    relabelled = model.exact([segment(relabelled_graph(graph, order), parts=parts[order], halo=halo)])
    assert_equal([scores], [relabelled])


@pytest.mark.parametrize("kind", with_rest(KINDS, ["sage"]))
def test_the_order_of_configurations_does_not_matter(kind: str) -> None:
    graph, order = random_graph(4, num_configs=5), torch.tensor([[3, 0, 4, 1, 2]])
    model = GraphSegmentTraining(*models(kind, graph))
    scores = model.exact([segment(graph, 6)])
    assert_equal([model.exact([segment(graph, 6)], order)], [scores[:, order[0]]])
    assert scores[0].unique().numel() == 5


# The frozen encoder --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.bfloat16], ids=str)
def test_a_frozen_encoder_embeds_each_segment_once_and_exactly(dtype: torch.dtype | None) -> None:
    graphs = [segment(random_graph(seed), 6) for seed in range(2)]
    configs = torch.tensor([[0, 1], [2, -1]])
    encoder, head = models("sage", random_graph(0))
    model = GraphSegmentTraining(encoder, head, table=None if dtype is None else table_for(6, dtype))
    model(graphs, configs)
    with torch.no_grad():
        encoder.layers[0].project.weight *= 2  # learnt something: what the table holds is stale
    model.freeze_encoder()
    calls: list[int] = []
    encoder.register_forward_hook(lambda *_: calls.append(1))
    prediction = model(graphs, configs)
    encoded = len(calls)
    again = model(graphs, configs)
    assert len(calls) == (2 * encoded if dtype is None else encoded)
    tolerance = 0.05 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(
        prediction[configs >= 0], model.exact(graphs, configs)[configs >= 0], rtol=tolerance, atol=tolerance
    )
    real = configs >= 0
    torch.testing.assert_close(again[real], prediction[real], rtol=tolerance, atol=tolerance)  # now from the table
    again.sum().backward()
    assert all(p.grad is None for p in encoder.parameters()) and all(p.grad is not None for p in head.parameters())


@pytest.mark.parametrize("capacity", [2, 5])
def test_a_frozen_encoder_is_exact_though_the_table_cannot_hold_all_rows(capacity: int) -> None:
    graphs = [segment(random_graph(seed, 40), 6) for seed in range(2)]
    encoder, head = models("sage", random_graph(0))
    encoder = nn.Sequential(encoder, Dropped())
    model = GraphSegmentTraining(encoder, head, "sum", table=EmbeddingTable(1, 6, torch.float64, capacity=capacity))
    model.freeze_encoder()
    for graph in (*graphs, *graphs):
        torch.testing.assert_close(model.train()([graph]).detach(), model.eval()([graph]))


class Dropped(nn.Module):
    """Dropout that says nothing in evaluation mode."""

    def forward(self, states: NodeStates) -> NodeStates:
        return NodeStates(nn.functional.dropout(states.rows, 0.5, self.training), states.row_of)


# Learning ------------------------------------------------------------------------------------------


def learn(model: GraphSegmentTraining, graphs: list[SegmentedGraph], targets: Tensor, steps: int) -> float:
    """Kendall's tau of exact predictions once it is 1, or after so many steps."""
    model.exact(graphs)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    tau = -1.0
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        pairwise_hinge(model.train()(graphs).view(1, 8), targets).backward()
        optimizer.step()
        if step % 10 == 0:
            tau = kendall_tau(model.exact(graphs).flatten().double().numpy(), targets.flatten().numpy())
        if tau > 1 - 1e-12:  # scipy's own rounding
            break
    return tau


@pytest.mark.parametrize("rest", ["table", "recomputed", "configurations"])
def test_eight_programs_or_configurations_are_learnt_to_perfection(rest: str) -> None:
    torch.manual_seed(0)
    if rest == "configurations":
        graphs = [segment(random_graph(0, num_configs=8), 8)]
    else:
        graphs = [segment(random_graph(seed, num_configurable=0), 8) for seed in range(8)]
    targets = torch.from_numpy(np.concatenate([graph.targets for graph in graphs])).view(1, 8)
    table = None if rest == "recomputed" else table_for(16, torch.float32)
    encoder = SAGE(16, 2, config_symbols=7) if rest == "configurations" else SAGE(16, 2)
    model = GraphSegmentTraining(encoder, Head(16), "sum", 2, 0.5 if table else 1.0, table)
    assert learn(model, graphs, targets, 400) == pytest.approx(1.0, abs=1e-12)


# Saving --------------------------------------------------------------------------------------------


def train_on(model: GraphSegmentTraining, optimizer: torch.optim.Optimizer, steps: range) -> list[Tensor]:
    graphs = [segment(random_graph(seed, 12 + 9 * seed), 6) for seed in range(3)]
    predictions = []
    for step in steps:
        prediction = model([graphs[step % 3], graphs[(step + 1) % 3]], torch.tensor([[0, 1], [2, -1]]))
        optimizer.zero_grad()
        prediction.square().mean().backward()
        optimizer.step()
        predictions.append(prediction.detach())
    return predictions


def saved(**parts: Any) -> dict[str, Any]:
    """The states of what a training consists of, through a file."""
    file = io.BytesIO()
    torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def assert_identical(resumed: GraphSegmentTraining, model: GraphSegmentTraining) -> None:
    assert all(a.equal(b) for a, b in zip(resumed.parameters(), model.parameters(), strict=True))
    assert all(a.equal(b) for a, b in zip(*(rows_in_use(each.table) for each in (resumed, model)), strict=True))
    assert (resumed.step, resumed.encoder_frozen) == (model.step, model.encoder_frozen)


@pytest.mark.parametrize(
    ("kind", "frozen"), with_rest(itertools.product(KINDS, [False, True]), [("sage", False), ("plain", True)])
)
def test_a_resumed_training_is_bit_identical_to_one_that_never_stopped(kind: str, frozen: bool) -> None:
    def made(seed: int) -> tuple[GraphSegmentTraining, torch.optim.Optimizer]:
        model = GraphSegmentTraining(*models(kind, random_graph(0), seed), "mean", 2, 0.5, table_for(), seed=seed)
        return model, torch.optim.Adam(model.parameters(), 0.01)

    model, optimizer = made(0)
    train_on(model, optimizer, range(3))
    if frozen:
        model.freeze_encoder()
        train_on(model, optimizer, range(1))
    states = saved(model=model, optimizer=optimizer)
    truth = train_on(model, optimizer, range(3, 6))

    resumed, resumed_optimizer = made(1)
    resumed.load_state_dict(states["model"])
    resumed_optimizer.load_state_dict(states["optimizer"])
    assert all(a.equal(b) for a, b in zip(train_on(resumed, resumed_optimizer, range(3, 6)), truth, strict=True))
    assert_identical(resumed, model)
    assert resumed.encoder_frozen == frozen


# Mistakes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimate", ["difference", "dropout"])
def test_a_table_and_a_head_of_another_width_than_the_encoder_are_named(estimate: str, unchecked: None) -> None:
    graph = segment(random_graph(0), 8)
    width = GraphSegmentTraining(features_of, as_it_is).exact([graph]).shape[-1]
    table, head = EmbeddingTable(1, width + 3), nn.Linear(width + 1, 1)
    with pytest.raises(
        ValueError, match=rf"rows of {width + 3} .* returns {width}: make it EmbeddingTable\(1, {width}\)"
    ):
        GraphSegmentTraining(features_of, as_it_is, table=table, estimate=estimate)([graph])
    for model in (GraphSegmentTraining(features_of, head), GraphSegmentTraining(features_of, head).eval()):
        with pytest.raises(ValueError, match=f"the head refuses embeddings of {width} numbers: mat1"):
            model([graph])


@pytest.mark.parametrize(
    "encoder",
    [lambda batch: batch.node_features[:-1], lambda x, edge_index: x[:-1], lambda x, edge_index: x[:7]],
    ids=["batch", "one node short", "any number"],
)
@pytest.mark.parametrize("num_configs", [1, 3])
def test_an_encoder_that_returns_too_few_rows_is_named(encoder: Callable, num_configs: int) -> None:
    graph = segment(random_graph(0, num_configs=num_configs), 8)
    with pytest.raises(ValueError, match="one row for each node"):
        GraphSegmentTraining(encoder, as_it_is, num_fresh=ALL)([graph])


@pytest.mark.parametrize(
    "output", ["nodes", "segments", "nodes without configurations", "segments without configurations"]
)
def test_encoders_return_nodes_or_segments_with_or_without_configurations(output: str) -> None:
    def encoder(batch: SegmentBatch) -> Tensor:
        nodes = features_of(batch)
        if output.startswith("segments"):
            nodes = nodes.new_zeros(batch.num_segments, *nodes.shape[1:]).index_add(0, batch.segment_of_node, nodes)
        return nodes[:, 0] if output.endswith("without configurations") else nodes

    graph = random_graph(0)
    pooled = GraphSegmentTraining(encoder, as_it_is, "sum", 2)([segment(graph, 6)])
    assert pooled.shape == (1, 3, 5)
    sums = torch.from_numpy(graph.node_features).sum(0)
    torch.testing.assert_close(pooled[0, :, :3], sums.expand(3, -1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("configs", [[[3]], [[0], [1]], [[0, 99]]], ids=str)
def test_configurations_that_do_not_exist_are_refused(configs: list[list[int]]) -> None:
    model = GraphSegmentTraining(features_of, as_it_is, table=table_for(5))
    with pytest.raises((ValueError, IndexError)):
        model([segment(random_graph(0), 6)], torch.tensor(configs))


recorded: list[int] = []


class OneAtATime:
    """A stream that is here; each of its objects can be entered by one thread at a time, as those of PyTorch."""

    def __init__(self, device: Any = None, stream_id: int = 7, device_index: int = 0, device_type: int = 1) -> None:
        self.stream_id, self.device_index, self.device_type = stream_id, device_index, device_type
        self.is_entered = False

    def __enter__(self) -> OneAtATime:
        assert not self.is_entered, "Stream's context should not be initialized."
        self.is_entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self.is_entered = False

    def record_event(self) -> torch.Event:
        recorded.append(self.stream_id)
        return torch.Event("cpu")


def test_two_threads_copy_at_once_on_the_stream_of_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Barrier(2, timeout=10)
    monkeypatch.setattr(torch, "Stream", OneAtATime)
    monkeypatch.setattr(SegmentBatch, "to", lambda self, *_: meeting.wait() < 0 or self)
    model = GraphSegmentTraining(features_of, as_it_is, "sum", num_fresh=1, estimate="fresh")
    like = SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.float32)
    monkeypatch.setattr(GraphSegmentTraining, "like", lambda self: like)
    model._copies = OneAtATime()  # type: ignore[assignment]
    draw = model.draw([segment(random_graph(0), 5)])
    assert draw is not None
    with ThreadPoolExecutor(2) as threads:
        assert all(each.arrived for each in threads.map(model.load, [draw, draw]))
    assert recorded == [7, 7], "events of the one stream"
