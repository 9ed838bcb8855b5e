"""Error of each estimate of a graph's pooled embedding, compared with the exact embedding.

    python -m experiments.variants.estimates --tasks alexnet,synthetic --json experiments/results/estimates.json

One model trains as GST+ED does. Beside it, each estimate is made in every step from the same fresh segments of the same
encoder, with a table of its own, and at some of the steps compared with the exact embedding. Errors are root mean
squares over channels, configurations and steps, in units of the root mean square of the exact embeddings.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from embedding_cache import EmbeddingTable
from experiments.variants.compare import LOSS
from experiments.variants.data import TASKS, Task, mean_and_deviation
from gst.cost.losses import LOSSES
from gst.machine.devices import machine_record
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head

TRAINED = 300  # steps of a training
STEPS = 150  # at which errors are taken, in the last three quarters of them
ESTIMATES: dict[str, dict[str, Any]] = {
    "GST+E (p = 1)": {"estimate": "dropout"},
    "GST+ED (p = 0.5)": {"keep_probability": 0.5},
    "p = 0": {"keep_probability": 0.0},
    "difference": {"estimate": "difference"},
    "composite": {"estimate": "composite"},
}


def errors(task: Task, seed: int, ways: dict[str, dict[str, Any]], bar: tqdm) -> dict[str, float]:
    """The relative error of each way to estimate over one training."""
    loader, _, _ = task.loaders(False, seed)
    torch.manual_seed(seed)
    channels = task.encoder["channels"]
    encoder, head = SAGE(**task.encoder), Head(channels, task.classes)

    def model(head: nn.Module, **settings: Any) -> GraphSegmentTraining:
        arguments: Any = {"num_fresh": task.num_fresh, "seed": seed} | settings
        return GraphSegmentTraining(encoder, head, task.pooling, table=EmbeddingTable(1, channels), **arguments)

    trained = model(head, keep_probability=0.5)
    beside = {name: model(nn.Identity(), **settings) for name, settings in ways.items()}
    trained.embed(next(iter(loader)).graphs[:1], torch.zeros(1, 1, dtype=torch.long))
    mean, deviation = mean_and_deviation(loader.selections) if task.kind == "number" else (0.0, 1.0)
    optimizer = torch.optim.AdamW(trained.parameters(), task.learning_rate)
    compared = set(np.linspace(TRAINED // 4, TRAINED - 1, STEPS).astype(int).tolist())
    squared, norm = dict.fromkeys(ways, 0.0), 0.0
    for number, step in zip(range(TRAINED), (step for _ in itertools.count() for step in loader), strict=False):
        with torch.no_grad():
            estimates = {name: each(step.graphs, step.configs) for name, each in beside.items()}
            if number in compared:
                exact = trained.embed(step.graphs, step.configs)
                valid = step.configs >= 0
                norm += _square(exact, valid)
                for name, estimate in estimates.items():
                    squared[name] += _square(estimate - exact, valid)
        loss = LOSSES[LOSS[task.kind]](trained(step.graphs, step.configs), (step.targets - mean) / deviation)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bar.update(1 / TRAINED)
    return {name: (each / norm) ** 0.5 for name, each in squared.items()}


def _square(embeddings: Tensor, valid: Tensor) -> float:
    return float(embeddings[valid].double().square().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the errors to this file as well")
    options = parser.parse_args()
    tasks, ways, results = options.tasks.split(","), ESTIMATES, {}
    with tqdm(total=len(tasks) * options.seeds, dynamic_ncols=True) as bar:
        for task in tasks:
            bar.set_description(task)
            runs = [errors(TASKS[task], seed, ways, bar) for seed in range(options.seeds)]
            results[task] = {name: [round(run[name], 5) for run in runs] for name in ways}
    means = {name: float(np.mean([results[task][name] for task in tasks])) for name in ways}
    command = f"python -m experiments.variants.estimates --tasks {options.tasks} --seeds {options.seeds}"
    if options.json:
        record = {"command": command, "errors": results, "mean": means, "machine": machine_record()}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    for name, mean in means.items():
        print(f"{name:32} {mean:.4f}  " + "  ".join(f"{task} {np.mean(results[task][name]):.4f}" for task in tasks))


if __name__ == "__main__":
    main()
