"""Readouts that are functions of sums: exact on segments, consistent under sampling."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gst
from gst.graphs.segments import SegmentedGraph
from gst.method.readouts import readout_of
from tests.choices import with_rest

aggr = pytest.importorskip("torch_geometric.nn.aggr", reason="needs torch-geometric: pip install .[pyg]")
data = pytest.importorskip("torch_geometric.data")
MLP = pytest.importorskip("torch_geometric.nn").MLP
CHANNELS = 3


def as_they_are(x: Tensor, edge_index: Tensor) -> Tensor:
    return x


def attention() -> Any:
    torch.manual_seed(0)
    return aggr.AttentionalAggregation(nn.Linear(CHANNELS, 1), nn.Linear(CHANNELS, CHANNELS))


class Linear(nn.Linear):
    def __init__(self) -> None:
        super().__init__(CHANNELS, CHANNELS)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x)


OF_PYG: dict[str, Callable[[], Any]] = {
    "sum": aggr.SumAggregation,
    "attention": attention,
    "attention with a gate for each channel": lambda: aggr.AttentionalAggregation(nn.Linear(CHANNELS, CHANNELS)),
    "softmax": aggr.SoftmaxAggregation,
    "learned softmax": lambda: aggr.SoftmaxAggregation(t=0.3, learn=True),
    "semi softmax": lambda: aggr.SoftmaxAggregation(t=2.0, semi_grad=True),
    "standard deviation": aggr.StdAggregation,
    "joined": lambda: aggr.MultiAggregation(["mean", "max", "sum"]),
}


def graph(seed: int = 0, scale: float = 1.0) -> tuple[Tensor, SegmentedGraph]:
    x = scale * torch.randn(40, CHANNELS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    edges = np.stack([np.arange(39), np.arange(1, 40)])
    return x, gst.segment(gst.Graph(x.numpy(), edges), max_nodes=7)


def model_of(readout: Any, **settings: Any) -> gst.GraphSegmentTraining:
    width = CHANNELS * len(readout_of(readout).combine.split("+"))
    model = gst.GraphSegmentTraining(as_they_are, nn.Linear(width, 2), readout, **settings)
    return model.double()


@pytest.mark.parametrize("max_rows", [1, 1 << 18])
@pytest.mark.parametrize("name", OF_PYG)
def test_evaluation_is_pygs_readout_of_the_whole_graph(name: str, max_rows: int) -> None:
    readout = OF_PYG[name]().double()
    model, (x, cut) = model_of(readout, max_rows=max_rows).eval(), graph()
    want = model.head(readout(x))
    got = model([cut])
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    learned = [*readout.parameters(), *model.head.parameters()]
    slopes = (torch.autograd.grad(each.square().sum(), learned, allow_unused=True) for each in (got, want))
    torch.testing.assert_close(*slopes, rtol=1e-7, atol=1e-9)
    assert {id(each) for each in readout.parameters()} <= {id(each) for each in model.parameters()}


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_logits_of_any_size_do_not_overflow(scale: float) -> None:
    x, cut = graph(scale=scale)
    model = gst.GraphSegmentTraining(as_they_are, nn.Identity(), "softmax", max_rows=1).double()
    torch.testing.assert_close(model.exact([cut])[0], (x.softmax(0) * x).sum(0).float(), check_dtype=False)


@pytest.mark.parametrize("name", ["attention", "softmax", "std"])
def test_names_stand_for_readouts(name: str) -> None:
    torch.manual_seed(0)
    model, (x, cut) = model_of(name), graph()
    got = model.exact([cut])
    weights = (model.readout.phi.gate(x) if name == "attention" else x).softmax(0)
    want = x.std(0, correction=0) if name == "std" else (weights * x).sum(0)
    torch.testing.assert_close(got[0], model.head(want), rtol=1e-9, atol=1e-9)


def test_a_pair_of_functions_is_a_readout() -> None:
    x, cut = graph()
    phi = nn.Linear(CHANNELS, 4).double()
    rho = lambda sums: sums[:, :CHANNELS] / (1 + sums[:, 3:].abs())  # noqa: E731
    model = gst.GraphSegmentTraining(as_they_are, nn.Identity(), readout=(phi, rho)).double()
    torch.testing.assert_close(model.exact([cut]), rho(phi(x).sum(0, keepdim=True)))
    torch.testing.assert_close(model.scores(cut), model.exact([cut]))
    assert model.embed([cut]).shape == (1, 1, CHANNELS) and phi.weight in set(model.parameters())


def drawn(readout: Any, num_fresh: int, steps: int = 30) -> float:
    """Return the mean distance of the estimates from fresh segments alone from the exact embedding."""
    cut = graph()[1]
    readout = readout if isinstance(readout, tuple) else readout.double()
    given = {"readout": readout} if isinstance(readout, tuple) else {"pooling": readout}
    model = gst.GraphSegmentTraining(as_they_are, nn.Identity(), num_fresh=num_fresh, estimate="fresh", **given)
    return float((torch.stack([model([cut]).detach() for _ in range(steps)]) - model.exact([cut])).norm(dim=-1).mean())


@pytest.mark.parametrize("name", with_rest([*OF_PYG, "pair"][1:], ["softmax", "pair"]))
def test_more_fresh_segments_bring_the_estimate_to_the_exact_value(name: str) -> None:
    readout = (torch.square, torch.sqrt) if name == "pair" else OF_PYG[name]()
    most = graph()[1].num_segments
    errors = [drawn(readout, fresh) for fresh in (1, most - 2, most)]
    assert errors[0] > 1.5 * errors[1] > 0 and errors[2] < 1e-5


@pytest.mark.parametrize("name", ["attention", "softmax"])
def test_rows_of_a_table_stand_for_their_segments(name: str) -> None:
    cut, readout = graph()[1], OF_PYG[name]()
    table = gst.EmbeddingTable(1, 2 * CHANNELS)
    model = gst.GraphSegmentTraining(as_they_are, nn.Linear(CHANNELS, 2), readout, table=table, num_fresh=2)
    assert model.estimate.name == "dropout"
    for _ in range(20):
        model([cut]).sum().backward()
    torch.testing.assert_close(model([cut]), model.exact([cut]), rtol=1e-4, atol=1e-5)


def test_a_frozen_encoder_freezes_what_rows_are_made_of() -> None:
    gate = nn.Linear(CHANNELS, 1)
    model = gst.GraphSegmentTraining(
        as_they_are, nn.Linear(CHANNELS, 1), aggr.AttentionalAggregation(gate), table=gst.EmbeddingTable(1, 6)
    )
    model.freeze_encoder()
    assert not gate.weight.requires_grad and model.head.weight.requires_grad
    torch.testing.assert_close(model([graph()[1]]), model.exact([graph()[1]]))


def test_a_readout_of_nodes_wants_nodes() -> None:
    per_segment = lambda x, edge_index, batch: x.new_zeros(int(batch.max()) + 1, CHANNELS)  # noqa: E731
    with pytest.raises(ValueError, match="the readout goes over nodes"):
        gst.GraphSegmentTraining(per_segment, nn.Identity(), "std").exact([graph()[1]])


OPTIONS: dict[str, dict[str, list[Any]]] = {
    "SumAggregation": {}, "MeanAggregation": {}, "MaxAggregation": {},
    "StdAggregation": {"semi_grad": [True]},
    "SoftmaxAggregation": {"t": [0.5], "learn": [True], "semi_grad": [True], "channels": [CHANNELS]},
    "AttentionalAggregation": {
        "gate_nn": [lambda: nn.Linear(CHANNELS, CHANNELS), lambda: MLP([CHANNELS, 1], norm=None)],
        "nn": [lambda: nn.Linear(CHANNELS, CHANNELS)],
    },
}  # fmt: skip
NEEDED = {"channels": {"learn": True}}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_of_a_readout_of_pyg_has_its_values_and_gradients(name: str) -> None:
    parameters = inspect.signature(getattr(aggr, name)).parameters
    assert list(parameters) == list(OPTIONS[name]), "an option that the table does not know"
    required = {"gate_nn": lambda: nn.Linear(CHANNELS, 1)} if name == "AttentionalAggregation" else {}
    choices = [{}, *({key: value} for key, values in OPTIONS[name].items() for value in values)]
    for choice in choices:
        torch.manual_seed(0)
        settings = {**required, **{k: v for key in choice for k, v in NEEDED.get(key, {}).items()}, **choice}
        readout = getattr(aggr, name)(**{key: each() if callable(each) else each for key, each in settings.items()})
        model, (x, _) = model_of(readout.double(), max_nodes=40).eval(), graph()
        x = (x.abs() + 0.1).requires_grad_()
        given = data.Data(x=x, edge_index=torch.tensor([[0], [1]]))
        leaves = [x, *readout.parameters()]
        got, want = model([given])[0], model.head(readout(x))[0]
        torch.testing.assert_close(got, want, msg=str(choice))
        slopes = [torch.autograd.grad(each.sum(), leaves, allow_unused=True) for each in (got, want)]
        torch.testing.assert_close(*slopes, msg=str(choice))


def test_a_norm_over_the_nodes_of_a_graph_inside_a_readout_is_refused() -> None:
    gate = MLP([CHANNELS, CHANNELS, 1], norm="GraphNorm")
    with pytest.raises(ValueError, match="AttentionalAggregation holds an MLP with a norm over the nodes of a graph"):
        model_of(aggr.AttentionalAggregation(gate))


def test_joined_readouts_are_the_concatenation_of_theirs_with_gradients() -> None:
    """In a step that encodes all segments, and in one that takes most from a table."""
    _, cut = graph()
    encoder = Linear()

    def pooled(pooling: str, **settings: Any) -> Tensor:
        model = gst.GraphSegmentTraining(encoder, nn.Identity(), pooling, **settings).double()
        if settings:
            model.train()([cut])
        return model.train()([cut])

    for settings in ({"num_fresh": 99}, {"table": True, "estimate": "dropout", "num_fresh": 2}):
        joined = pooled("max+mean+sum", **settings)
        alone = torch.cat([pooled(each, **settings) for each in ("max", "mean", "sum")], -1)
        torch.testing.assert_close(joined, alone)
        for ours, theirs in zip(
            *(torch.autograd.grad(each.square().sum(), [*encoder.parameters()]) for each in (joined, alone)),
            strict=True,
        ):
            torch.testing.assert_close(ours, theirs)


def test_what_cannot_be_joined_is_refused() -> None:
    for pooling in ("mean+std", "mean+", "median+max"):
        with pytest.raises(ValueError, match=r"joined as in mean\+max"):
            readout_of(pooling)
    with pytest.raises(ValueError, match="corrects a sum"):
        model_of("mean+max", table=True, estimate="difference")
    assert model_of("mean+max", table=True).estimate.name == "dropout"
