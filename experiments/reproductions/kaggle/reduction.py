"""Costs and savings of reducing AlexNet: none, k-hop pruning and segments, on the same configurations.

    python -m experiments.reproductions.kaggle.reduction --seeds 3

The encoder, the head and the loss are those of `experiments/configs/alexnet_layout.yaml`, trained for fewer steps. The
split holds out 1000 configurations for validation and 1000 for the test; tau is that of the test part. Updates are
states of nodes computed by the layers in one step, forward, compared with those of the whole graph when every node is
computed under every configuration. Segments are those of the configuration: some are fresh, the others are encoded too,
without gradient. A loss of tau is the mean over seeds of what the whole graph scores more, from the same seed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn
from tqdm import tqdm

from experiments.reproductions.kaggle.pruning import reduce
from gst.cost.losses import Loss, pairwise_hinge
from gst.cost.metrics import kendall_tau
from gst.data.loader import StepLoader, split
from gst.data.tpugraphs import read
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.machine.devices import machine_record
from gst.method.batch import assemble
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head
from gst.nn.encoders import BOTH
from gst.nn.sharing import Direction, Sharing
from gst.util.process import keep_freed_memory

FILE = "../shared/data/tpugraphs/layout/xla/random/train/alexnet_train_batch_32.npz"
METHODS = ("none", "hops:1", "hops:2", "hops:3", "segments")
CHANNELS, LAYERS, CONFIGS_PER_STEP, HELD_OUT = 64, 3, 128, 1000
MAX_NODES, NUM_FRESH = 128, 3  # of and among the segments


def prepared(graph: Graph, method: str) -> SegmentedGraph:
    """The graph as a method leaves it, in one segment unless segments are the method."""
    if method == "segments":
        return segment(graph, MAX_NODES)
    small = reduce(graph, method)
    return segment(small, parts=np.zeros(small.num_nodes, np.int64))


def sage() -> tuple[nn.Module, nn.Module]:
    return SAGE(CHANNELS, LAYERS, config_symbols=7), Head(CHANNELS)


def train(
    graph: SegmentedGraph,
    steps: int,
    seed: int,
    modules: Callable[[], tuple[nn.Module, nn.Module]] = sage,
    loss_of: Loss = pairwise_hinge,
) -> tuple[float, float]:
    """tau on the test part, and the median time of a step in ms."""
    training, _, test = split([graph], "configs", HELD_OUT, HELD_OUT, seed=0)
    torch.manual_seed(seed)
    model = GraphSegmentTraining(*modules(), "sum", num_fresh=NUM_FRESH, seed=seed)
    model.embed([graph], torch.zeros(1, 1, dtype=torch.long))  # gives lazy layers their widths
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, steps)
    loader, times = StepLoader(training, 1, CONFIGS_PER_STEP, seed=seed), []
    while len(times) < steps:
        for step in loader:
            started = time.perf_counter()
            loss = loss_of(model(step.graphs, step.configs), step.targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            times.append(1e3 * (time.perf_counter() - started))
            if len(times) == steps:
                break
    configs = test[0][1]
    model.eval()
    scores = model.scores(graph, configs, 250)
    return kendall_tau(scores.double().numpy(), graph.targets[configs.numpy()]), statistics.median(times)


def node_updates(
    graph: Graph | SegmentedGraph,
    num_layers: int,
    configs: Int64[Tensor, " configs"],
    share: bool = True,
    directions: Sequence[Direction] = BOTH,
) -> int:
    """Number of node states that the layers of an encoder compute in one pass over `configs` of the whole of `graph`.

    A segmented graph counts all of its segments, context included; a step with S of J fresh segments and no others
    computes S / J of that on average.

    Args:
        share: count a state that is equal under several configurations once, as encoders compute it. False counts every
            node under every configuration: nodes times configurations times layers.
        directions: of the encoder's messages.
    """
    whole = graph if isinstance(graph, SegmentedGraph) else segment(graph, parts=np.zeros(graph.num_nodes, np.int64))
    batch = assemble([whole], [(0, number) for number in range(whole.num_segments)], configs[None])
    levels = Sharing.of(batch, num_layers, tuple(directions), share).levels[1:]
    return sum(len(level.config_of_row) for level in levels)


def updates(graph: SegmentedGraph, share: bool = True) -> float:
    """Of one step, the mean of ten."""
    loader = StepLoader(split([graph], "configs", HELD_OUT, HELD_OUT, seed=0)[0], 1, CONFIGS_PER_STEP)
    return statistics.mean(
        node_updates(graph, LAYERS, step.configs[0], share) for step, _ in zip(loader, range(10), strict=False)
    )


def figures(graph: Graph, seeds: int, steps: int, bar: tqdm) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    full = updates(prepared(graph, "none"), share=False)
    for method in METHODS:
        cut, runs = prepared(graph, method), []
        for seed in range(seeds):
            bar.set_description(f"{method}, seed {seed}")
            runs.append(train(cut, steps, seed))
            bar.update()
        taus, computed = [tau for tau, _ in runs], updates(cut)
        losses = np.subtract(rows["none"]["taus"] if rows else taus, taus).tolist()
        rows[method] = {
            "nodes": cut.num_nodes, "segments": cut.num_segments, "updates_per_step": computed,
            "fewer_than_full": full / computed, "fewer_by_reduction_alone": full / updates(cut, share=False),
            "tau_mean": statistics.mean(taus), "tau_sd": statistics.stdev(taus) if seeds > 1 else 0.0, "taus": taus,
            "tau_loss": statistics.mean(losses), "tau_losses": losses,
            "step_ms": statistics.median(milliseconds for _, milliseconds in runs),
        }  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--file", default=FILE)
    parser.add_argument("--out", type=Path, default=Path("experiments/results/tpugraphs_reduction.json"))
    options = parser.parse_args()
    keep_freed_memory()
    with tqdm(total=len(METHODS) * options.seeds, dynamic_ncols=True) as bar:
        rows = figures(read(options.file), options.seeds, options.steps, bar)
    met = [name for name, row in rows.items() if row["fewer_than_full"] >= 4 and row["tau_loss"] < 0.005]
    result = {
        "methods": rows, "at_least_4x_fewer_at_tau_loss_below_0.005": met, "layers": LAYERS,
        "configs_per_step": CONFIGS_PER_STEP, "steps": options.steps, "seeds": options.seeds,
        "machine": machine_record(),
        "command": "python -m experiments.reproductions.kaggle.reduction "
                   f"--seeds {options.seeds} --steps {options.steps}",
    }  # fmt: skip
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
