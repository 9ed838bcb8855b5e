"""Every usual kind of encoder under GST, in every usual way of training: which combinations run.

A row is an encoder as its author would write it; a column is one setting of a short training (task, precision,
compilation, table, resuming), the others being the usual ones. A cell runs if three steps change the weights by finite
gradients and leave a finite loss, and the prediction in evaluation mode is that of the encoder on the whole graph.

    python -m experiments.drop_in.matrix --json experiments/results/drop_in_matrix.json
"""

from __future__ import annotations

import argparse
import inspect
import io
import json
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import to_dense_batch

import gst
from gst.data.pyg import from_pyg, hetero_inputs
from gst.machine.devices import machine_record
from gst.util.progress import bar
from gst.util.writing import atomic_write

CHANNELS, FEATURES, EDGE_FEATURES, OPCODES = 8, 4, 3, 5
STEPS = 3


# Encoders as their authors write them -------------------------------------------------------------------------------


class Convolutions(nn.Module):
    """Two of PyG's convolutions. `forward` takes `(x, edge_index)`; subclasses take more."""

    def __init__(self, make: Callable[[int, int], nn.Module] = pyg.SAGEConv) -> None:
        super().__init__()
        self.first, self.second = make(FEATURES, CHANNELS), make(CHANNELS, CHANNELS)

    def layers(self, x: Tensor, *edges: Tensor | None) -> Tensor:
        return self.second(self.first(x, *edges).relu(), *edges)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.layers(x, edge_index)


class WithEdges(Convolutions):
    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:  # type: ignore[override]
        return self.layers(x, edge_index, edge_attr)


class OfData(Convolutions):
    def forward(self, data: Any) -> Tensor:  # type: ignore[override]
        return self.layers(data.x, data.edge_index, data.edge_attr)


class Everything(Convolutions):
    """With a GraphNorm, which is told which rows belong together."""

    def __init__(self, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__(make)
        self.norm = pyg.GraphNorm(CHANNELS)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:  # type: ignore[override]
        return self.norm(self.layers(x, edge_index, edge_attr), batch)


class Weighted(Convolutions):
    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.layers(x, edge_index, edge_weight)


class Pair(Convolutions):
    """Returns a tuple, of which the first entry is meant."""

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        hidden = self.layers(x, edge_index)
        return hidden, hidden.square().mean()


class OwnOpcodes(Convolutions):
    """With an embedding of opcodes of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(OPCODES, FEATURES)

    def forward(self, x: Tensor, edge_index: Tensor, opcodes: Tensor) -> Tensor:  # type: ignore[override]
        return self.layers(x + self.embedding(opcodes), edge_index)


class Integers(Convolutions):
    """Features that are integers, embedded by the encoder, as in molecules."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, FEATURES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.layers(self.embedding(x).sum(1), edge_index)


class Gps(nn.Module):
    """GPSConv (message passing and attention) over the nodes of each segment."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, CHANNELS)
        local = pyg.SAGEConv(CHANNELS, CHANNELS)
        self.layer = pyg.GPSConv(CHANNELS, local, heads=2, norm="LayerNorm", norm_kwargs={"mode": "node"})

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.layer(self.enter(x), edge_index, batch)


class DenseTransformer(nn.Module):
    """Full attention between the nodes of each segment, without edges."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, CHANNELS)
        self.layer = nn.TransformerEncoderLayer(CHANNELS, 2, 2 * CHANNELS, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        dense, mask = to_dense_batch(self.enter(x), batch)
        return self.layer(dense, src_key_padding_mask=~mask)[mask]


class Heterogeneous(nn.Module):
    """`forward(x_dict, edge_index_dict)` with a convolution for each type of edges, or HGTConv."""

    def __init__(self, transformer: bool, metadata: tuple[list[str], list[tuple[str, str, str]]]) -> None:
        super().__init__()
        self.enter = nn.ModuleDict({kind: pyg.Linear(-1, CHANNELS) for kind in metadata[0]})
        if transformer:
            self.layer = pyg.HGTConv(CHANNELS, CHANNELS, metadata, heads=2)
        else:
            self.layer = pyg.HeteroConv({kind: pyg.SAGEConv(CHANNELS, CHANNELS) for kind in metadata[1]})

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> dict[str, Tensor]:
        x_dict = {kind: self.enter[kind](x) for kind, x in x_dict.items()}
        return {**x_dict, **self.layer(x_dict, edge_index_dict)}


# Graphs to train on -------------------------------------------------------------------------------------------------


def graphs(kind: str = "plain", count: int = 4) -> list[Any]:
    """Return PyG's `Data` or `HeteroData`, each of two parts that no edge joins: a segment each."""
    generator = torch.Generator().manual_seed(0)
    make = _typed if kind == "hetero" else partial(_plain, kind)
    return [make(12 + number, generator) for number in range(count)]


def _plain(kind: str, half: int, generator: torch.Generator) -> Data:
    ring = torch.stack([torch.arange(half), (torch.arange(half) + 1) % half])
    chords = torch.randint(half, (2, half), generator=generator)
    edges = torch.cat([ring, chords, ring + half, chords + half], dim=1)
    draw = partial(torch.randn, generator=generator)
    is_integer = kind == "integers"
    x = torch.randint(16, (2 * half, 2), generator=generator) if is_integer else draw(2 * half, FEATURES)
    data = Data(x=x, edge_index=edges, y=draw(1))
    data.opcodes = torch.randint(OPCODES, (2 * half,), generator=generator)
    data.edge_attr = draw(edges.shape[1], EDGE_FEATURES)
    if kind == "weights":
        data.edge_weight = torch.rand(edges.shape[1], generator=generator)
    return data


def _typed(half: int, generator: torch.Generator) -> HeteroData:
    """Operations that feed each other and write buffers, two operations for each buffer, in two parts."""
    data = HeteroData()
    data["op"].x = torch.randn(2 * half, FEATURES, generator=generator)
    data["buffer"].x = torch.randn(half, 2, generator=generator)
    ops, buffers = torch.arange(2 * half), torch.arange(half)
    chain = torch.stack([ops[:-1], ops[1:]])
    data["op", "feeds", "op"].edge_index = chain[:, ops[1:] != half // 2 * 2]
    data["op", "writes", "buffer"].edge_index = torch.stack([ops, ops // 2])
    data["buffer", "read_by", "op"].edge_index = torch.stack([buffers, 2 * buffers])
    data.y = torch.randn(1, generator=generator)
    return data


def cut(data: Any) -> gst.SegmentedGraph:
    """Return the graph with a segment for each part, so that no edge is cut."""
    graph = from_pyg(data)
    ones = np.ones(graph.edges.shape[1])
    adjacency = coo_array((ones, tuple(graph.edges)), shape=(graph.num_nodes, graph.num_nodes))
    return gst.segment(graph, parts=connected_components(adjacency, directed=False)[1].astype(np.int64))


# Rows and columns ---------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """An encoder: `make` builds it for graphs of one `kind`.

    Args:
        inputs: function of a graph that gives `inputs` of `gst.GraphSegmentTraining`.
        over_segments: its layers see whole segments, so that predictions are equal for graphs of one segment only.
        warns: begin of the warning that it causes.
    """

    make: Callable[[], nn.Module]
    kind: str = "plain"
    inputs: Callable[[Any], Any] = lambda data: None
    over_segments: bool = False
    warns: str = ""


def _gine(width: int, channels: int) -> nn.Module:
    return pyg.GINEConv(nn.Linear(width, channels), edge_dim=EDGE_FEATURES)


def _nnconv(width: int, channels: int) -> nn.Module:
    return pyg.NNConv(width, channels, nn.Linear(EDGE_FEATURES, width * channels))


def _sequential() -> nn.Module:
    return pyg.Sequential("x, edge_index", [(pyg.SAGEConv(FEATURES, CHANNELS), "x, edge_index -> x"), nn.ReLU()])


def _heterogeneous(transformer: bool) -> nn.Module:
    return Heterogeneous(transformer, graphs("hetero", 1)[0].metadata())


ROWS: dict[str, Row] = {
    "GCNConv": Row(lambda: Convolutions(pyg.GCNConv)),
    "GCNConv with edge weights": Row(lambda: Weighted(pyg.GCNConv), "weights"),
    "SAGEConv": Row(Convolutions),
    "GATv2Conv with edge features": Row(lambda: WithEdges(partial(pyg.GATv2Conv, edge_dim=EDGE_FEATURES))),
    "GINEConv": Row(lambda: WithEdges(_gine)),
    "TransformerConv": Row(lambda: WithEdges(partial(pyg.TransformerConv, edge_dim=EDGE_FEATURES))),
    "NNConv": Row(lambda: WithEdges(_nnconv)),
    "GPSConv": Row(Gps, over_segments=True),
    "HeteroConv": Row(lambda: _heterogeneous(False), "hetero", hetero_inputs),
    "HGTConv": Row(lambda: _heterogeneous(True), "hetero", hetero_inputs),
    "forward(data)": Row(lambda: OfData(_gine)),
    "forward(x, edge_index, edge_attr, batch)": Row(lambda: Everything(_gine), over_segments=True),
    "returns a tuple": Row(Pair),
    "own opcode embedding": Row(OwnOpcodes),
    "integer features": Row(Integers, "integers"),
    "PyG's GraphSAGE": Row(lambda: pyg.GraphSAGE(FEATURES, CHANNELS, 2)),
    "PyG's Sequential": Row(_sequential),
    "BatchNorm": Row(lambda: pyg.GCN(FEATURES, CHANNELS, 2, norm="BatchNorm"), warns="the encoder holds BatchNorm"),
    "dense transformer": Row(DenseTransformer, over_segments=True),
}


class Setting(NamedTuple):
    """Settings of the training of a row; the fields of one column differ from these."""

    task: str = "regression"
    precision: str = "fp32"
    compiled: str = "no"
    table: str = "memory"
    estimate: str = "dropout"
    resumed: bool = False


COLUMNS: dict[str, Setting] = {
    "regression": Setting(),
    "ranking": Setting(task="ranking"),
    "classes": Setting(task="classes"),
    "binary": Setting(task="binary"),
    "several targets": Setting(task="several targets"),
    "fp64": Setting(precision="fp64"),
    "bf16 autocast": Setting(precision="bf16"),
    "fp16 with scaler": Setting(precision="fp16"),
    "compile(encoder)": Setting(compiled="encoder"),
    "compile(model)": Setting(compiled="model"),
    "no table": Setting(table="none"),
    "table on disk": Setting(table="disk"),
    "composite estimate": Setting(estimate="composite"),
    "resumed": Setting(resumed=True),
}
OUTPUTS = {"regression": 1, "ranking": 1, "classes": 3, "binary": 1, "several targets": 2}


def loss_of(task: str, outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of a task. `labels` are real numbers, one for each graph."""
    if task == "ranking":
        better, worse = outputs[labels.argsort()][1:], outputs[labels.argsort()][:-1]
        return nn.functional.softplus(worse - better).mean()
    if task == "classes":
        return nn.functional.cross_entropy(outputs, labels.argsort().argsort() % 3)
    if task == "binary":
        return nn.functional.binary_cross_entropy_with_logits(outputs, (labels > 0).to(outputs.dtype))
    targets = torch.stack([labels, -labels], dim=1) if task == "several targets" else labels
    return nn.functional.mse_loss(outputs, targets)


class Training:
    """One cell: a model and its optimizer, trained step by step."""

    def __init__(self, row: Row, setting: Setting, disk: Path, backend: str) -> None:
        torch.manual_seed(0)
        torch.compiler.reset()
        self.setting, self.data = setting, graphs(row.kind)
        self.cut = [cut(data) for data in self.data]
        self.labels = torch.tensor([float(graph.targets[0]) for graph in self.cut])
        encoder, head = row.make(), nn.Linear(CHANNELS, OUTPUTS[setting.task])
        tiers: dict[str, dict[str, Any]] = {"memory": {}, "disk": {"tier": "disk", "path": disk}}
        table = gst.EmbeddingTable(1, CHANNELS, **tiers[setting.table]) if setting.table in tiers else None
        self.model = gst.GraphSegmentTraining(
            torch.compile(encoder, backend=backend) if setting.compiled == "encoder" else encoder, head, table=table,
            keep_probability=0.5 if table is not None and setting.estimate == "dropout" else 1.0,
            estimate=setting.estimate if table is not None else "dropout",
            inputs=row.inputs(self.data[0]),
        )  # fmt: skip
        self.model(self.cut)  # widths of lazy layers
        if setting.precision == "fp64":
            self.model.double()
            self.labels = self.labels.double()
        is_compiled = setting.compiled == "model"
        self.step_model: Any = torch.compile(self.model, backend=backend) if is_compiled else self.model
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", enabled=setting.precision == "fp16")

    def step(self) -> float:
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.setting.precision)
        with torch.autocast("cpu", dtype) if dtype else nullcontext():
            outputs = self.step_model(self.cut)
        loss = loss_of(self.setting.task, outputs, self.labels)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()

    def state(self) -> bytes:
        """Return a checkpoint, as bytes that `torch.load(weights_only=True)` reads."""
        file = io.BytesIO()
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, file)
        return file.getvalue()

    def load(self, state: bytes) -> None:
        loaded = torch.load(io.BytesIO(state), weights_only=True)
        self.model.load_state_dict(loaded["model"])
        self.optimizer.load_state_dict(loaded["optimizer"])

    def whole(self) -> Tensor:
        """Return the predictions of encoder and head for whole graphs, called directly."""
        encoder = getattr(self.model.encoder, "_orig_mod", self.model.encoder)
        predictions = self.model.head(torch.stack([self._embeddings(encoder, data).mean(0) for data in self.data]))
        return predictions[:, 0] if predictions.shape[1] == 1 else predictions

    def _embeddings(self, encoder: nn.Module, data: Any) -> Tensor:
        """Return the embeddings of the nodes of a whole graph."""
        data = data.clone().apply(lambda each: each.to(self.labels.dtype) if each.is_floating_point() else each)
        if isinstance(data, HeteroData):
            by_type = encoder(data.x_dict, data.edge_index_dict)
            return torch.cat([by_type[kind] for kind in data.node_types])
        data.batch = torch.zeros(data.num_nodes, dtype=torch.long)
        values = {"data": data, **data.to_dict()}
        named = {name: values[name] for name in inspect.signature(encoder.forward).parameters if name in values}
        result = encoder(**named) if named else encoder(data.x, data.edge_index)  # PyG's Sequential names none
        return result[0] if isinstance(result, tuple) else result


def run(name: str, column: str, backend: str = "aot_eager") -> str:
    """Run a cell; return "" if it runs, else the reason."""
    row, setting = ROWS[name], COLUMNS[column]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        training = Training(row, setting, Path(folder) / "table", backend)
        warned = [str(each.message) for each in caught if str(each.message).startswith("the encoder")]
        if row.over_segments:
            warned = [each for each in warned if not each.startswith("the encoder looks at all nodes of a segment")]
        if bool(warned) != bool(row.warns) or not all(each.startswith(row.warns) for each in warned):
            return f"warnings {warned}, want {row.warns!r}"
        before = [parameter.detach().clone() for parameter in training.model.parameters()]
        losses = [training.step() for _ in range(STEPS)]
        if not np.isfinite(losses).all():
            return f"losses {losses}"
        moved = [not torch.equal(*pair) for pair in zip(before, training.model.parameters(), strict=True)]
        if sum(moved) < len(moved) / 2:
            return f"only {sum(moved)} of {len(moved)} parameters have moved"
        if setting.resumed:
            state = training.state()
            expected = [training.step() for _ in range(2)]
            again = Training(row, setting, Path(folder) / "other", backend)
            again.load(state)
            if (resumed := [again.step() for _ in range(2)]) != expected:
                return f"resumed losses {resumed}, uninterrupted {expected}"
        training.model.eval()
        with torch.no_grad():
            exact, whole = training.model(training.cut), training.whole()
        tolerance = 1e-10 if setting.precision == "fp64" else 1e-4
        if not row.over_segments and not torch.allclose(exact, whole, atol=tolerance, rtol=tolerance):
            return f"exact prediction off by {(exact - whole).abs().max():.2g}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the cells here too")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, str]] = {}
    for row in bar(ROWS, desc="encoders"):
        results[row] = {column: run(row, column, arguments.backend) for column in COLUMNS}
    for row, outcomes in results.items():
        failed = {column: outcome for column, outcome in outcomes.items() if outcome}
        print(f"{row}: {len(outcomes) - len(failed)} of {len(outcomes)}", *(f"\n  {c}: {o}" for c, o in failed.items()))
    if arguments.json:
        command = f"python -m experiments.drop_in.matrix --backend {arguments.backend}"
        record = {"cells": results, "steps": STEPS, "machine": machine_record(), "command": command}
        with atomic_write(arguments.json) as file:
            file.write(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
