"""A layer is complained about exactly when it lets one segment of a batch change another."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gst.method.encoding import complaints
from gst.method.estimator import GraphSegmentTraining
from gst.method.readouts import Pooling, readout_of

pyg = pytest.importorskip("torch_geometric.nn", reason="needs torch-geometric: pip install .[pyg]")
CHANNELS = 4


class Alone(nn.Module):
    """Takes every batch for one graph."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.layer(x, edge_index) if _hears(self.layer) else self.layer(x)


class Told(Alone):
    """Knows which segment each row belongs to, and says so."""

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        if _hears(self.layer):
            return self.layer(x, edge_index, batch)
        return self.layer(x, batch)


def _hears(layer: nn.Module) -> bool:
    return isinstance(layer, pyg.MessagePassing | pyg.GPSConv)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "GraphNorm": lambda: pyg.GraphNorm(CHANNELS),
    "InstanceNorm": lambda: pyg.InstanceNorm(CHANNELS),
    "LayerNorm of graphs": lambda: pyg.LayerNorm(CHANNELS),
    "LayerNorm of nodes": lambda: pyg.LayerNorm(CHANNELS, mode="node"),
    "PairNorm": pyg.PairNorm,
    "MeanSubtractionNorm": pyg.MeanSubtractionNorm,
    "GraphSizeNorm": pyg.GraphSizeNorm,
    "BatchNorm": lambda: pyg.BatchNorm(CHANNELS),
    "DiffGroupNorm": lambda: pyg.DiffGroupNorm(CHANNELS, 2),
    "torch BatchNorm": lambda: nn.BatchNorm1d(CHANNELS),
    "torch LayerNorm": lambda: nn.LayerNorm(CHANNELS),
    "torch GroupNorm": lambda: nn.GroupNorm(2, CHANNELS),
    "GCNConv": lambda: pyg.GCNConv(CHANNELS, CHANNELS),
    "GPSConv": lambda: pyg.GPSConv(CHANNELS, pyg.SAGEConv(CHANNELS, CHANNELS), norm=None),
    "Linear": lambda: nn.Linear(CHANNELS, CHANNELS),
}
NEEDS_BATCH = [
    "GraphNorm", "InstanceNorm", "LayerNorm of graphs", "PairNorm", "MeanSubtractionNorm", "GraphSizeNorm", "GPSConv",
]  # fmt: skip


def company_matters(encoder: nn.Module, *told: Tensor) -> bool:
    """Whether a segment of four nodes is embedded differently when another of five stands beside it."""
    torch.manual_seed(0)
    x, edges = torch.randn(9, CHANNELS), torch.tensor([[0, 1, 2, 5, 7], [1, 2, 3, 6, 8]])
    apart = encoder(x[:4], edges[:, :3], *(vector[:4] for vector in told))
    together = encoder(x, edges, *told)
    return not torch.allclose(together[:4], apart, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_a_complaint_is_true_and_silence_too(name: str) -> None:
    torch.manual_seed(0)
    encoder = Alone(LAYERS[name]())
    assert company_matters(encoder) == bool(complaints(encoder))


@pytest.mark.parametrize("name", NEEDS_BATCH)
def test_who_is_told_the_segments_is_not_complained_about(name: str) -> None:
    torch.manual_seed(0)
    encoder = Told(LAYERS[name]())
    assert not complaints(encoder)
    assert not company_matters(encoder, torch.tensor([0] * 4 + [1] * 5))


@pytest.mark.parametrize("layer", [pyg.BatchNorm(CHANNELS), nn.BatchNorm1d(CHANNELS), nn.LazyBatchNorm1d()])
def test_batch_norm_is_complained_about_even_by_who_is_told_the_segments(layer: nn.Module) -> None:
    assert len(complaints(Told(layer))) == 1


def test_the_warning_names_the_layers_and_what_to_do() -> None:
    layers = nn.Sequential(*(pyg.GraphNorm(CHANNELS) for _ in range(4)), nn.BatchNorm1d(CHANNELS))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        GraphSegmentTraining(Alone(layers), nn.Identity())
    batch_norm, graph_norm = (str(warning.message) for warning in caught)
    assert "BatchNorm1d at layer.4" in batch_norm and "LayerNorm" in batch_norm
    assert "GraphNorm at layer.0, GraphNorm at layer.1, GraphNorm at layer.2 and 1 more" in graph_norm
    assert "forward(self, x, edge_index, batch)" in graph_norm


def test_pyg_models_that_take_a_batch_are_told_it() -> None:
    assert not complaints(pyg.GCN(CHANNELS, CHANNELS, 2, norm="GraphNorm"))
    assert complaints(pyg.GCN(CHANNELS, CHANNELS, 2, norm="BatchNorm"))
    assert not complaints(lambda x, edge_index: x)


@pytest.mark.parametrize(
    ("pooling", "name"),
    [
        ("sum", "sum"),
        ("mean", "mean"),
        ("max", "max"),
        (pyg.SumAggregation(), "sum"),
        (pyg.MeanAggregation(), "mean"),
        (pyg.MaxAggregation(), "max"),
        (pyg.MeanAggregation, "mean"),
        (pyg.global_add_pool, "sum"),
        (pyg.global_mean_pool, "mean"),
        (pyg.global_max_pool, "max"),
    ],
)
def test_readouts_of_pyg_that_decompose_go_by_their_names(pooling: Any, name: Pooling) -> None:
    readout = readout_of(pooling)
    assert readout.combine == name and readout.is_plain


class MeanAggregation(nn.Module):
    """Of the name of PyG's, and something else."""


@pytest.mark.parametrize(
    ("pooling", "message"),
    [
        ("median", "'median' does not decompose over segments.*use one of sum, mean, max"),
        (
            pyg.Set2Set(4, 2),
            r"Set2Set\(4, 8\) weighs every node against all others.*use 'sum', 'mean' or 'max', or readout=",
        ),
        (pyg.AttentionalAggregation, "is not known to decompose"),
        (pyg.SortAggregation(3), "in order, so it does not decompose"),
        (pyg.MedianAggregation(), "in order, so it does not decompose"),
        (pyg.MulAggregation(), r"MulAggregation\(\) is not known to decompose.*use 'sum', 'mean' or 'max'"),
        (MeanAggregation(), r"MeanAggregation\(\) is not known to decompose"),
        (["mean", "max"], r"\['mean', 'max'\] is not known to decompose"),
        (torch.sum, "is not known to decompose"),
        (None, "None is not known to decompose"),
    ],
)
def test_other_readouts_are_refused_with_a_reason(pooling: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        readout_of(pooling)


def test_every_aggregation_of_pyg_is_accepted_or_refused() -> None:
    accepted = set()
    for name in pyg.aggr.classes:
        try:
            accepted.add(readout_of(getattr(pyg.aggr, name)).combine)
        except ValueError as error:
            assert "use 'sum', 'mean' or 'max'" in str(error)
    assert accepted == {"sum", "mean", "max"}
