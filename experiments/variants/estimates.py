"""How far is the estimate of a graph's pooled embedding from the exact one, for each way to make it?

    python -m experiments.variants.estimates --tasks alexnet,synthetic --json experiments/results/estimates.json

One model trains as GST+ED does. At several of its steps, the embeddings of all segments of the graphs of the step are
computed as well, and each estimate is drawn many times from the same table: all see the same encoder, the same rows and
the same number of fresh segments. Errors are root mean squares over channels, configurations, draws and steps, in
units of the root mean square of the exact embeddings.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from embedding_cache import EmbeddingTable
from experiments.variants.compare import LOSS
from experiments.variants.data import TASKS, Task, mean_and_deviation
from gst.cost.losses import LOSSES
from gst.devices import machine_record
from gst.method.catalogue import Catalogue
from gst.method.draws import SegmentWeights, difference_weights, draw_segments, dropout_weights
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head

DRAWS = 200  # of each estimate at a step
STEPS = 12  # at which errors are taken, in the last three quarters of the training
ESTIMATES: dict[str, dict[str, Any]] = {
    "GST+E (p = 1)": {"keep_probability": 1.0},
    "GST+ED (p = 0.5)": {"keep_probability": 0.5},
    "GST+ED (p = 0.5), fixed number": {"keep_probability": 0.5, "estimate": "fixed_dropout"},
    "p = 0": {"keep_probability": 0.0},
    "difference": {"estimate": "difference"},
    "difference, optimal coefficient": {"estimate": "difference", "coefficient": True},
    "difference, drawn by drift": {"estimate": "difference", "drift": True},
}


def errors(task: Task, seed: int, bar: tqdm) -> dict[str, float]:
    """The relative error of each of `ESTIMATES` over one training."""
    loader, _ = task.loaders(False, seed)
    torch.manual_seed(seed)
    channels = task.encoder["channels"]
    model = GraphSegmentTraining(
        SAGE(**task.encoder), Head(channels, task.classes), task.pooling, task.num_fresh, 0.5,
        EmbeddingTable(1, channels, track_drift=True), seed=seed,
    )  # fmt: skip
    first = next(iter(loader))
    model.embed(first.graphs[:1], torch.zeros(1, 1, dtype=torch.long))
    mean, deviation = mean_and_deviation(loader.selections) if task.kind == "number" else (0.0, 1.0)
    optimizer = torch.optim.AdamW(model.parameters(), task.learning_rate)
    last = task.epochs * len(loader)
    taken = set(np.linspace(last // 4, last - 1, STEPS).astype(int).tolist())
    squared, norm, number = dict.fromkeys(ESTIMATES, 0.0), 0.0, 0
    for _ in range(task.epochs):
        for step in loader:
            if number in taken:
                norm += _take(model, step, squared, seed)
                bar.update()
            loss = LOSSES[LOSS[task.kind]](model(step.graphs, step.configs), (step.targets - mean) / deviation)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            number += 1
    return {name: (each / norm) ** 0.5 for name, each in squared.items()}


@torch.no_grad()
def _take(model: GraphSegmentTraining, step: Any, squared: dict[str, float], seed: int) -> float:
    """Add the squared errors of the estimates at one step; returns the squared norm of the exact embeddings."""
    assert isinstance(model.table, EmbeddingTable)
    catalogue = Catalogue.of(step.graphs)
    keys = model._keys.keys(catalogue, step.configs)
    is_known = model._known(keys)
    every = torch.arange(len(catalogue))
    embedded = torch.cat([
        model._encode(catalogue, chunk, step.configs)
        for chunk in catalogue.chunks(every, step.configs.shape[1], model.max_rows)
    ]).double()  # fmt: skip
    rows = model.table.pull(keys.clamp(min=0).flatten())[0].view_as(embedded).double() * is_known[..., None]
    share = torch.ones(len(catalogue), dtype=torch.double)
    if model.pooling == "mean":
        share = catalogue.node_counts / catalogue.graph_node_counts[catalogue.graph].double()
    valid = (step.configs >= 0)[..., None]

    def pooled(values: Tensor) -> Tensor:
        out = values.new_zeros(len(step.graphs), *values.shape[1:])
        return out.index_add(0, catalogue.graph, values * share[:, None, None])

    exact, drift = pooled(embedded), model._drift(catalogue, step.configs)
    for name, settings in ESTIMATES.items():
        p, estimate = settings.get("keep_probability", 1.0), settings.get("estimate", "dropout")
        by_drift = drift if settings.get("drift") else None
        stale = rows * _coefficient(embedded, rows, is_known, share) if settings.get("coefficient") else rows
        for draw_number in range(DRAWS):
            draw = draw_segments(
                catalogue, step.configs, draw_number, seed, model.num_fresh, p, by_drift, estimate
            )  # fmt: skip
            if estimate == "difference":
                weights = difference_weights(draw.fresh, draw.inclusion, is_known)
            else:
                weights = dropout_weights(draw.fresh, draw.inclusion, is_known, draw.kept, p)
            squared[name] += float(((_sum(weights, embedded, stale, pooled) - exact).square() * valid).mean()) / DRAWS
    return float((exact.square() * valid).mean())


def _sum(weights: SegmentWeights, embedded: Tensor, rows: Tensor, pooled: Any) -> Tensor:
    estimate: Tensor = pooled(embedded * weights.fresh[..., None] + rows * weights.stale[..., None])
    return estimate


def _coefficient(embedded: Tensor, rows: Tensor, is_known: Tensor, share: Tensor) -> float:
    """The coefficient of least variance, known only here where all embeddings are: what could be won by learning it."""
    scale = share[:, None, None] * is_known[..., None]
    new, old = embedded * scale, rows * scale
    new, old = new - new.mean(0), old - old.mean(0)
    return float((new * old).sum() / old.square().sum().clamp(min=1e-12))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the errors to this file as well")
    options = parser.parse_args()
    tasks = options.tasks.split(",")
    with tqdm(total=len(tasks) * options.seeds * STEPS, dynamic_ncols=True) as bar:
        results: dict[str, Any] = {}
        for task in tasks:
            bar.set_description(task)
            runs = [errors(TASKS[task], seed, bar) for seed in range(options.seeds)]
            results[task] = {name: [round(run[name], 5) for run in runs] for name in ESTIMATES}
    means = {name: float(np.mean([results[task][name] for task in tasks])) for name in ESTIMATES}
    command = f"python -m experiments.variants.estimates --tasks {options.tasks} --seeds {options.seeds}"
    text = json.dumps(
        {"command": command, "errors": results, "mean": means, "machine": machine_record()}, indent=1
    )  # fmt: skip
    if options.json:
        options.json.write_text(text + "\n")
    for name, mean in means.items():
        print(f"{name:32} {mean:.4f}  " + "  ".join(f"{task} {np.mean(results[task][name]):.4f}" for task in tasks))


if __name__ == "__main__":
    main()
