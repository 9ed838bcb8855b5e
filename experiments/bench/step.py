"""Time and memory of a training step of the published network on programs of TpuGraphs' size.

The variants compute the same function. `unshared fp32` does what the published code does, copy by copy; the others
compute equal states once, and the last one multiplies in bf16, on processors with instructions for it. Each runs in a
process of its own.

    python -m experiments.bench step --data data/layout/xla/random/train --configs 32
    python -m experiments.bench step --against full
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from embedding_cache import EmbeddingTable
from experiments.bench.child import call
from experiments.bench.published import PublishedSAGE, programs, standardised
from gst.cost.losses import pairwise_hinge
from gst.cost.metrics import kendall_tau
from gst.graphs.segments import SegmentedGraph, segment
from gst.machine.devices import machine_record
from gst.method.estimator import GraphSegmentTraining
from gst.util.process import keep_freed_memory
from gst.util.progress import Progress, no_progress

WARM_UP = 4
MAX_ROWS = 1 << 16


@dataclass(frozen=True)
class Setting:
    """Of all variants alike: sizes of a step and of the network, and how many steps to time."""

    data: str = ""
    batch_graphs: int = 4
    configs: int = 32
    layers: int = 3
    channels: int = 256
    max_nodes: int = 1000
    steps: int = 16


VARIANTS = {"unshared fp32": (False, False), "shared fp32": (True, False), "shared bf16": (True, True)}
MOST_SLOWDOWN = 3.0  # of bf16 products over those of fp32, up to which bf16 is measured
LONGEST_S = 3.0  # of one product of matrices


HELP = {
    "data": "folder of TpuGraphs layout files (default: six synthetic graphs)",
    "against": "train to the same score on whole graphs of 100,000 nodes",
    "batch_graphs": "graphs in a step", "configs": "configurations of each", "layers": "SAGE layers",
    "channels": "their width", "max_nodes": "largest segment", "steps": "steps to time",
}  # fmt: skip


def run(
    data: Path | None = None,
    against: Literal["full"] | None = None,
    batch_graphs: int = 4,
    configs: int = 32,
    layers: int = 3,
    channels: int = 256,
    max_nodes: int = 1000,
    steps: int = 16,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Measure all variants.

    Returns:
        Of the last variant measured `step_ms` (median), `exact_eval_ms` (two graphs, all segments), `peak_mib`
        (resident, the whole process), `tau_difference_bf16` (mean absolute difference of Kendall's tau over the graphs,
        the same weights in fp32 and bf16; missing without bf16), `table_step_over_gst_one` (alternately in one
        process), `stall` (share of time waiting for the reading thread); `speedup` and `eval_speedup` over the unshared
        variant; `share_of_peak` (arithmetic of the matrix products of a step over what the machine could do in its
        time); `variants`: the same for each; `not_measured`: variants that this processor is too slow for, and why.
    """
    if against:
        from experiments.bench import against_full

        return against_full.run(progress)
    setting = Setting(str(data or ""), batch_graphs, configs, layers, channels, max_nodes, steps)
    graphs = programs(Path(setting.data) if setting.data else None)
    fewest = min(graph.num_configs for graph in graphs)
    if setting.configs > fewest:
        raise ValueError(f"--configs is {setting.configs}, but a graph has only {fewest}; ask for at most so many")
    slowdown = bf16_slowdown()
    names = [name for name, (_, bf16) in VARIANTS.items() if not bf16 or slowdown <= MOST_SLOWDOWN]
    results: dict[str, Any] = {}
    for done, variant in enumerate(names):
        progress(variant, done, len(names))
        settings = dataclasses.asdict(setting)
        results[variant] = call("step:measure", variant=variant, setting=settings, in_full=variant == names[-1])
    progress("done", len(names), len(names))
    last, plain = results[names[-1]], results["unshared fp32"]
    keys = ("step_ms", "exact_eval_ms", "peak_mib", "tau_difference_bf16", "table_step_over_gst_one", "stall")
    return {
        **{key: last[key] for key in keys if key in last},
        "speedup": plain["step_ms"] / last["step_ms"],
        "eval_speedup": plain["exact_eval_ms"] / last["exact_eval_ms"],
        "share_of_peak": last["gflop"] / last["step_ms"] * 1e3 / last["matmul_gflops"],
        "setting": dataclasses.asdict(setting),
        "variants": results,
        "not_measured": [f"{name} ({too_slow(slowdown)})" for name in VARIANTS if name not in results],
        "machine": machine_record(),
    }


def bf16_slowdown() -> float:
    """Time of a small product of matrices in bf16 over that in fp32: 0.5 with instructions for bf16, 50 without."""
    return _rate(torch.float32, 256, 3) / _rate(torch.bfloat16, 256, 3)


def too_slow(slowdown: float) -> str:
    """Why bf16 is not measured."""
    return f"products in bf16 take {slowdown:.0f} times as long as in fp32 on this processor"


# One variant -------------------------------------------------------------------------------------------------------


class Trainer:
    """The published training step: one fresh segment per graph, keep probability 1/2, pairwise hinge, Adam."""

    def __init__(
        self, graphs: list[SegmentedGraph], setting: Setting, share: bool, bf16: bool,
        device: torch.device = torch.device("cpu"),  # noqa: B008 - it is never written to
    ) -> None:  # fmt: skip
        torch.manual_seed(0)
        self.graphs, self.setting, self.device = graphs, setting, device
        self.autocast = lambda: torch.autocast(device.type, torch.bfloat16) if bf16 else contextlib.nullcontext()
        encoder = PublishedSAGE(setting.channels, setting.layers, share=share).to(device)
        self.table = self._model(encoder, table=EmbeddingTable(1, 1, device=device))
        self.gst_one = self._model(encoder, estimate="fresh")
        self.optimizer = torch.optim.Adam(encoder.parameters(), 1e-4)
        self._generator = torch.Generator().manual_seed(0)

    def _model(self, encoder: nn.Module, **rest: Any) -> GraphSegmentTraining:
        return GraphSegmentTraining(encoder, _score, "sum", 1, 0.5, max_rows=MAX_ROWS, **rest)

    def draw(self) -> tuple[list[SegmentedGraph], Tensor, Tensor]:
        """Graphs, configurations and targets of a step."""
        many = min(self.setting.batch_graphs, len(self.graphs))
        graphs = [self.graphs[i] for i in torch.randperm(len(self.graphs), generator=self._generator)[:many].tolist()]
        configs = torch.stack([
            torch.randperm(graph.num_configs, generator=self._generator)[: self.setting.configs] for graph in graphs
        ])  # fmt: skip
        pairs = zip(graphs, configs, strict=True)
        return graphs, configs, torch.stack([torch.from_numpy(graph.targets[row.numpy()]) for graph, row in pairs])

    def step(self, model: GraphSegmentTraining) -> float:
        graphs, configs, targets = self.draw()
        with self.autocast():
            loss = pairwise_hinge(model(graphs, configs), targets.to(self.device, non_blocking=True), 0.1)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def taus(self, bf16: bool) -> list[float]:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            scores = [self.table.exact([graph])[0].numpy() for graph in self.graphs]
        return [kendall_tau(s, graph.targets) for s, graph in zip(scores, self.graphs, strict=True)]


def _score(embedding: Tensor) -> Tensor:
    """The published head sits in the encoder: the score of a graph is the sum of those of its segments."""
    return embedding.squeeze(-1)


def measure(variant: str, setting: dict[str, Any], in_full: bool) -> dict[str, Any]:
    """Measure one variant in this process; `in_full` also measures GST-One, waiting, and the error of bf16."""
    keep_freed_memory()
    sizes = Setting(**setting)
    share, bf16 = VARIANTS[variant]
    graphs = standardised(programs(Path(sizes.data) if sizes.data else None))
    trainer = Trainer([segment(graph, sizes.max_nodes, "contiguous") for graph in graphs], sizes, share, bf16)
    for _ in range(WARM_UP):
        trainer.step(trainer.table)
    losses, seconds, alone = [], [], []
    for _ in range(sizes.steps):
        seconds += [_timed(lambda: losses.append(trainer.step(trainer.table)))]
        alone += [_timed(lambda: trainer.step(trainer.gst_one))] if in_full else []
    peak = _peak_mib()
    with FlopCounterMode(display=False) as counter:
        trainer.step(trainer.table)
    configs = torch.arange(sizes.configs).repeat(len(trainer.graphs[:2]), 1)
    with trainer.autocast():
        evaluation = min(_timed(lambda: trainer.table.exact(trainer.graphs[:2], configs)) for _ in range(3))
    result: dict[str, Any] = {
        "step_ms": 1e3 * statistics.median(seconds), "step_ms_min": 1e3 * min(seconds), "losses": losses,
        "exact_eval_ms": 1e3 * evaluation, "peak_mib": peak, "gflop": counter.get_total_flops() / 1e9,
        "matmul_gflops": max(map(_matmul_gflops, (torch.float32, *[torch.bfloat16] * bf16))),
    }  # fmt: skip
    if in_full:
        result["table_step_over_gst_one"] = statistics.median(seconds) / statistics.median(alone)
        result["stall"] = _stall(trainer)
    if in_full and bf16:
        pairs = zip(trainer.taus(False), trainer.taus(True), strict=True)
        result["tau_difference_bf16"] = float(np.mean([abs(a - b) for a, b in pairs]))
    return result


def _stall(trainer: Trainer) -> float:
    """Share of the time that steps wait for their segments when these are read ahead."""
    from gst.data.loader import Prefetched

    def steps() -> Iterator[tuple[list[SegmentedGraph], Tensor, Tensor]]:
        for _ in range(trainer.setting.steps):
            yield trainer.draw()

    model = trainer.table
    read = Prefetched(steps(), lambda step, ahead: partial(model.load, model.draw(*step[:2], ahead)))
    for (_, _, targets), prefetched in read:
        with trainer.autocast():
            loss = pairwise_hinge(model(prefetched=prefetched), targets, 0.1)
        trainer.optimizer.zero_grad()
        loss.backward()
        trainer.optimizer.step()
    return read.waited / read.passed


def _timed(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def _peak_mib() -> float:
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def _matmul_gflops(dtype: torch.dtype, size: int = 2048, runs: int = 12) -> float:
    """10^9 operations a second of large products; of small ones where a large one would take more than `LONGEST_S`."""
    small = _rate(dtype, 256, 3)
    return small if 2e-9 * size**3 / small > LONGEST_S else _rate(dtype, size, runs)


def _rate(dtype: torch.dtype, size: int, runs: int) -> float:
    """10^9 operations a second of a product of square matrices, in the quickest run."""
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    return 2e-9 * size**3 / min(_timed(lambda: a @ b) for _ in range(runs))
