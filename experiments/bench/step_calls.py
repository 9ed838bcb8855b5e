"""Launches, copies and waits of one training step on an accelerator, counted without one.

    python -m experiments.bench step_calls --json experiments/results/step_calls.json

The step runs on a described CUDA device: its tensors are fake, those of the host are real. Counted are operators on the
device (a launch or a few each, views left out), copies between host and device, and what makes the host wait. `eager`
is the estimator's step. `padded` is one of fixed shapes, in three parts: `before` and `after` run in every step, and
`recorded` is launched as one graph.
"""

from __future__ import annotations

import json
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from embedding_cache import EmbeddingTable
from experiments.bench.published import SIZES, PublishedSAGE, layout_program, standardised
from gst.cost.losses import pairwise_hinge
from gst.graphs.segments import SegmentedGraph, segment
from gst.method.batch import SegmentBatch
from gst.method.estimator import GraphSegmentTraining
from gst.method.fixed_batch import Sizes
from gst.method.fixed_step import FixedStep
from gst.method.rows import PrefetchedStep
from gst.nn import SAGE
from gst.nn.plans import DeviceSharing, set_sharing
from gst.programs.described import DEVICE, run_described
from gst.util.progress import Progress, no_progress
from gst.util.writing import write_json

ROOT = Path(__file__).parents[2]
COPIES = ("aten._to_copy.default", "aten.copy_.default")
ASKED = "prim.device.default"
GRAPHS, CONFIGS, CHANNELS = 4, 32, 256


class DeviceCalls(TorchDispatchMode):
    """Runs operations on tensors of `DEVICE` as fakes and all others for real.

    Attributes:
        waits: operator and place of each that makes the host wait.
        counts: operators, copies and waits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.waits: list[str] = []
        self.counts = Counter[str]()

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
        is_copy = str(function) in COPIES and len({each.device.type for each in before + after}) > 1
        self.counts["copies" if is_copy else "operators"] += not (function.is_view or str(function) == ASKED)
        if waits(str(function), args, kwargs, is_copy):
            self.counts["waits"] += 1
            places = [each for each in traceback.extract_stack() if each.filename.startswith(str(ROOT))]
            product = [each for each in places if f"{ROOT}/gst" in each.filename or "embedding_cache" in each.filename]
            own = product[-1:] or places[-2:]
            self.waits.append(f"{function} at {', '.join(f'{Path(e.filename).name}:{e.lineno}' for e in own)}")
        return result

    def counted(self) -> dict[str, int]:
        """Return the counts since the last call."""
        found = {name: self.counts[name] for name in ("operators", "copies", "waits")}
        self.counts.clear()
        return found

    def forget(self) -> None:
        self.counts.clear()
        self.waits.clear()


def waits(name: str, args: Any, kwargs: Any, is_copy: bool) -> bool:
    """Return True if the host waits in an operator, some of whose tensors are on the device."""
    if is_copy:
        return not (kwargs.get("non_blocking", False) or args[2:3] == (True,))
    if name.startswith(("aten.index.", "aten.index_put", "aten._index_put", "aten._unsafe_index")):
        indices = [each for each in pytree.tree_leaves(args[1]) if isinstance(each, Tensor)]
        return any(each.device.type == "cpu" or each.dtype in (torch.bool, torch.uint8) for each in indices)
    return False


@contextmanager
def described_streams() -> Iterator[None]:
    """Python asks about streams of CUDA before the dispatcher is asked: nothing arrives from the described device."""
    event = SimpleNamespace(query=lambda: False, synchronize=lambda: None)
    torch.cuda._lazy_init = lambda: None
    torch.cuda.current_stream = lambda device=None: SimpleNamespace(record_event=lambda: event)  # type: ignore
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # fake parameters are other objects
    yield


def segmented_programs() -> list[SegmentedGraph]:
    """Programs of the size of the published ones, in segments of at most 1,000 nodes."""
    graphs = standardised([layout_program(nodes, number) for number, nodes in enumerate(SIZES[:GRAPHS])])
    return [segment(graph, 1000, "contiguous") for graph in graphs]


def published() -> GraphSegmentTraining:
    """The network of the published code."""
    return GraphSegmentTraining(PublishedSAGE(CHANNELS, 3), nn.Identity(), "sum", 1, 0.5, table=EmbeddingTable(1, 1))


def sage() -> GraphSegmentTraining:
    """GraphSAGE of `gst fit`."""
    return GraphSegmentTraining(SAGE(64, 3), nn.Linear(64, 1), keep_probability=0.5, table=EmbeddingTable(1, 64))


def asked_for_sizes(batch: SegmentBatch, model: GraphSegmentTraining, calls: DeviceCalls) -> Any:
    """A device that says how many rows there are, which a fake one cannot."""
    encoder: Any = model.encoder
    sizes = DeviceSharing(batch, encoder._plan)._bounds

    def answer(plan: DeviceSharing, classes: Any) -> Any:
        calls.counts["waits"] += 1
        return sizes

    return patch.object(DeviceSharing, "_sizes", answer)


def eager(model: GraphSegmentTraining, data: list[SegmentedGraph], calls: DeviceCalls) -> dict[str, dict[str, int]]:
    """Count a step whose segments are read and copied ahead."""
    configs, targets = torch.arange(CONFIGS).repeat(GRAPHS, 1), torch.rand(GRAPHS, CONFIGS)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    draw = model.draw(data, configs)
    rows = model.rows_of(draw)
    calls.forget()
    batch = draw.fresh_batch()
    step = PrefetchedStep(draw, batch.to(DEVICE, torch.float32), rows)
    read = calls.counted()
    with asked_for_sizes(batch, model, calls):
        loss = pairwise_hinge(model(prefetched=step).squeeze(-1), targets.to(DEVICE, non_blocking=True), 0.1)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"reading": read, "step": calls.counted()}


def padded(model: GraphSegmentTraining, data: list[SegmentedGraph], calls: DeviceCalls) -> dict[str, dict[str, int]]:
    """Count the second step of fixed shapes."""
    configs, targets = torch.arange(CONFIGS).repeat(GRAPHS, 1), torch.rand(GRAPHS, CONFIGS)
    optimizer = torch.optim.Adam(model.parameters(), capturable=True, foreach=True)
    assert isinstance(model.table, EmbeddingTable)
    model.table.device = DEVICE
    model.table.clear()
    step = FixedStep(model, pairwise_hinge, optimizer, Sizes.of(data, GRAPHS, 1, CONFIGS, model.encoder))
    counts = dict[str, dict[str, int]]()
    for _ in range(2):
        calls.forget()
        step.fill(step.load(step.draw(data, configs)), targets)
        counts["before"] = calls.counted()
        step.compute()
        counts["recorded"] = calls.counted()
        step.finish()
        counts["after"] = calls.counted()
    return counts


CASES: dict[str, Any] = {
    "published network, eager, rows found on the host": (published, eager, "host"),
    "published network, eager, rows found on the device": (published, eager, "device"),
    "published network, padded": (published, padded, "auto"),
    "GraphSAGE, eager, rows found on the host": (sage, eager, "host"),
    "GraphSAGE, eager, rows found on the device": (sage, eager, "device"),
    "GraphSAGE, padded": (sage, padded, "auto"),
}


def run(progress: Progress = no_progress) -> dict[str, Any]:
    """Count the calls of each of `CASES`."""
    cases: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counts.json"
        for done, case in enumerate(CASES):
            progress(case, done, len(CASES))
            run_described(partial(count, case, path))
            cases[case] = json.loads(path.read_text())
    return {"cases": cases}


def count(case: str, path: Path) -> None:
    """Write the counts of a case."""
    torch.set_default_device("cpu")
    make, steps, where = CASES[case]
    set_sharing(where)
    data = segmented_programs()
    torch.manual_seed(0)
    model, configs = make(), torch.arange(CONFIGS).repeat(GRAPHS, 1)
    for _ in range(2):  # lazy parameters take their shapes, and the table has rows
        model(data, configs).sum().backward()
    model.zero_grad()
    with described_streams(), (calls := DeviceCalls()):
        counts = steps(model.to(DEVICE), data, calls)
    write_json(path, counts | {"places_of_waits": sorted(set(calls.waits))})
