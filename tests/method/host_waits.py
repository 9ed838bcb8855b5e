"""Training steps on a described CUDA device: what of them would make the host wait for the device, without a GPU.

Tensors of the device are fake, so that whatever reads a value of theirs on the host raises; those of the host are real.
Copies between the two that the host waits for, and indices by masks or from the host, are listed by their place.

    python -m tests.method.host_waits    # out: for each case its waits, or why it failed, as JSON
"""

import json
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import gst
from embedding_cache import EmbeddingTable
from gst.cost.losses import pairwise_hinge
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.method.estimator import GraphSegmentTraining
from gst.method.fixed_step import FixedStep, Sizes
from gst.method.rows import PrefetchedStep
from gst.nn.plans import set_sharing
from gst.programs.described import DEVICE, run_described

ROOT = Path(__file__).parents[2]


class HostWaits(TorchDispatchMode):
    """Runs operations on tensors of `DEVICE` as fakes and all others for real.

    Attributes:
        waits: operator and place of each that makes the host wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.waits: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)  # of the host either way
        before = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        wanted = kwargs.get("device")
        is_there = wanted is not None and torch.device(wanted).type == DEVICE.type
        if not is_there and not any(isinstance(each, FakeTensor) for each in before):
            return function(*args, **kwargs)
        with self.fake:
            result = function(*args, **kwargs)
        after = [each for each in pytree.tree_leaves(result) if isinstance(each, Tensor)]
        if waits(str(function), args, kwargs, before, after):
            places = [each for each in traceback.extract_stack() if each.filename.startswith(str(ROOT))]
            own = [each for each in places if "/tests/" not in each.filename][-1:] or places[-2:]
            self.waits.append(f"{function} at {', '.join(f'{Path(e.filename).name}:{e.lineno}' for e in own)}")
        return result


def waits(name: str, args: Any, kwargs: Any, before: list[Tensor], after: list[Tensor]) -> bool:
    """Whether the host waits in an operator, some of whose tensors are on the device."""
    if name in ("aten._to_copy.default", "aten.copy_.default"):
        is_ahead = kwargs.get("non_blocking", False) or args[2:3] == (True,)
        return len({each.device.type for each in before + after}) > 1 and not is_ahead
    if name.startswith(("aten.index.", "aten.index_put", "aten._index_put", "aten._unsafe_index")):
        indices = [each for each in pytree.tree_leaves(args[1]) if isinstance(each, Tensor)]
        return any(each.device.type == "cpu" or each.dtype in (torch.bool, torch.uint8) for each in indices)
    return False


@contextmanager
def described_streams() -> Iterator[None]:
    """Python asks about streams of CUDA before the dispatcher is asked: events of the described device are none."""
    torch.cuda._lazy_init = lambda: None
    torch.cuda.current_stream = lambda device=None: SimpleNamespace(record_event=lambda: None)  # type: ignore
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # fake parameters are other objects
    yield


class Messages(nn.Module):
    """An encoder of somebody else."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(5, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.own(x).relu()
        return h + self.others(torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]]))


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


def known_rows(model: GraphSegmentTraining, where: HostWaits) -> int:
    """A training step, all of it but the draw and the reading of segments, which are of the host; how many rows of the
    table it finds."""
    data, configs = graphs(), torch.tensor([[0, 1, 2], [1, 2, 3]])
    for _ in range(3):  # lazy parameters take their shapes, and the table has rows
        model(data, configs).sum().backward()
    model.zero_grad()
    with described_streams(), where:
        model = model.to(DEVICE)
        if model._regression is not None and model._regression._moments is not None:
            model._regression._moments = model._regression._moments.to(DEVICE)  # where earlier steps leave them
            model._regression._map = None
        optimizer = torch.optim.Adam(model.parameters())
        draw = model.draw(data, configs)
        assert draw is not None
        rows = model.rows_of(draw)
        step = PrefetchedStep(draw, model.fresh_batch(draw).to(DEVICE, torch.float32), rows)
        known = int(model.is_known(draw, rows).sum())
        where.waits.clear()
        model(prefetched=step).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return known


def known_rows_padded(model: GraphSegmentTraining, where: HostWaits) -> int:
    """The same of a step of padded batches, which puts its inputs where the first one left them."""
    data, configs = graphs(), torch.tensor([[0, 1, 2], [1, 2, 3]])
    for _ in range(10):
        model(data, configs).sum().backward()
    model.zero_grad()
    with described_streams(), where:
        model = model.to(DEVICE)
        optimizer = torch.optim.Adam(model.parameters(), capturable=True)
        step = FixedStep(model, pairwise_hinge, optimizer, Sizes.of(data, 2, model.num_fresh, 3, model.encoder))
        where.waits.clear()
        for _ in range(2):
            if isinstance(model.table, EmbeddingTable):
                model.table._staged = None  # its rows are fake: they could not be written
            step.fill(step.load(step.draw(data, configs)), torch.rand(2, 3, device="cpu"))
            step.compute()
            step.finish()
    return 0 if not isinstance(model.table, EmbeddingTable) else model.table._index.rows_in_use


def table() -> EmbeddingTable:
    return EmbeddingTable(1, 16)


CASES: dict[str, Any] = {
    "fresh segments alone": lambda: (Messages(), {"estimate": "fresh"}),
    "all segments": lambda: (Messages(), {}),
    "the paper's dropout": lambda: (Messages(), {"table": table(), "estimate": "dropout"}),
    "difference": lambda: (Messages(), {"table": table(), "estimate": "difference"}),
    "regression": lambda: (Messages(), {"table": table(), "estimate": "regression", "pooling": "sum"}),
    "composite": lambda: (Messages(), {"table": table(), "estimate": "composite"}),
    "SAGE": lambda: (gst.nn.SAGE(16, 2, num_opcodes=4), {"table": table()}),
    "SAGE, maxima": lambda: (gst.nn.SAGE(16, 2, num_opcodes=4, aggregation="max"), {"pooling": "max"}),
    "GCN": lambda: (gst.nn.GCN(16, 2, num_opcodes=4), {"table": table()}),
    "GIN": lambda: (gst.nn.GIN(16, 2, num_opcodes=4), {"table": table()}),
    "GAT": lambda: (gst.nn.GAT(16, 2, num_opcodes=4), {"table": table()}),
    "SAGE over nodes": lambda: (gst.nn.SAGE(16, 2, 4, normalise_over="nodes"), {"table": table()}),
    "FusedSAGE": lambda: (gst.nn.FusedSAGE(16, 1, 1, num_opcodes=4), {"table": table()}),
    "padded, fresh segments alone": lambda: (Messages(), {"estimate": "fresh"}),
    "padded, the paper's dropout": lambda: (Messages(), {"table": table(), "estimate": "dropout"}),
    "padded, maxima": lambda: (Messages(), {"table": table(), "estimate": "dropout", "pooling": "max"}),
    "padded, difference": lambda: (Messages(), {"table": table()}),
    "padded, SAGE": lambda: (gst.nn.SAGE(16, 2, num_opcodes=4), {"table": table()}),
    "padded, SAGE over nodes": lambda: (gst.nn.SAGE(16, 2, 4, normalise_over="nodes"), {"table": table()}),
    "padded, SAGE, maxima": lambda: (gst.nn.SAGE(16, 2, 4, aggregation="max"), {"table": table()}),
    "padded, GAT": lambda: (gst.nn.GAT(16, 2, num_opcodes=4), {"table": table()}),
    "padded, FusedSAGE": lambda: (gst.nn.FusedSAGE(16, 1, 1, num_opcodes=4), {"table": table()}),
    "rows found on the device": lambda: (gst.nn.SAGE(16, 2, num_opcodes=4), {"table": table()}),
    "waiting for a number": lambda: (Waiting(), {"estimate": "fresh"}),
    "waiting for a copy": lambda: (Masking(), {"estimate": "fresh"}),
}


def of_case(name: str, path: Path) -> None:
    """Write the waits of a case, and why it failed if it did."""
    torch.set_default_device("cpu")
    where, failure, known = HostWaits(), None, 0
    encoder, options = CASES[name]()
    set_sharing("auto" if name == "rows found on the device" else "host")
    pooling = options.pop("pooling", "mean")
    rows = known_rows_padded if name.startswith("padded") else known_rows
    try:
        known = rows(GraphSegmentTraining(encoder, nn.Linear(16, 1), pooling, **options), where)
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
