"""Gain of each technique of learned cost models on AlexNet's layouts, one at a time.

    python -m experiments.reproductions.kaggle.ablation --seeds 5

The base is SAGE with residuals and LayerNorm over channels, messages both ways, a sum over nodes and the pairwise hinge
loss, on the graph pruned to two hops around configurable nodes (`hops:2`, see `kaggle.reduction`, whose training and
split these are). `difference` is the mean over seeds of what a technique changes from the base of the same seed, with
its 95 % interval (Student's t) over weights and draws; the split is the same, so it says nothing of other
configurations.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from torch import nn
from tqdm import tqdm

from experiments.reproductions.kaggle.networks import CrossConfigHead, FusedSAGE, NormedSAGE
from experiments.reproductions.kaggle.reduction import CHANNELS, FILE, LAYERS, prepared, sage, train
from gst.cost.losses import LOSSES
from gst.data.tpugraphs import read
from gst.machine.devices import machine_record
from gst.nn import Head
from gst.util.process import keep_freed_memory

Modules = Callable[[], tuple[nn.Module, nn.Module]]
BASE = "base"


def with_sage(**options: Any) -> Modules:
    return lambda: (NormedSAGE(CHANNELS, LAYERS, config_symbols=7, **options), Head(CHANNELS))


def fused(before: int) -> Modules:
    return lambda: (FusedSAGE(CHANNELS, before, LAYERS - before, config_symbols=7), Head(CHANNELS))


TECHNIQUES: dict[str, tuple[Modules, str]] = {
    BASE: (sage, "pairwise_hinge"),
    "loss: ListMLE": (sage, "list_mle"),
    "loss: log runtime": (sage, "log_runtime"),
    "messages to consumers only": (with_sage(directions=("forward",)), "pairwise_hinge"),
    "channel attention": (with_sage(channel_attention=True), "pairwise_hinge"),
    "normalisation over nodes": (with_sage(normalise_over="nodes"), "pairwise_hinge"),
    "fusion after 1 of 3 layers": (fused(1), "pairwise_hinge"),
    "fusion after 2 of 3 layers": (fused(2), "pairwise_hinge"),
    "late fusion": (fused(3), "pairwise_hinge"),
    "cross-configuration attention": (
        lambda: (sage()[0], CrossConfigHead(CHANNELS)), "pairwise_hinge",
    ),
}  # fmt: skip


def run(seeds: int, steps: int, file: str) -> dict[str, dict[str, Any]]:
    """Run all techniques of a seed, then the next seed."""
    graph = prepared(read(file), "hops:2")
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in TECHNIQUES}
    with tqdm(total=seeds * len(TECHNIQUES), dynamic_ncols=True) as bar:
        for seed in range(seeds):
            for name, (modules, loss) in TECHNIQUES.items():
                bar.set_description(f"{name}, seed {seed}")
                runs[name].append(train(graph, steps, seed, modules, LOSSES[loss]))
                bar.update()
    base = [tau for tau, _ in runs[BASE]]
    return {name: row([tau for tau, _ in each], base, [ms for _, ms in each]) for name, each in runs.items()}


def row(taus: list[float], base: list[float], milliseconds: list[float]) -> dict[str, Any]:
    gains = np.subtract(taus, base)
    half = stats.t.ppf(0.975, len(gains) - 1) * gains.std(ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else np.nan
    return {
        "tau_mean": statistics.mean(taus), "taus": taus, "difference": float(gains.mean()), "interval": float(half),
        "step_ms": statistics.median(milliseconds),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--file", default=FILE)
    parser.add_argument("--json", type=Path, default=Path("experiments/results/tpugraphs_ablation.json"))
    options = parser.parse_args()
    if options.seeds < 2:
        raise SystemExit(f"--seeds is {options.seeds}; an interval needs two or more")
    keep_freed_memory()
    rows = run(options.seeds, options.steps, options.file)
    command = f"python -m experiments.reproductions.kaggle.ablation --seeds {options.seeds} --steps {options.steps}"
    result = {
        "techniques": rows, "seeds": options.seeds, "steps": options.steps, "machine": machine_record(),
        "command": command,
    }  # fmt: skip
    options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
