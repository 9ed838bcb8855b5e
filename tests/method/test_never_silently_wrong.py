"""What once went wrong without a word: rows of the table read by others, rows that are no numbers, a frozen encoder
that changes, weights of another dtype, and copies of a model."""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ranks import in_processes
from reference import models, random_graph, rows_in_use
from torch import Tensor, nn

from embedding_cache import EmbeddingTable
from embedding_cache.sharded import ShardedTable
from gst.cost.losses import LOSSES
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.graphs.store import open_store, prepare
from gst.method.batch import SegmentBatch
from gst.method.draws import Peers
from gst.method.estimator import GraphSegmentTraining
from gst.method.readouts import SegmentMaxima, SegmentSums
from gst.nn.sparse import CsrMatrix, neighbour_max, product
from gst.util.arrays import Mapped, PackedArray

ALL = 99  # more segments than any graph here has


def features_of(batch: SegmentBatch) -> Tensor:
    """An encoder without parameters: node features next to configuration features."""
    return batch.expanded().x.view(batch.num_configs, batch.num_nodes, -1).transpose(0, 1)


def as_it_is(pooled: Tensor) -> Tensor:
    return pooled


def plain(seed: int = 0, name: str = "resnet", num_nodes: int = 20) -> Graph:
    graph = random_graph(seed, num_nodes)
    return Graph(graph.node_features, graph.edges, name=name)


def stale_model(table: EmbeddingTable, encoder: Callable[..., Tensor] = features_of) -> GraphSegmentTraining:
    """Whose prediction is exact where all rows are up to date, and zero of segments it does not know."""
    return GraphSegmentTraining(encoder, as_it_is, "sum", ALL, table=table)


def rows_of(table: EmbeddingTable) -> list[Tensor]:
    return [each.clone() for each in rows_in_use(table)]


def assert_same(a: list[Tensor], b: list[Tensor]) -> None:
    assert all(x.equal(y) for x, y in zip(a, b, strict=True))


# Rows belong to content ---------------------------------------------------------------------------


def rows_read(model: GraphSegmentTraining, graph: SegmentedGraph) -> int:
    """How many rows of the table a step with `graph` could read."""
    return int((model.rows_of(model.draw([graph])).ages() >= 0).sum())


@pytest.mark.parametrize(
    "other",
    [
        segment(plain(1), 6),
        segment(plain(), 6, method="contiguous"),
        segment(plain(), 11),
        segment(plain(), 6, halo=1),
        segment(replace(plain(), edges=plain().edges[:, ::-1][::-1].copy()), 6),
        segment(replace(plain(), opcodes=np.ones(20, np.int32)), 6),
    ],
    ids=["features", "method", "size", "halo", "edges", "opcodes"],
)
def test_graphs_of_one_name_share_no_rows(other: SegmentedGraph) -> None:
    table = EmbeddingTable(1, 3)
    model = stale_model(table)
    model([segment(plain(), 6)])
    assert rows_read(model, segment(plain(), 6)) > 0
    assert rows_read(model, other) == 0
    model([other])
    torch.testing.assert_close(model([segment(plain(), 6), other]), model.exact([segment(plain(), 6), other]))


def test_the_same_graph_has_the_same_rows_whatever_its_name_and_wherever_it_lies(tmp_path: Any) -> None:
    model = stale_model(EmbeddingTable(1, 3))
    model([segment(plain(), 6)])
    rows = model.table.rows_in_use
    assert rows_read(model, segment(plain(name="another"), 6)) == rows
    (stored,) = open_store(prepare([plain()], tmp_path, max_nodes=6))
    assert rows_read(model, stored) == rows


def test_two_estimators_that_share_a_table_share_no_rows() -> None:
    table, graph = EmbeddingTable(1, 3), segment(plain(), 6)
    doubled = stale_model(table, lambda batch: 2 * features_of(batch))
    model = stale_model(table)
    doubled([graph])
    assert rows_read(model, graph) == 0
    model([graph])
    model.num_fresh = doubled.num_fresh = 1
    for each in (model, doubled, model):
        torch.testing.assert_close(each([graph]), each.exact([graph]))
    model.freeze_encoder()
    assert rows_read(doubled, graph) == graph.num_segments and rows_read(model, graph) == 0


def test_a_collision_is_refused() -> None:
    model, graphs = stale_model(EmbeddingTable(1, 3)), [segment(plain(), 6), segment(plain(), 4)]
    for graph in graphs:
        graph.__dict__["fingerprint"] = "0" * 32
    model(graphs[:1])
    with pytest.raises(ValueError, match=r"two graphs have one fingerprint"):
        model(graphs[1:])


# Rows are numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_step_that_is_no_number_costs_nothing_afterwards(bad: float) -> None:
    graph, scale = segment(plain(), 6), torch.ones(())
    model = stale_model(EmbeddingTable(1, 3), lambda batch: features_of(batch) * scale)
    model([graph])
    before = rows_of(model.table)
    scale.fill_(bad)
    model([graph])
    with pytest.warns(UserWarning, match=r"step 2: embeddings of segment 0 of graph 'resnet'.* are not finite"):
        assert_same(rows_of(model.table), before)
    scale.fill_(1.0)
    model.num_fresh = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(model([graph]), model.exact([graph]))


def test_only_the_rows_that_are_no_numbers_stay_behind() -> None:
    table, keys = EmbeddingTable(4, 2), torch.arange(4)
    table.push(keys[:2], torch.ones(2, 2), 1)
    table.push(keys, torch.tensor([[2.0, 2.0], [2.0, torch.nan], [torch.inf, 2.0], [2.0, 2.0]]), 2)
    rows, ages, is_known = table.pull(keys, 2)
    assert rows.tolist() == [[2, 2], [1, 1], [0, 0], [2, 2]]
    assert ages.tolist() == [0, 1, -1, 0] and is_known.tolist() == [True, True, False, True]
    half = EmbeddingTable(1, 2, torch.float16)
    half.push(torch.tensor([0]), torch.full((1, 2), 1e6), 1)
    assert half.rows_in_use == 0, "a row that its dtype cannot hold"


@pytest.mark.parametrize("scale", [2.0**16, 2.0**127])
def test_a_step_that_a_scaler_skips_leaves_the_table_as_it_was(scale: float) -> None:
    graph, (encoder, head) = segment(random_graph(0), 6), models("sage", random_graph(0))
    model = GraphSegmentTraining(encoder.float(), head.float(), table=EmbeddingTable(1, 6))
    model.exact([graph])
    optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cpu", init_scale=scale)
    before = rows_of(model.table)
    parameters = [parameter.detach().clone() for parameter in model.parameters()]
    scaler.scale(model([graph]).square().sum() * 1e3).backward()
    scaler.step(optimizer)
    scaler.update()
    is_skipped = all(a.equal(b) for a, b in zip(model.parameters(), parameters, strict=True))
    assert is_skipped == (scale > 1e30)
    assert (model.table.rows_in_use == 0) == is_skipped
    if is_skipped:
        assert_same(rows_of(model.table), before)


def test_gradients_that_overflow_inside_the_encoder_leave_the_table_as_it_was() -> None:
    class Overflowing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, batch: SegmentBatch) -> Tensor:
            weight = self.weight.clone()
            weight.register_hook(lambda gradient: gradient * torch.inf)
            return batch.node_features * weight

    model = stale_model(EmbeddingTable(1, 3), Overflowing())
    with torch.autocast("cpu", torch.float16):
        prediction = model([segment(plain(), 6)])
    prediction.sum().backward()
    assert model.table.rows_in_use == 0


# The frozen encoder -------------------------------------------------------------------------------


def learnt(graph: SegmentedGraph) -> tuple[GraphSegmentTraining, torch.optim.Optimizer]:
    model = GraphSegmentTraining(*models("sage", random_graph(0)), "mean", 2, table=EmbeddingTable(1, 6, torch.float64))
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(4):
        optimizer.zero_grad()
        model([graph]).square().sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("whole", [True, False])
def test_weights_loaded_after_freezing_are_those_of_the_rows(whole: bool) -> None:
    graph = segment(random_graph(0), 6)
    model, _ = learnt(graph)
    other, _ = learnt(segment(random_graph(1), 6))
    model.freeze_encoder()
    model([graph])
    if whole:
        model.load_state_dict(other.state_dict())
    else:
        model.encoder.load_state_dict(other.encoder.state_dict())
    torch.testing.assert_close(model([graph]).detach(), model.exact([graph]))
    torch.testing.assert_close(model([graph]).detach(), model.exact([graph]))


class Scaled(torch.nn.Module):
    """An encoder with a plain number, a plain tensor and a count of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale, self.plain, self.calls = torch.nn.Linear(3, 4), 1.0, torch.ones(4), 0

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        rows = self.layer(x[:, :3]).tanh() * self.scale * self.plain
        return torch.nn.functional.dropout(rows, training=self.training)


def tripled(encoder: Scaled) -> None:
    numbers = torch.nn.utils.parameters_to_vector(encoder.parameters())
    torch.nn.utils.vector_to_parameters(3 * numbers, encoder.parameters())


GRAPH = segment(random_graph(0), 6)
CHANGES: dict[str, Callable[[Scaled], Any]] = {
    "data in place": lambda encoder: encoder.layer.weight.data.mul_(3),
    "data": lambda encoder: setattr(encoder.layer.weight, "data", 3 * encoder.layer.weight.data),
    "vector": tripled,
    "number": lambda encoder: setattr(encoder, "scale", 3.0),
    "plain tensor": lambda encoder: setattr(encoder, "plain", torch.full((4,), 3.0)),
    "plain tensor in place": lambda encoder: encoder.plain.mul_(3),
    "layer": lambda encoder: setattr(encoder, "layer", torch.nn.Linear(3, 4)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_in_a_frozen_encoder_changes_its_rows(change: Callable[[Scaled], Any]) -> None:
    model = GraphSegmentTraining(Scaled(), torch.nn.Linear(4, 1), table=True, check_encoder=False)
    model([GRAPH])
    model.freeze_encoder()
    model([GRAPH])
    calls = model.encoder.calls
    model([GRAPH])
    assert model.encoder.calls == calls, "nothing has changed"
    change(model.encoder)
    torch.testing.assert_close(model([GRAPH]), model.exact([GRAPH]))


def test_a_step_that_was_read_before_freezing_writes_no_rows_of_training_mode() -> None:
    model = GraphSegmentTraining(Scaled(), torch.nn.Linear(4, 1), table=True, check_encoder=False)
    step = model.load(model.draw([GRAPH]))
    model.freeze_encoder()
    for given in ({"prefetched": step}, {"graphs": [GRAPH]}):
        torch.testing.assert_close(model(**given), model.exact([GRAPH]))


def test_features_that_rows_stand_for_cannot_be_changed_in_place() -> None:
    graph = random_graph(0)
    cut = segment(graph, 6)
    for array in (cut.node_features, cut.opcodes, cut.edges, cut.config_features):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    graph.node_features[...] = 0  # the user's own


def test_a_look_at_the_table_before_the_backward_pass_writes_no_row_of_a_skipped_step() -> None:
    table = EmbeddingTable(1, 4)
    model = GraphSegmentTraining(Scaled(), torch.nn.Linear(4, 1), table=table, check_encoder=False)
    model([GRAPH]).sum().backward()
    before = table.get_extra_state()
    prediction = model([GRAPH])
    assert table.statistics()["rows_in_use"] == len(before["rows"]) and table.step == 1
    (prediction.sum() * float("inf")).backward()
    after = table.get_extra_state()
    assert after["rows"].equal(before["rows"]) and after["written"].equal(before["written"])
    model([GRAPH])  # nobody can ask for a gradient any more
    assert table.step == 3


def test_an_optimizer_with_momentum_leaves_a_frozen_encoder_alone() -> None:
    graph = segment(random_graph(0), 6)
    model, optimizer = learnt(graph)
    model([graph]).square().sum().backward()
    before = copy.deepcopy(model.encoder.state_dict())
    model.freeze_encoder()
    for _ in range(3):
        model([graph]).square().sum().backward()
        optimizer.step()
    assert all(a.equal(b) for a, b in zip(model.encoder.state_dict().values(), before.values(), strict=True))
    torch.testing.assert_close(model([graph]).detach(), model.exact([graph]))


def test_exact_draws_no_dropout_and_leaves_modes_as_they_were() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout, self.fixed = nn.Dropout(0.5), nn.Dropout(0.5).eval()

        def forward(self, batch: SegmentBatch) -> Tensor:
            return self.dropout(batch.node_features)

    graph, model = segment(plain(), 6), GraphSegmentTraining(Dropping(), nn.Dropout(0.5), "sum").train()
    model.encoder.fixed.eval()
    truth = torch.from_numpy(plain().node_features).sum(0)
    torch.testing.assert_close(model.exact([graph])[0], truth, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.embed([graph])[0, 0], truth, rtol=1e-4, atol=1e-4)
    assert model.training and model.encoder.dropout.training and model.head.training
    assert not model.encoder.fixed.training


# Dtypes -------------------------------------------------------------------------------------------


class TwoLayers(nn.Module):
    """An encoder in plain torch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.layers(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_half_precision_learns_what_it_learns_in_float32(dtype: torch.dtype) -> None:
    graph = segment(random_graph(0, 18), 6)

    def step(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(0)
        table = EmbeddingTable(1, 8)
        model = GraphSegmentTraining(TwoLayers(), nn.Linear(8, 1), num_fresh=1, table=table).to(dtype)
        model([graph])
        scores = model([graph])
        scores.sum().backward()
        gradient = next(model.encoder.parameters()).grad
        assert gradient is not None and scores.dtype == gradient.dtype == dtype
        model.eval()
        return scores.detach().float(), gradient.float(), model.exact([graph]).float()

    for ours, truth in zip(step(dtype), step(torch.float32), strict=True):
        torch.testing.assert_close(ours, truth, rtol=0.05, atol=0.05 * float(truth.abs().max()))


def test_rows_of_a_table_are_summed_in_float32_by_a_model_in_half_precision() -> None:
    """A thousand terms of 0.001 stop adding up at 0.5 in bfloat16."""
    model = GraphSegmentTraining(TwoLayers(), nn.Linear(8, 1), table=EmbeddingTable(1, 8)).bfloat16()
    graph = segment(random_graph(0, 18), 6)
    model([graph])
    assert model.rows_of(model.draw([graph])).of(torch.tensor([0])).dtype == torch.float32


def test_a_head_of_whole_numbers_gets_embeddings_as_they_are() -> None:
    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5, dtype=torch.int8), requires_grad=False)

        def forward(self, pooled: Tensor) -> Tensor:
            return pooled * self.weight

    graph = segment(random_graph(0, 18), 6)
    quantized, plain_head = (GraphSegmentTraining(features_of, head, "mean", ALL) for head in (Quantized(), as_it_is))
    assert quantized.exact([graph]).equal(plain_head.exact([graph]))


def test_configured_and_configless_graphs_share_a_batch() -> None:
    configured, bare = segment(random_graph(0), 6), segment(plain(1), 6)
    assert configured.config_features.shape[2] != bare.config_features.shape[2]
    model = GraphSegmentTraining(*models("sage", random_graph(0)), num_fresh=ALL)
    configs = torch.tensor([[0, 1, 2], [0, -1, -1]])
    both = model([configured, bare], configs)
    torch.testing.assert_close(both[:1], model([configured], configs[:1]))
    assert both[1, 0].isfinite()


def test_configurations_of_different_widths_are_refused() -> None:
    narrow = random_graph(1)
    narrow = replace(narrow, name="narrow", config_features=narrow.config_features[..., :1].copy())
    model = GraphSegmentTraining(*models("sage", random_graph(0)))
    with pytest.raises(ValueError, match=r"configurations of 1 and \d+ features"):
        model([segment(random_graph(0), 6), segment(narrow, 6)])


# Copies -------------------------------------------------------------------------------------------


def through_pickle(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))  # noqa: S301


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle], ids=lambda copied: copied.__name__)
def test_a_copy_goes_on_as_the_model_does(copied: Callable[[Any], Any]) -> None:
    graph = segment(random_graph(0), 6)
    model, _ = learnt(graph)
    twin = copied(model)
    for _ in range(3):
        assert twin([graph]).equal(model([graph]))
    assert_same(rows_of(twin.table), rows_of(model.table))


# Second derivatives, losses and costs -------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4,), (1, 4), (4, 2)], ids=str)
@pytest.mark.parametrize("loss", LOSSES)
def test_losses_broadcast_nothing(loss: str, shape: tuple[int, ...], unchecked: None) -> None:
    scores = torch.ones(4, 1, 3) if loss == "cross_entropy" else torch.ones(4, 1)
    with pytest.raises(ValueError, match=re.escape(f"scores have shape {tuple(scores.shape)} and targets {shape}")):
        LOSSES[loss](scores, torch.ones(shape))


def test_second_derivatives_of_sparse_products_are_right() -> None:
    generator = torch.Generator().manual_seed(0)
    ends, weights = torch.randint(4, (2, 9), generator=generator), torch.rand(9, generator=generator).double()
    matrix = CsrMatrix.from_entries(ends[0], ends[1], (4, 4), weights)
    x = torch.randn(4, 2, dtype=torch.float64, generator=generator).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: product(matrix, x) ** 3, x)
    assert torch.autograd.gradgradcheck(lambda x: neighbour_max(matrix, x) ** 3, x)
    for kernel in (SegmentSums, SegmentMaxima):
        pooled = lambda x: kernel.apply(x, torch.tensor([[0, 1], [2, 2], [3, 3]]), torch.tensor([0, 0, 1]), 2)  # noqa: B023, E731
        assert torch.autograd.gradgradcheck(lambda x: pooled(x * x) ** 3, x)  # noqa: B023


def test_workers_map_the_files_of_a_store_instead_of_reading_them(tmp_path: Any) -> None:
    graphs = [random_graph(0), replace(random_graph(1), config_features=np.zeros((3, 5, 18), np.int8))]
    for graph in open_store(prepare(graphs, tmp_path, max_nodes=6)):
        sent = pickle.dumps(graph)
        arrived = pickle.loads(sent)  # noqa: S301
        for name, value in graph.__dict__.items():
            other = getattr(arrived, name)
            if isinstance(value, np.ndarray | PackedArray):
                np.testing.assert_array_equal(np.asarray(value), np.asarray(other))
                assert value.dtype == other.dtype
                assert Mapped.of(other) is not None or not value.nbytes
        assert sent.count(graph.name.encode()) <= 2 and graph.fingerprint == arrived.fingerprint
        assert graph.node_features.tobytes() not in sent


# Several processes without Lightning --------------------------------------------------------------


def parallel(rank: int, world_size: int) -> dict[str, Any]:
    """A plain DistributedDataParallel, each process with a table of its own."""
    graph = segment(random_graph(0, 60), 6)
    encoder, head = models("sage", random_graph(0))
    model = GraphSegmentTraining(encoder, head, "sum", 1, 0.5, EmbeddingTable(1, 6, torch.float64))
    fresh = [model.draw([graph], ahead=ahead).fresh.nonzero().flatten().tolist() for ahead in range(8)]
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(2):
        optimizer.zero_grad()
        wrapped([graph]).square().sum().backward()
        optimizer.step()
    model.freeze_encoder()
    problems = []
    for _ in range(2):
        try:
            wrapped([graph]).square().sum().backward()
        except ValueError as error:
            problems.append(str(error))
    wrapped = nn.parallel.DistributedDataParallel(model)
    frozen = copy.deepcopy(model.encoder.state_dict())
    for _ in range(2):
        optimizer.zero_grad()
        wrapped([graph]).square().sum().backward()
        optimizer.step()
    unmoved = all(a.equal(b) for a, b in zip(frozen.values(), model.encoder.state_dict().values(), strict=True))
    shared = GraphSegmentTraining(encoder, head, table=ShardedTable(EmbeddingTable(1, 6, torch.float64)))
    try:
        shared([graph])
    except ValueError as error:
        problems.append(str(error))
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return {"fresh": fresh, "problems": problems, "unmoved": unmoved, "weights": weights}


def test_processes_without_lightning(tmp_path: Any) -> None:
    one, other = in_processes(2, parallel, tmp_path)
    assert one["fresh"] != other["fresh"]
    assert one["weights"].equal(other["weights"]) and one["unmoved"]
    assert len(one["problems"]) == 3
    assert all("wrap the model anew" in problem for problem in one["problems"][:2])
    assert "peers=" in one["problems"][2]


def skipped(rank: int, world_size: int) -> dict[str, Any]:
    """Rows of this process's shard after each step of a training with `GradScaler`, and whether the step was skipped.
    In the second step the gradients of the last process overflow; the third has one graph, and leaves that process
    idle."""
    graphs = tuple(segment(random_graph(0, 18 + seed), 6) for seed in range(world_size))
    encoder, head = models("sage", random_graph(0))
    shard = EmbeddingTable(1, 6)
    model = GraphSegmentTraining(encoder.float(), head.float(), num_fresh=ALL, table=ShardedTable(shard))
    model.register(graphs)
    model.exact(graphs)
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-3), torch.amp.GradScaler("cpu", init_scale=2.0**120)
    answer: dict[str, Any] = {"rows": [], "skipped": []}
    for step in range(3):
        chosen = graphs[:1] if step == 2 else graphs
        configs = torch.zeros(len(chosen), 1, dtype=torch.int64)
        draw = model.draw(chosen, configs, peers=Peers(rank, world_size, chosen, configs, torch.zeros(configs.shape)))
        assert draw is not None
        before = [parameter.detach().clone() for parameter in model.parameters()]
        weight = 1e6 if step == 1 and rank == world_size - 1 else 1e-12
        loss = wrapped(prefetched=model.load(draw)).square().sum() * weight
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        answer["skipped"].append(all(a.equal(b) for a, b in zip(model.parameters(), before, strict=True)))
        model.table.wait()
        answer["rows"].append(rows_of(shard))
    return answer


def test_a_step_that_a_scaler_skips_leaves_a_sharded_table_as_it_was(tmp_path: Any) -> None:
    for answer in in_processes(2, skipped, tmp_path):
        first, second, third = answer["rows"]
        assert answer["skipped"] == [False, True, False] and len(first[0]) > 2
        assert_same(first, second)
        assert (third[2] == 3).any() and (third[2] != 2).all()


def settled(rank: int, world_size: int) -> tuple[list[list[int]], list[str]]:
    """In which steps the rows of a sharded table were written, where backward runs in some processes alone, its
    gradients or the rows are not finite in the last one, or the table is read, cleared or loaded before the step ends;
    and the warnings of the last step."""
    graphs = tuple(segment(plain(seed), 6) for seed in range(world_size))
    last, written = rank == world_size - 1, []

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, batch: SegmentBatch) -> Tensor:
            scale = self.scale.clone()
            if model.step == 6 and last:  # a gradient that leaves the range of float16 inside the encoder
                scale.register_hook(lambda gradient: gradient * torch.inf)
            if model.step == 8 and last:
                scale = scale * torch.nan
            return batch.node_features * scale

    model = stale_model(ShardedTable(EmbeddingTable(1, 3)), Scaled())
    model.register(graphs)

    def predicted() -> Tensor:
        configs = torch.zeros(world_size, 1, dtype=torch.int64)
        peers = Peers(rank, world_size, graphs, configs, torch.zeros(configs.shape))
        return model(prefetched=model.load(model.draw(graphs, configs, peers=peers)))

    def note() -> None:
        written.append(sorted(set(rows_in_use(model.table.shard)[2].tolist())))

    predicted()  # step 1 has no backward pass, in training mode
    model.table.statistics()
    note()
    with torch.set_grad_enabled(not last):  # step 2: in the last process without gradient, in the others not finite
        prediction = predicted()
    if not last:
        (prediction.sum() * torch.inf).backward()
    model.table.get_extra_state()
    note()
    with torch.set_grad_enabled(last):  # step 3: the other way round, and finite
        prediction = predicted()
    if last:
        prediction.sum().backward()
    model.table.statistics()
    note()
    saved = model.table.get_extra_state()
    predicted().sum().backward()  # step 4
    model.table.clear()
    model.table.statistics()
    note()
    predicted().sum().backward()  # step 5
    if last:
        model.table.load_state_dict({"_extra_state": saved})
    model.table.statistics()
    note()
    with torch.autocast("cpu", torch.float16):
        predicted().sum().backward()  # step 6
    model.table.statistics()
    note()
    predicted().sum().backward()  # step 7
    model.table.statistics()
    note()
    predicted().sum().backward()  # step 8
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.table.statistics()
    note()
    return written, [str(each.message) for each in caught]


def test_processes_agree_on_what_is_written_whichever_of_them_runs_backward(tmp_path: Any) -> None:
    (written, silence), (same, warned) = in_processes(2, settled, tmp_path)
    assert written == same == [[1], [1], [3], [], [], [], [7], [7, 8]]
    assert not silence and len(warned) == 1
    assert "step 8: embeddings of segment 0 of graph 'resnet', segment 1" in warned[0]
