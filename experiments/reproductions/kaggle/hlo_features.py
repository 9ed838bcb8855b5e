"""Gain of each family of derived node features (`kaggle.node_features.FEATURES`): all, none, and each left out.

    python -m experiments.reproductions.kaggle.hlo_features --seeds 5

Three tasks. `unet_3d`: tau on a third of its configurations, learned from the others, the mean of three folds.
`alexnet`: tau on 1,000 of its configurations, learned from all others; its columns are recovered by
`tpugraphs.alexnet_columns`. Both with the network of `tpugraphs.common_gnn` on the graph pruned to two hops,
configurations as published (each symbol of each column one-hot), so that nodes alone differ. `tile`: error@1 of one
network of `tpugraphs.tile` on kernels left out one at a time; `layout` replaces columns that tile sizes leave alone,
and is missing there.

`difference` is the mean over seeds of what a variant changes from `all` of the same seed, and `interval` its 95 %
interval (Student's t) over weights, draws and, of the U-Net, folds. Encoders scale all columns by a logarithm
themselves, so `log` makes it two.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from tqdm import tqdm

from experiments.reproductions.kaggle.derived import derived
from experiments.reproductions.kaggle.node_features import FEATURES, enrich
from experiments.reproductions.tpugraphs.alexnet_columns import with_all_columns
from experiments.reproductions.tpugraphs.ceiling import noise_ceiling
from experiments.reproductions.tpugraphs.common_columns import ALEXNET, MAX_NODES, UNET
from experiments.reproductions.tpugraphs.common_gnn import gnn
from experiments.reproductions.tpugraphs.late_fusion import Settings
from experiments.reproductions.tpugraphs.tile import Kernel, expected_slowdown, network
from gst.cost import kendall_tau
from gst.data.tpugraphs import read
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.machine.devices import machine_record
from gst.util.process import keep_freed_memory

ALL, SYMBOLS, HELD_OUT, FOLDS = "all", 7, 1000, 3
Task = Callable[[Sequence[str], int], float]
"""A figure, from names of features and a seed."""
Found = dict[str, dict[str, list[float]]]
"""By task and variant, for each seed."""


def with_features(graph: Graph, names: Sequence[str]) -> SegmentedGraph:
    """A graph of layouts with derived node features, pruned, the symbols of its configurations one-hot."""
    symbols = np.eye(SYMBOLS, dtype=np.int8)[graph.config_features.astype(np.int64) + 1]
    few = derived(graph, names, "hops:2")
    return segment(replace(few, config_features=symbols.reshape(*symbols.shape[:2], -1)), MAX_NODES)


def layout_tau(graph: Graph, names: Sequence[str], seed: int, steps: int, folds: int, held_out: int) -> float:
    """tau on what is held out: `held_out` configurations `folds` times, others each time."""
    cut, taus = with_features(graph, names), []
    order = np.random.default_rng(seed).permutation(graph.num_configs)
    for fold in range(folds):
        held = order[fold * held_out : (fold + 1) * held_out]
        scores = gnn([[(cut, np.setdiff1d(order, held))]], seed, steps)(cut)
        taus.append(kendall_tau(scores[held], graph.targets[held]))
    return statistics.mean(taus)


def tile_error(kernels: Sequence[Kernel], names: Sequence[str], seed: int, settings: Settings) -> float:
    """error@1, the mean over kernels left out; what is known of a tile size stays what it was."""
    rich = [replace(kernel, graph=enrich(kernel.graph, names)) for kernel in kernels]
    with_choice, errors = [kernel for kernel in rich if kernel.graph.num_configs > 1], []
    for held_out in rich:
        scores = np.zeros(held_out.graph.num_configs)
        if held_out in with_choice:
            scores = network(settings)([kernel for kernel in with_choice if kernel is not held_out], held_out, seed)
        errors.append(expected_slowdown(scores[held_out.group], held_out.ratios, 1))
    return statistics.mean(errors)


def tasks(data: Path, steps: int) -> dict[str, Task]:
    unet, alexnet = read(data / UNET), with_all_columns(read(data / ALEXNET))
    kernels = [Kernel.of(path) for path in sorted(data.glob("tile/xla/train/*.npz"))]
    return {
        "unet_3d": partial(layout_tau, unet, steps=steps, folds=FOLDS, held_out=unet.num_configs // FOLDS),
        "alexnet": partial(layout_tau, alexnet, steps=steps, folds=1, held_out=HELD_OUT),
        "tile": partial(tile_error, kernels, settings=Settings()),
    }


def variants(task: str) -> dict[str, tuple[str, ...]]:
    """The features of each variant, `ALL` first."""
    names = tuple(name for name in FEATURES if (task, name) != ("tile", "layout"))
    without = {f"without {name}": tuple(other for other in names if other != name) for name in names}
    return {ALL: names, **without, "none": ()}


def run(measured: dict[str, Task], seeds: int) -> Found:
    """Return the figures of every variant of each task."""
    found: Found = {task: {name: [] for name in variants(task)} for task in measured}
    todo = [(seed, task, name) for seed in range(seeds) for task in measured for name in variants(task)]
    for seed, task, name in tqdm(todo, dynamic_ncols=True):
        found[task][name].append(measured[task](variants(task)[name], seed))
    return found


def row(values: list[float], base: list[float]) -> dict[str, Any]:
    """Compare the figures of a variant with those of `ALL`, seed by seed."""
    gains = np.subtract(values, base)
    half = stats.t.ppf(0.975, len(gains) - 1) * stats.sem(gains)
    figures = {"mean": statistics.mean(values), "difference": float(gains.mean()), "interval": float(half)}
    return {**figures, "values": values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200, help="of the networks for layouts")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/tpugraphs"), help="a folder as of TpuGraphs")
    parser.add_argument("--json", type=Path, default=Path("experiments/results/hlo_features.json"))
    options = parser.parse_args()
    if options.seeds < 2:
        raise SystemExit(f"--seeds is {options.seeds}; an interval needs two or more")
    keep_freed_memory()
    found = run(tasks(options.data, options.steps), options.seeds)
    rows = {task: {name: row(each, of_task[ALL]) for name, each in of_task.items()} for task, of_task in found.items()}
    command = f"python -m experiments.reproductions.kaggle.hlo_features --seeds {options.seeds} --steps {options.steps}"
    result = {
        "tasks": rows, "unet_3d_ceiling": noise_ceiling(read(options.data / UNET)).tau, "seeds": options.seeds,
        "steps": options.steps, "machine": machine_record(), "command": command,
    }  # fmt: skip
    options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
