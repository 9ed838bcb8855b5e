"""Time and memory of scoring many configurations of one giant program.

The program is made (`experiments.bench.published`), the encoder untrained. Each variant runs in a process of its own
and scores as `gst rank` does: some configurations at a time, all segments, without gradient.

    python -m experiments.bench score --nodes 8000 --configurable 400 --configs 256
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.bench.child import command_of, say
from experiments.bench.memory import watch
from experiments.bench.published import layout_program
from experiments.bench.step import MOST_SLOWDOWN, bf16_slowdown, too_slow
from gst.cost.metrics import kendall_tau
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.machine.devices import machine_record
from gst.method.batch import assemble
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head
from gst.nn.encoders import BOTH
from gst.nn.sharing import Sharing
from gst.util.process import keep_freed_memory
from gst.util.progress import Progress, no_progress

CHANNELS, LAYERS = 64, 3
MAX_NODES = 1000  # of a segment
CONFIGS_AT_ONCE = 256  # as `gst rank` takes them
VARIANTS = {"fp32": False, "bf16": True}


@dataclass(frozen=True)
class Setting:
    """The program: how many nodes and configurable nodes it has, and how many configurations are scored."""

    nodes: int = 40_000
    configurable: int = 2_000
    configs: int = 1_000


SMALL = Setting(2 * MAX_NODES, 100, 8)


HELP = {"nodes": "of the program", "configurable": "nodes of these", "configs": "to score"}


def run(
    nodes: int = 40_000, configurable: int = 2_000, configs: int = 1_000, progress: Progress = no_progress
) -> dict[str, Any]:
    """Score all configurations in fp32 and in bf16.

    Returns:
        Of the last variant measured `seconds`, `configs_per_second` and `peak_mib` (own memory of the process, the
        program included); `bf16_difference`: the largest relative difference to fp32 of a runtime, scores being
        logarithms of runtimes; `bf16_tau`: Kendall's tau between the scores of both; `rows_share`: rows over nodes
        times configurations, before the first layer and after each; `variants`: the same for each; `not_measured`:
        variants that this processor is too slow for, and why. Without bf16 there are no `bf16_difference`, `bf16_tau`.

    Raises:
        ValueError: the program cannot have so many configurable nodes, or nothing is to be scored.
    """
    setting = Setting(nodes, configurable, configs)
    _check(setting)
    slowdown = bf16_slowdown()
    names = [name for name, bf16 in VARIANTS.items() if not bf16 or slowdown <= MOST_SLOWDOWN]
    results: dict[str, Any] = {}
    for done, variant in enumerate(names):
        progress(variant, done, len(names))
        results[variant], memory = watch(command_of("score:measure", variant=variant, **dataclasses.asdict(setting)))
        results[variant]["peak_mib"] = round(memory.anonymous, 1)
    progress("done", len(names), len(names))
    truth, *bf16_scores = (np.array(results[variant].pop("scores")) for variant in names)
    result = {key: results[names[-1]][key] for key in ("seconds", "configs_per_second", "peak_mib", "rows_share")}
    for scores in bf16_scores:
        result["bf16_difference"] = float(np.abs(np.expm1(scores - truth)).max())
        result["bf16_tau"] = kendall_tau(scores, truth)
    return result | {
        "setting": dataclasses.asdict(setting),
        "variants": results,
        "not_measured": [f"{name} ({too_slow(slowdown)})" for name in VARIANTS if name not in results],
        "machine": machine_record(),
    }


def _check(setting: Setting) -> None:
    if setting.nodes < 100 or setting.configs < 1:
        raise ValueError(f"{setting.nodes} nodes and {setting.configs} configurations; take 100 and 1 at least")
    if not 1 <= setting.configurable <= setting.nodes // 20:
        raise ValueError(
            f"--configurable is {setting.configurable}; of {setting.nodes} nodes at most one in twenty, "
            f"{setting.nodes // 20}, is configurable"
        )


# In the other process ----------------------------------------------------------------------------------------------


def program(setting: Setting) -> Graph:
    """A program of TpuGraphs' shape with exactly so many configurable nodes, evenly drawn."""
    graph = layout_program(setting.nodes, 0, setting.configs)
    kept = np.linspace(0, len(graph.config_nodes) - 1, setting.configurable).round().astype(np.int64)
    return dataclasses.replace(
        graph, config_nodes=graph.config_nodes[kept], config_features=graph.config_features[:, kept]
    )


def model() -> GraphSegmentTraining:
    torch.manual_seed(0)
    return GraphSegmentTraining(SAGE(CHANNELS, LAYERS, config_symbols=7), Head(CHANNELS), "mean").eval()


def score(estimator: GraphSegmentTraining, graph: SegmentedGraph, bf16: bool, kind: str = "cpu") -> Tensor:
    """Scores of all configurations, on the device where the estimator is; `kind` is that of the device."""
    with torch.autocast(kind, torch.bfloat16, enabled=bf16):
        return estimator.scores(graph, configs_at_once=CONFIGS_AT_ONCE)


def rows_share(graph: SegmentedGraph, segments: int = 4) -> list[float]:
    """Return the share of (node, configuration) pairs that sharing computes, before the first layer and after each, for
    some segments and the configurations of one part."""
    chosen = np.linspace(0, graph.num_segments - 1, min(segments, graph.num_segments)).round().astype(int)
    configs = torch.arange(min(CONFIGS_AT_ONCE, graph.num_configs))[None]
    batch = assemble([graph], [(0, int(j)) for j in chosen], configs)
    levels = Sharing.of(batch, LAYERS, BOTH).levels
    return [len(level.config_of_row) / (batch.num_nodes * batch.num_configs) for level in levels]


def measure(variant: str, **sizes: int) -> dict[str, Any]:
    """Score by one variant, in this process, which says when it is ready."""
    keep_freed_memory()
    setting = Setting(**sizes)
    estimator = model()
    score(estimator, segment(program(SMALL), MAX_NODES), VARIANTS[variant])  # lazy layers get their widths
    graph = segment(program(setting), MAX_NODES)
    say()
    started = time.perf_counter()
    scores = score(estimator, graph, VARIANTS[variant])
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds, "configs_per_second": setting.configs / seconds, "segments": graph.num_segments,
        "edge_cut": graph.edge_cut, "rows_share": rows_share(graph), "scores": scores.tolist(),
    }  # fmt: skip
