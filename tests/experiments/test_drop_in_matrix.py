"""Encoders as their users write them, in the ways they train: what runs, what is refused, and with which words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.transforms import VirtualNode

import gst
from experiments.drop_in import matrix
from experiments.drop_in.matrix import CHANNELS, COLUMNS, FEATURES, ROWS, cut, graphs, run

COMPILED = ("compile(encoder)", "compile(model)")
USUAL = ("fp64",)
ROOT = Path(__file__).parents[2]
FEW = ("GATv2Conv with edge features", "HGTConv")


def cells(quick: bool) -> list[tuple[str, str]]:
    def is_quick(row: str, column: str) -> bool:
        return column in USUAL or (column not in COMPILED and row in FEW)

    return [(row, column) for row in ROWS for column in COLUMNS if is_quick(row, column) == quick]


@pytest.mark.parametrize(("row", "column"), cells(quick=True))
def test_an_encoder_runs(row: str, column: str) -> None:
    assert not run(row, column)


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("row", "column"), cells(quick=False))
def test_an_encoder_runs_in_every_other_way(row: str, column: str, unchecked: None) -> None:
    assert not run(row, column)


COUNT = """
import torch
from torch import nn
import gst
from experiments.drop_in.matrix import CHANNELS, ROWS, cut, graphs

for name in ("SAGEConv", "forward(data)"):
    torch.compiler.reset()
    compiled = []
    backend = lambda module, example: compiled.append(module) or module.forward
    row = ROWS[name]
    cuts = [cut(data) for data in graphs(row.kind)]
    table = gst.EmbeddingTable(1, CHANNELS)
    model = gst.GraphSegmentTraining(row.make(), nn.Linear(CHANNELS, 1), keep_probability=0.5, table=table)
    step = torch.compile(model, backend=backend, dynamic=True)
    for number in range(6):
        step(cuts[number % 3 :]).square().mean().backward()
        print(len(compiled))
"""


@pytest.mark.e2e
def test_a_compiled_model_is_few_graphs_and_no_step_compiles_again() -> None:
    """In a process of its own, without the checks of types, which would be compiled too."""
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    counts = list(map(int, done.stdout.split()))
    assert len(counts) == 12 and all(1 <= count <= 2 for count in counts)
    assert counts[0] == counts[5] and counts[6] == counts[11]


# What cannot be right is refused, in one line that says what to do -----------------------------------


def with_virtual_node() -> None:
    gst.segment(gst.from_pyg(VirtualNode()(graphs()[0])), max_nodes=10)


def dgl_style() -> None:
    class Net(nn.Module):
        def forward(self, g: Any, feats: Tensor) -> Tensor:
            return feats

    gst.GraphSegmentTraining(Net(), nn.Linear(1, 1))


def without_edge_features() -> None:
    data = graphs()[0]
    del data.edge_attr
    gst.GraphSegmentTraining(ROWS["GINEConv"].make(), nn.Linear(CHANNELS, 1))([gst.segment(gst.from_pyg(data))])


def of_two_kinds() -> None:
    first, second = graphs()[:2]
    second.edge_attr = second.edge_attr[:, :2]
    model = gst.GraphSegmentTraining(ROWS["GINEConv"].make(), nn.Linear(CHANNELS, 1))
    model([gst.segment(gst.from_pyg(data)) for data in (first, second)])


def with_configurations_and_integers() -> None:
    graph = gst.Graph(
        np.zeros((3, 2), np.int64), np.zeros((2, 0), np.int64), config_nodes=np.array([1]),
        config_features=np.zeros((2, 1, 4), np.float32),
    )  # fmt: skip
    gst.GraphSegmentTraining(ROWS["integer features"].make(), nn.Linear(CHANNELS, 1))([gst.segment(graph)])


def missing_types() -> None:
    class Forgetful(matrix.Heterogeneous):
        def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
            return {"op": super().forward(x_dict, edge_index_dict)["op"]}

    data = graphs("hetero", 1)[0]
    encoder = Forgetful(False, data.metadata())
    gst.GraphSegmentTraining(encoder, nn.Linear(CHANNELS, 1), inputs=ROWS["HGTConv"].inputs(data))([cut(data)])


REFUSED = {
    "virtual node": (with_virtual_node, "joined to all 24 others, as a virtual node is.*leave it out"),
    "DGL's order": (dgl_style, r"the encoder takes g, feats, as with DGL.*inputs=\{'g': lambda batch"),
    "no edge features": (without_edge_features, "takes 'edge_attr', which the graphs do not have.*edge_data"),
    "other columns": (of_two_kinds, "'edge_attr' differs between graphs of one step.*give all graphs the same columns"),
    "integers and configurations": (with_configurations_and_integers, "features of configurations.*inputs='batch'"),
    "a type without rows": (missing_types, "nothing for nodes of type 'buffer'"),
    "an unknown argument": (
        lambda: gst.GraphSegmentTraining(ROWS["GCNConv"].make(), nn.Linear(1, 1), inputs={"y": "x"}),
        "inputs names y, but the encoder takes edge_index, x",
    ),
    "an unknown way": (
        lambda: gst.GraphSegmentTraining(ROWS["GCNConv"].make(), nn.Linear(1, 1), inputs="dgl"),  # type: ignore[arg-type]
        "inputs is 'dgl'; want 'batch', 'data', or a mapping",
    ),
    "a dictionary": (
        lambda: gst.GraphSegmentTraining(lambda x, edge_index: {"a": x}, nn.Linear(FEATURES, 1))([cut(graphs()[0])]),
        "returned a dictionary; give inputs=gst.data.pyg.hetero_inputs",
    ),
    "no tensor": (
        lambda: gst.GraphSegmentTraining(lambda x, edge_index: 1.0, nn.Linear(FEATURES, 1))([cut(graphs()[0])]),
        "the encoder returned a float; want a tensor",
    ),
    "edge data of nodes": (
        lambda: gst.Graph(np.zeros((3, 1), np.float32), np.zeros((2, 1), np.int64), edge_data={"a": np.zeros(3)}),
        r"edge_data\['a'\] has shape \(3,\), want \(1, ...\)",
    ),
    "a name that is taken": (
        lambda: gst.Graph(np.zeros((3, 1), np.float32), np.zeros((2, 1), np.int64), node_data={"x": np.zeros(3)}),
        r"node_data\['x'\] has the name of another field",
    ),
    "PyG data without features": (
        lambda: gst.GraphSegmentTraining(ROWS["GCNConv"].make(), nn.Linear(CHANNELS, 1))([Data()]),  # type: ignore[list-item]
        r"x is None, want a tensor \(nodes, features\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused_in_one_line(name: str, unchecked: None) -> None:
    attempt, message = REFUSED[name]
    with pytest.raises(ValueError, match=message) as refusal:
        attempt()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("configs", [1, 3])
def test_inputs_by_name_and_by_function_are_what_the_signature_means(configs: int) -> None:
    """Arguments in another order, of other names, and computed from the batch."""
    graph = gst.Graph(
        np.random.default_rng(0).normal(size=(9, FEATURES)).astype(np.float32),
        np.array([[0, 1, 2, 5], [1, 2, 3, 6]]), np.arange(9), targets=np.zeros(configs),
        edge_data={"weight": np.arange(4.0)},
    )  # fmt: skip

    def theirs(kinds: Tensor, adjacency: Tensor, states: Tensor) -> Tensor:
        return states + kinds[:, None] + adjacency @ states

    def ours(x: Tensor, edge_index: Tensor, opcodes: Tensor, weight: Tensor) -> Tensor:
        heard = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]] * weight[:, None])
        return x + opcodes[:, None] + heard

    def dense(batch: Any) -> Tensor:
        values = batch.weight
        return torch.sparse_coo_tensor(batch.edge_index.flip(0), values, (batch.num_nodes, batch.num_nodes)).to_dense()

    inputs = {"kinds": "opcodes", "states": "x", "adjacency": dense}
    head = nn.Linear(FEATURES, 1)
    cut = [gst.segment(graph, max_nodes=3)]
    one = gst.GraphSegmentTraining(theirs, head, inputs=inputs).eval()(cut)
    assert one.shape == ((1,) if configs == 1 else (1, configs, 1))
    torch.testing.assert_close(one, gst.GraphSegmentTraining(ours, head).eval()(cut))
