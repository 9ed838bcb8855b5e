"""Encoders at their first step: arguments behind wrappers, data that is not read, rows that are not of one segment."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import gst
from gst.method.encoding import call_of

pyg = pytest.importorskip("torch_geometric.nn", reason="needs torch-geometric: pip install .[pyg]")
data = pytest.importorskip("torch_geometric.data")
NODES = 24
AROUND = torch.stack([torch.arange(NODES), (torch.arange(NODES) + 1) % NODES])
HALVES, PAIRS = torch.cat([AROUND, AROUND.flip(0)], 1), torch.stack([AROUND, AROUND.flip(0)], 2).reshape(2, -1)


def ring(edges: Tensor = HALVES, **more: Any) -> Any:
    x = torch.randn(NODES, 3, generator=torch.Generator().manual_seed(0))
    return data.Data(x=x, edge_index=edges, **more)


def model_of(encoder: Any, **settings: Any) -> gst.GraphSegmentTraining:
    return gst.GraphSegmentTraining(encoder, nn.Identity(), **settings)


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = pyg.GraphConv(3, 8)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.conv(x, edge_index, edge_weight)


class Everything(nn.Module):
    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class ByPosition(Everything):
    def forward(self, *args: Any) -> Any:
        return self.module(*args)


class Named(Everything):
    def forward(self, x: Tensor, edge_index: Tensor, **kwargs: Any) -> Any:
        return self.module(x, edge_index, **kwargs)


class Holder:
    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "average of weights": AveragedModel,
    "DataParallel": nn.DataParallel,
    "wrapper": Everything,
    "wrapper by position": ByPosition,
    "wrapper that names some": Named,
    "wrapper in a wrapper": lambda encoder: AveragedModel(Everything(encoder)),
    "object": Holder,
    "function": lambda encoder: lambda *args, **kwargs: encoder(*args, **kwargs),
    "partial": functools.partial,
    "partial of a wrapper": lambda encoder: functools.partial(Everything(encoder)),
    "bound method": lambda encoder: Everything(encoder).forward,
    "compiled": lambda encoder: torch.compile(Everything(encoder), backend="eager"),
    "scripted": lambda encoder: Everything(torch.jit.script(encoder)),
    "traced": lambda encoder: torch.jit.trace(encoder, (torch.ones(2, 3), torch.ones(2, 1).long(), torch.ones(1))),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", WRAPPERS)
def test_an_encoder_behind_a_wrapper_gets_the_data_of_edges(name: str) -> None:
    encoder, graph = Weighted(), ring(edge_weight=3 * torch.rand(2 * NODES))
    want = encoder(graph.x, graph.edge_index, graph.edge_weight).mean(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="no argument of the encoder")
        got = model_of(WRAPPERS[name](encoder)).exact([gst.segment(graph, max_nodes=10, halo=1)])
    torch.testing.assert_close(got[0], want)


class Two(Everything):
    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.dropout = nn.Dropout(0.0)


def test_who_hides_the_arguments_is_asked_for_them() -> None:
    encoder, graph = Weighted(), ring(edge_weight=3 * torch.rand(2 * NODES))
    with pytest.raises(ValueError, match=r"takes \*args, \*\*kwargs, which hides what it wants; name its arguments"):
        model_of(Two(encoder))
    inputs = {name: name for name in ("x", "edge_index", "edge_weight")}
    want = model_of(encoder).exact([gst.segment(graph)])
    assert model_of(Two(encoder), inputs=inputs).exact([gst.segment(graph)]).equal(want)
    assert call_of(lambda *args: None, inputs).positional == tuple(inputs)


@pytest.mark.parametrize(
    ("encoder", "wanted"),
    [
        (lambda h, adjacency: h, ("x", "edge_index")),
        (lambda edge_index, h: h, ("edge_index", "x")),
        (lambda h, adjacency, weight: h, ("x", "edge_index", "weight")),
    ],
)
def test_the_first_two_arguments_are_nodes_and_edges_by_any_names(encoder: Any, wanted: tuple[str, ...]) -> None:
    assert call_of(encoder).positional == wanted


def test_data_that_no_argument_takes_is_named_once() -> None:
    graph = ring(edge_weight=torch.rand(2 * NODES), pos=torch.rand(NODES, 2))
    model = model_of(pyg.SAGEConv(3, 8))
    with pytest.warns(UserWarning, match="no argument of the encoder takes pos, edge_weight of the graphs: name"):
        model([graph])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model([graph])
        model_of(lambda data: data.x, inputs="data")([graph])


class Directed(nn.Module):
    """Directed message passing: the reverse of edge k is k ^ 1, or k + E / 2."""

    def __init__(self, in_pairs: bool) -> None:
        super().__init__()
        self.first, self.next, self.in_pairs = nn.Linear(3, 8), nn.Linear(8, 8), in_pairs

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        sent = self.first(x)[edge_index[0]].relu()
        heard = torch.zeros(len(x), 8).index_add(0, edge_index[1], sent)[edge_index[0]]
        back = sent.view(-1, 2, 8).flip(1).reshape(-1, 8) if self.in_pairs else sent.roll(len(sent) // 2, 0)
        return torch.zeros(len(x), 8).index_add(0, edge_index[1], self.next(heard - back).relu())


def of(forward: Callable[..., Tensor]) -> Callable[[], nn.Module]:
    """A module with one convolution, `conv`, and this method."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        module = type("Own", (nn.Module,), {"forward": forward})()
        module.conv = pyg.GraphConv(3, 8)
        return module

    return make


def pooled_owned(self: Any, batch: Any) -> Tensor:
    rows = self.conv(batch.node_features, batch.edge_index) * batch.owned[:, None]
    return torch.zeros(batch.num_segments, 8).index_add(0, batch.segment_of_node, rows)


def pooled_all(self: Any, batch: Any) -> Tensor:
    rows = self.conv(batch.node_features, batch.edge_index)
    return torch.zeros(batch.num_segments, 8).index_add(0, batch.segment_of_node, rows)


def noisy(self: Any, x: Tensor, edge_index: Tensor) -> Tensor:
    return nn.functional.dropout(self.conv(x, edge_index), 0.5, training=True)


POOLED = of(lambda self, x, edge_index, batch: pyg.global_add_pool(self.conv(x, edge_index), batch))
PARENT = of(lambda self, x, edge_index, parent: self.conv(x, edge_index) + x[parent].sum(1, keepdim=True))
CENTRED = of(lambda self, x, edge_index: self.conv(x, edge_index) - self.conv(x, edge_index).mean(0))
SHARE = of(lambda self, x, edge_index: self.conv(x, edge_index) / len(x))
NUMBERED = of(lambda self, x, edge_index: self.conv(x, edge_index) + torch.arange(len(x))[:, None])
FIRST_HALF = of(lambda self, x, edge_index: self.conv(x, edge_index[:, : edge_index.shape[1] // 2]))
KIND = of(lambda self, x, edge_index, z: self.conv(x + torch.eye(3)[z], edge_index))
NUMBERS = {"parent": (torch.arange(NODES) - 1) % NODES}
REFUSED: dict[str, tuple[Any, dict[str, Any], int, str]] = {
    "edges in pairs": (lambda: Directed(True), {"edges": PAIRS}, 0, "depend on the order of edges"),
    "edges in halves": (lambda: Directed(False), {}, 0, "depend on the other segments"),
    "the first half of edges": (FIRST_HALF, {}, 1, "depend on the other segments"),
    "LSTM over neighbours": (lambda: pyg.SAGEConv(3, 8, aggr="lstm"), {}, 0, "depend on the order of edges"),
    "numbers of nodes": (PARENT, NUMBERS, 0, r"takes parent: numbers of nodes or edges are not those of a segment"),
    "mean of all nodes": (CENTRED, {}, 0, "depend on the other segments of its batch; keep segments apart"),
    "number of all nodes": (SHARE, {}, 1, "depend on the other segments"),
    "number of a node": (NUMBERED, {}, 0, "depend on the other segments"),
    "pooled with context": (POOLED, {}, 1, "counts context nodes of a halo again"),
    "pooled whole with context": (of(pooled_all), {}, 1, "counts context nodes of a halo again"),
}


@pytest.mark.parametrize("max_nodes", [8, 100])
@pytest.mark.parametrize("name", REFUSED)
def test_rows_that_are_not_those_of_a_segment_alone_are_refused(name: str, max_nodes: int) -> None:
    make, more, halo, message = REFUSED[name]
    cut, settings = gst.segment(ring(**more), max_nodes, halo=halo), {"pooling": "sum"}
    if "pooled" in name and max_nodes > NODES:
        assert model_of(make(), **settings)([cut]).isfinite().all()  # nothing is context
        return
    for training in (False, True):
        with pytest.raises(ValueError, match=message):
            model_of(make(), **settings).train(training)([cut])
    if "pooled" not in name and name != "numbers of nodes":
        model_of(make(), check_encoder=False, **settings)([cut])


TAKEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "convolution": (lambda: pyg.GATConv(3, 8), {}),
    "categories": (KIND, {"z": torch.arange(NODES) % 3}),
    "pooled owned": (of(pooled_owned), {}),
    "random numbers in evaluation": (of(noisy), {}),
}


@pytest.mark.parametrize("name", TAKEN)
def test_encoders_of_nodes_and_their_neighbours_are_taken(name: str) -> None:
    make, more = TAKEN[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for max_nodes, halo in ((8, 1), (100, 0)):
            model_of(make(), pooling="sum")([gst.segment(ring(**more), max_nodes, halo=halo)])


@pytest.mark.parametrize(
    ("encoder", "pooling", "message"),
    [
        (POOLED, "mean", "the mean of rows of segments is not the row of the whole graph"),
        (
            of(lambda self, x, edge_index, batch: pyg.GraphNorm(8)(self.conv(x, edge_index), batch)),
            "sum",
            "rows are not",
        ),
    ],
)
def test_a_layer_over_all_nodes_of_a_segment_is_warned_about(encoder: Any, pooling: Any, message: str) -> None:
    with pytest.warns(UserWarning, match=f"looks at all nodes of a segment: {message}"):
        model_of(encoder(), pooling=pooling).exact([gst.segment(ring(), 8)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model_of(encoder(), pooling=pooling).exact([gst.segment(ring())])
        model_of(encoder(), pooling=pooling, check_encoder=False).exact([gst.segment(ring(), 8)])
        model_of(POOLED(), pooling="sum").exact([gst.segment(ring(), 8)])
