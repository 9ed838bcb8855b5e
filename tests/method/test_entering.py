"""The drop-in module as PyG users write it: what a model takes, what it returns, and what it says."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gst

data = pytest.importorskip("torch_geometric.data", reason="needs torch-geometric: pip install .[pyg]")
loader = pytest.importorskip("torch_geometric.loader")
pyg = pytest.importorskip("torch_geometric.nn")
Data = data.Data


def ring(seed: int, nodes: int = 30, **more: Any) -> Any:
    generator = torch.Generator().manual_seed(seed)
    around = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
    given = {"x": torch.randn(nodes, 4, generator=generator), "y": torch.tensor([seed % 3])}
    return Data(**{**given, "edge_index": torch.cat([around, around.flip(0)], 1), **more})


def model_of(outputs: int, encoder: Any = None, **settings: Any) -> gst.GraphSegmentTraining:
    torch.manual_seed(0)
    encoder = pyg.SAGEConv(4, 8) if encoder is None else encoder
    return gst.GraphSegmentTraining(encoder, nn.Linear(8, outputs), max_nodes=12, **settings)


LOSSES = {
    "classes": (3, nn.CrossEntropyLoss(), torch.tensor([0, 1, 2, 0])),
    "regression": (1, nn.MSELoss(), torch.tensor([0.5, -1.0, 2.0, 0.0])),
    "binary": (1, nn.BCEWithLogitsLoss(), torch.tensor([1.0, 0.0, 1.0, 0.0])),
    "several targets": (2, nn.MSELoss(), torch.zeros(4, 2)),
}


@pytest.mark.filterwarnings("error:Using a target size")
@pytest.mark.parametrize("with_table", [False, True])
@pytest.mark.parametrize("task", LOSSES)
def test_losses_of_torch_take_predictions_as_they_are(task: str, with_table: bool) -> None:
    outputs, loss, labels = LOSSES[task]
    model = model_of(outputs, table=gst.EmbeddingTable(1, 8) if with_table else None)
    graphs = [gst.segment(ring(seed), max_nodes=12) for seed in range(4)]
    shape = (4,) if outputs == 1 else (4, outputs)
    for prediction in (model(graphs), model.eval()(graphs), model.exact(graphs), model.exact(graphs)):
        assert prediction.shape == shape
    model.train()
    value = loss(model(graphs), labels)
    value.backward()
    assert value.dim() == 0 and model.head.weight.grad is not None
    with_axis = model.exact(graphs, torch.zeros(4, 1, dtype=torch.int64))
    assert with_axis.shape == (4, 1, outputs) and with_axis.flatten().equal(model.exact(graphs).flatten())
    prefetched = model.load(model.draw(graphs))
    assert model(prefetched=prefetched).shape == shape


def test_graphs_with_configurations_keep_their_axis() -> None:
    edges, x = np.stack([np.arange(9), np.arange(1, 10)]), np.ones((10, 4), np.float32)
    with_configs = gst.segment(
        gst.Graph(x, edges, config_nodes=np.array([3]), config_features=np.zeros((1, 1, 4), np.float32))
    )
    targets_alone = gst.segment(gst.Graph(x, edges, targets=np.array([1.0, 2.0])))
    encoder = lambda batch: batch.node_features @ torch.ones(4, 8)  # noqa: E731
    assert model_of(1, encoder)([with_configs]).shape == (1, 1, 1)
    assert model_of(1, encoder)([targets_alone]).shape == (1, 2, 1)


def test_pygs_data_and_batches_are_cut_at_first_sight_and_kept_by_content() -> None:
    model, graphs = model_of(3), [ring(seed) for seed in range(4)]
    model.eval()
    want = model([gst.segment(each, max_nodes=12) for each in graphs])
    assert model(graphs).equal(want) and model([each.clone() for each in graphs]).equal(want)
    (batch,) = loader.DataLoader(graphs, batch_size=4)
    assert model(batch).equal(want) and nn.CrossEntropyLoss()(model(batch), batch.y).isfinite()
    assert len(model._entrance._cut) == 4
    graphs[0].x = graphs[0].x + 1
    assert not model(graphs).equal(want) and len(model._entrance._cut) == 5
    alike = SimpleNamespace(x=graphs[1].x, edge_index=graphs[1].edge_index)
    torch.testing.assert_close(model([alike]), want[1:2])
    assert gst.segment(alike, max_nodes=12).num_segments == gst.segment(graphs[1], max_nodes=12).num_segments


def test_a_table_finds_the_rows_of_data_again() -> None:
    model = model_of(3, table=gst.EmbeddingTable(1, 8), num_fresh=2)
    for _ in range(12):
        model([ring(0)]).sum().backward()
    torch.testing.assert_close(model([ring(0)]), model.exact([ring(0)]))


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.conv = nn.Embedding(5, 4), pyg.SAGEConv(4, 8)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        assert not x.is_floating_point()
        return self.conv(self.embedding(x[:, 0]), edge_index)


@pytest.mark.parametrize("layer", [pyg.SAGEConv(4, 8), pyg.GCNConv(4, 8), pyg.GATConv(4, 8)])
def test_integers_reach_embeddings_and_float_layers_say_what_to_do(layer: nn.Module) -> None:
    integers = ring(0, x=torch.randint(5, (30, 4)))
    assert model_of(3, Embedding())([integers]).shape == (1, 3)
    for model in (model_of(3, layer), model_of(3, layer).eval()):
        with pytest.raises(ValueError, match=r"node features of torch.int64 .*x\.float\(\)"):
            model([integers])


def test_mixed_graphs_are_told_apart_by_their_places() -> None:
    graphs = [ring(seed) for seed in range(4)]
    for place in (1, 3):
        graphs[place].edge_attr = torch.ones(60, 2)
    for model in (model_of(1), model_of(1).eval()):
        with pytest.raises(
            ValueError, match=r"'edge_attr' differs .*: float32 .*\(graphs 1, 3 of 0\.\.3\), missing for"
        ):
            model(graphs)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: gst.segment(ring(0)), r"given one SegmentedGraph; want a list of graphs: model\(\[graph\]\)"),
        (lambda: ring(0), r"given one Data; want a list of graphs: model\(\[graph\]\)"),
        (lambda: gst.from_pyg(ring(0)), r"given one Graph; want a list"),
        (lambda: [], "given no graphs; want a list of at least one"),
        (lambda: None, "given a NoneType; want a list"),
        (lambda: [gst.from_pyg(ring(0))], r"graph 0 is a Graph; want it cut into segments: gst.segment\(graph\)"),
    ],
)
def test_what_is_no_list_of_graphs_is_named(given: Any, message: str, unchecked: None) -> None:
    for model in (model_of(1), model_of(1).eval()):
        with pytest.raises(ValueError, match=message):
            model(given())


def test_rows_of_a_table_are_not_loaded_into_a_model_without_one() -> None:
    state = model_of(1, table=gst.EmbeddingTable(1, 8)).state_dict()
    with pytest.raises(RuntimeError, match="the checkpoint holds an embedding table, and the model has none"):
        model_of(1).load_state_dict(state)
    with pytest.raises(RuntimeError, match="the checkpoint holds an embedding table"):
        nn.ModuleDict({"inner": model_of(1)}).load_state_dict({f"inner.{key}": each for key, each in state.items()})
    model_of(1).load_state_dict(state, strict=False)


def test_features_of_64_bits_stay_or_are_said_to_be_rounded() -> None:
    double = ring(0, x=torch.randn(30, 4, dtype=torch.float64))
    with pytest.warns(UserWarning, match="node features are float64, and are rounded to the model's torch.float32"):
        model_of(1)([double])
    model = model_of(1, pooling="mean").double()
    want = model.head(model.encoder(double.x, double.edge_index).mean(0))
    torch.testing.assert_close(model.exact([gst.segment(double, max_nodes=12, halo=1)]), want, rtol=1e-12, atol=0)


@pytest.mark.parametrize("pooling", ["sum", "mean", "max", "softmax"])
def test_gradients_in_evaluation_are_those_of_the_whole_graph(pooling: str) -> None:
    graph, model = ring(0).to("cpu"), model_of(1, pooling=pooling, max_rows=10).double().eval()
    graph.x = graph.x.double().requires_grad_()
    hidden = model.encoder(graph.x, graph.edge_index)
    pooled = {"sum": hidden.sum(0), "mean": hidden.mean(0), "max": hidden.amax(0)}.get(
        pooling, (hidden.softmax(0) * hidden).sum(0)
    )
    leaves = [graph.x, *model.parameters()]
    want = torch.autograd.grad(model.head(pooled).sum(), leaves)
    cut = gst.segment(graph, max_nodes=12, halo=1)
    got = torch.autograd.grad(model([cut]).sum(), leaves[1:])
    torch.testing.assert_close(got, want[1:], rtol=1e-9, atol=1e-9)
    one_segment = gst.GraphSegmentTraining(model.encoder, model.head, pooling, max_nodes=30).eval()
    (slope,) = torch.autograd.grad(one_segment([graph]).sum(), leaves[:1])
    torch.testing.assert_close(slope, want[0], rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        assert not model([cut]).requires_grad


class Bonds(nn.Module):
    """Messages weighted by distances of nodes, weights and attributes of edges."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = pyg.GraphConv(4, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, edge_index: Tensor, pos: Tensor, edge_weight: Tensor, edge_attr: Tensor) -> Tensor:
        distance = (pos[edge_index[0]] - pos[edge_index[1]]).square().sum(1)
        return self.last(self.conv(x, edge_index, edge_weight * distance * edge_attr[:, 0]).tanh())


@pytest.mark.parametrize("pooling", ["sum", "mean", "max", "softmax"])
def test_first_and_second_derivatives_by_inputs_are_those_of_the_whole_graph(pooling: str) -> None:
    graph = ring(0, pos=torch.randn(30, 3), edge_weight=torch.rand(60), edge_attr=torch.rand(60, 1))
    leaves = {key: graph[key].double().requires_grad_() for key in ("x", "pos", "edge_weight", "edge_attr")}
    graph.update(leaves)
    model = model_of(1, Bonds(), pooling=pooling).double().eval()
    model._entrance.max_nodes, model.head = 30, nn.Sequential(nn.Tanh(), model.head)
    hidden = model.encoder(graph.x, graph.edge_index, graph.pos, graph.edge_weight, graph.edge_attr)
    pooled = {"sum": hidden.sum(0), "mean": hidden.mean(0), "max": hidden.amax(0)}.get(
        pooling, (hidden.softmax(0) * hidden).sum(0)
    )
    every = [*leaves.values(), *model.encoder.parameters()]
    derivatives = []
    for energy in (model([graph]).sum(), model.head(pooled).sum()):
        first = torch.autograd.grad(energy, every, create_graph=True)
        derivatives.append((first, torch.autograd.grad(sum(each.square().sum() for each in first), every)))
    torch.testing.assert_close(derivatives[0], derivatives[1], rtol=1e-8, atol=1e-12)


def test_gradients_of_a_cut_graph_are_those_of_its_prediction() -> None:
    graph = ring(0, pos=torch.randn(30, 3).double(), edge_weight=torch.rand(60).double(), edge_attr=torch.ones(60, 1))
    graph.x, model = graph.x.double(), model_of(1, Bonds()).double().eval()
    graph.edge_weight.requires_grad_()

    def predict(weights: Tensor) -> Tensor:
        return model([graph.clone().update({"edge_weight": weights})])

    assert torch.autograd.gradcheck(predict, graph.edge_weight)
    assert len(model._entrance._cut) == 1  # of all these weights


def test_what_gets_no_gradient_is_named() -> None:
    model, hetero = model_of(1), data.HeteroData()
    hetero["op"].x = torch.ones(3, 4, requires_grad=True)
    hetero["op", "feeds", "op"].edge_index = torch.tensor([[0, 1], [1, 2]])
    with pytest.raises(ValueError, match="x of 'op' requires a gradient, which the model passes on to x and"):
        model([hetero])
    with (
        pytest.raises(ValueError, match="charge requires a gradient"),
        pytest.warns(UserWarning, match="left out: charge"),
    ):
        model([ring(0, charge=torch.ones(1, 2, requires_grad=True))])
    with pytest.warns(UserWarning, match="x requires a gradient, which a Graph does not pass on: give the Data itself"):
        gst.segment(ring(0, x=torch.ones(30, 4, requires_grad=True)))
    with pytest.warns(UserWarning, match="x of the graphs requires a gradient: once it changes, rows of the table"):
        model_of(1, table=True)([ring(0, x=torch.ones(30, 4, requires_grad=True))])


@pytest.mark.parametrize("training", [False, True])
def test_transforms_of_functions_are_refused_before_anything_runs(training: bool) -> None:
    model, graph = model_of(1).train(training), ring(0)
    weights = {name: each.detach() for name, each in model.named_parameters()}
    uses: dict[str, Any] = {
        "grad": lambda run: torch.func.grad(run)(weights),
        "jvp": lambda run: torch.func.jvp(run, (weights,), (weights,)),
        "vmap": lambda run: torch.func.vmap(run)({name: torch.stack([each, each]) for name, each in weights.items()}),
    }
    for given in (graph, gst.segment(graph)):
        for use in uses.values():
            with pytest.raises(
                ValueError, match=r"which torch\.func\.grad, vmap and jvp and forward mode do not follow"
            ):
                use(lambda weights, given=given: torch.func.functional_call(model, weights, ([given],)).sum())
    with pytest.raises(ValueError, match=r"which torch\.func\.grad"):
        torch.func.grad(lambda x: model([ring(0, x=x)]).sum())(graph.x)
    assert model.step == 0 and model([graph]).isfinite().all()


def test_cuts_take_a_bounded_memory_and_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    model, graphs = model_of(1).eval(), [ring(seed) for seed in range(4)]
    one_cut = gst.segment(graphs[0], max_nodes=12).nbytes()
    monkeypatch.setattr("gst.method.draws.MOST_BYTES", 2 * one_cut)
    want = model(graphs)
    assert len(model._entrance._cut) == 2 and model(graphs).equal(want)
    monkeypatch.setattr("gst.method.draws.MOST_BYTES", 1)
    model(graphs[:1])
    kept = list(model._entrance._cut.values())
    model(graphs[:1])
    assert list(model._entrance._cut.values()) == kept and len(kept) == 1, "the last one stays, however large"
    again = copy.deepcopy(model)
    assert not again._entrance._cut and again(graphs).equal(want)


def test_cut_graphs_are_freed_when_the_user_asks() -> None:
    model = model_of(1).eval()
    before = model([ring(0)])
    assert model._entrance._num_bytes > 0
    model.clear_graphs()
    assert model._entrance._num_bytes == 0 and model([ring(0)]).equal(before)


def test_a_head_that_returns_a_dictionary_is_named() -> None:
    class Named(nn.Module):
        def forward(self, embedded: Tensor) -> dict[str, Tensor]:
            return {"first": embedded.sum(-1)}

    model = model_of(1)
    model.head = Named()
    for call in (model, model.eval()):
        with pytest.raises(ValueError, match="the head returns a dict; want one tensor"):
            call([ring(0)])


def test_a_store_is_made_of_data(tmp_path: Any) -> None:
    (one, other) = gst.open_store(gst.prepare([ring(0), ring(1)], tmp_path, max_nodes=12))
    assert one.fingerprint == gst.segment(ring(0), max_nodes=12).fingerprint and other.name != one.name
    with pytest.raises(ValueError, match="a int cannot be prepared; want graphs as"):
        gst.prepare([3], tmp_path)


def test_graphs_that_change_in_each_step_are_warned_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gst.method.draws.MOST_CHANGED", 3)
    model = model_of(1)
    with pytest.warns(
        UserWarning, match="the last 4 graphs were new, 3 of them with the edges of earlier ones"
    ) as caught:
        for seed in range(8):
            model([ring(seed)])
    assert len(caught) == 1
