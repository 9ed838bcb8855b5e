"""Training steps on a described CUDA device: what of them would make the host wait for the device, without a GPU.

Tensors of the device are fake, so that whatever reads a value of theirs on the host raises; those of the host are real.
Copies between the two that the host waits for, and indices by masks or from the host, are listed by their place.

    python -m tests.method.host_waits    # out: for each case its waits, or why it failed, as JSON
"""

import json
import sys
import tempfile
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gst
from embedding_cache import EmbeddingTable
from experiments.bench.step_calls import DeviceCalls, described_streams
from gst.cost.losses import pairwise_hinge
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.method.estimator import GraphSegmentTraining
from gst.method.fixed_batch import Sizes
from gst.method.fixed_step import FixedStep
from gst.method.rows import PrefetchedStep
from gst.nn.plans import set_sharing
from gst.programs.described import DEVICE, run_described

ROOT = Path(__file__).parents[2]


class Messages(nn.Module):
    """An encoder of somebody else."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(5, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.own(x).relu()
        return h + self.others(torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]]))


class TakesSegments(nn.Module):
    """Another, that takes a `SegmentBatch` and does not say how to make its plans."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, segments: Any) -> Any:
        return self.inner(segments)


class Waiting(Messages):
    """One that asks the device for a number."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x[x.isfinite().all(1)] if float(x.sum()) else x, edge_index)


class Masking(Messages):
    """One that copies a table to the device in each step, and waits."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x * torch.ones(5).to(x.device), edge_index)


def graphs() -> list[SegmentedGraph]:
    rng = np.random.default_rng(0)
    return [
        segment(
            Graph(
                rng.standard_normal((nodes, 3)).astype(np.float32),
                np.stack([np.arange(nodes - 1), np.arange(1, nodes)]),
                opcodes=rng.integers(0, 4, nodes),
                config_features=rng.integers(0, 3, (5, 2, 2)).astype(np.float32),
                config_nodes=np.array([1, nodes - 2]),
                name=f"path-{nodes}",
            ),
            8,
        )
        for nodes in (30, 40)
    ]


def known_rows(model: GraphSegmentTraining, where: DeviceCalls) -> int:
    """A training step, all of it but the draw and the reading of segments, which are of the host; how many rows of the
    table it finds."""
    data, configs = graphs(), torch.tensor([[0, 1, 2], [1, 2, 3]])
    for _ in range(3):  # lazy parameters take their shapes, and the table has rows
        model(data, configs).sum().backward()
    model.zero_grad()
    with described_streams(), where:
        model = model.to(DEVICE)
        if model.learned is not None and model.learned._moments is not None:
            model.learned._moments = model.learned._moments.to(DEVICE)  # where earlier steps leave them
            model.learned._map = None
        optimizer = torch.optim.Adam(model.parameters())
        draw = model.draw(data, configs)
        assert draw is not None
        rows = model.rows_of(draw)
        step = PrefetchedStep(draw, draw.fresh_batch().to(DEVICE, torch.float32), rows)
        known = 0 if rows is None else int((rows.ages() >= 0).sum())
        where.waits.clear()
        model(prefetched=step).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return known


def padded_step(model: GraphSegmentTraining, where: DeviceCalls) -> None:
    """A step of padded batches, which puts its inputs where the first one left them."""
    data, configs = graphs(), torch.tensor([[0, 1, 2], [1, 2, 3]])
    model(data, configs).sum().backward()  # lazy parameters take their shapes
    model.zero_grad()
    with described_streams(), where:
        model = model.to(DEVICE)
        optimizer = torch.optim.Adam(model.parameters(), capturable=True)
        if isinstance(model.table, EmbeddingTable):
            model.table.device = DEVICE
            model.table.clear()
        step = FixedStep(model, pairwise_hinge, optimizer, Sizes.of(data, 2, model.num_fresh, 3, model.encoder))
        where.waits.clear()
        for _ in range(2):
            step.fill(step.load(step.draw(data, configs)), torch.rand(2, 3, device="cpu"))
            step.compute()
            step.finish()


def table() -> EmbeddingTable:
    return EmbeddingTable(1, 16)


CASES: dict[str, Any] = {
    "fresh segments alone": lambda: (Messages(), {"estimate": "fresh"}),
    "all segments": lambda: (Messages(), {}),
    "the paper's dropout": lambda: (Messages(), {"table": table(), "estimate": "dropout"}),
    "difference": lambda: (Messages(), {"table": table(), "estimate": "difference"}),
    "composite": lambda: (Messages(), {"table": table(), "estimate": "composite", "pooling": "sum"}),
    **{name: lambda make=make: (make(16, 2, 4), {"table": table()}) for name, make in gst.nn.ENCODERS.items()},
    "SAGE, maxima": lambda: (gst.nn.SAGE(16, 2, num_opcodes=4, aggregation="max"), {"pooling": "max"}),
    "padded, fresh segments alone": lambda: (Messages(), {"estimate": "fresh"}),
    "padded, the paper's dropout": lambda: (Messages(), {"table": table(), "estimate": "dropout"}),
    "padded, maxima": lambda: (Messages(), {"table": table(), "estimate": "dropout", "pooling": "max"}),
    "padded, difference": lambda: (Messages(), {"table": table()}),
    **{
        f"padded, {name}": lambda make=make: (make(16, 2, 4), {"table": table()})
        for name, make in gst.nn.ENCODERS.items()
    },
    "padded, SAGE, maxima": lambda: (gst.nn.SAGE(16, 2, 4, aggregation="max"), {"table": table()}),
    "rows found on the device": lambda: (gst.nn.SAGE(16, 2, num_opcodes=4), {"table": table()}),
    "waiting for a number": lambda: (Waiting(), {"estimate": "fresh"}),
    "waiting for a copy": lambda: (Masking(), {"estimate": "fresh"}),
}


def of_case(name: str, path: Path) -> None:
    """Write the waits of a case, and why it failed if it did."""
    torch.set_default_device("cpu")
    where, failure, known = DeviceCalls(), None, None
    encoder, options = CASES[name]()
    set_sharing("auto" if name == "rows found on the device" else "host")
    pooling = options.pop("pooling", "mean")
    step = padded_step if name.startswith("padded") else known_rows
    try:
        known = step(GraphSegmentTraining(encoder, nn.Linear(16, 1), pooling, **options), where)
    except Exception as error:
        lines = [f"{Path(each.filename).name}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__)]
        failure = f"{type(error).__name__}: {str(error).splitlines()[0]} at {' < '.join(lines[:-7:-1])}"
    path.write_text(json.dumps({"waits": sorted(set(where.waits)), "failure": failure, "known": known}))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "waits.json"
        found = {}
        for case in sys.argv[1:] or CASES:
            run_described(partial(of_case, case, path))
            found[case] = json.loads(path.read_text())
    print(json.dumps(found))
