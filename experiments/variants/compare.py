"""The variants and whole graphs on the same data: score, time and memory.

    python -m experiments.variants.compare --tasks alexnet,elf-language --seeds 5

Each training runs in a process of its own. `+R`: fresh segments are drawn by the expected drift of their rows.
Scores are of what was held out, after the last epoch; times are of training steps alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from embedding_cache import EmbeddingTable
from experiments.variants.data import TASKS, Task, mean_and_deviation
from gst.cost.losses import LOSSES
from gst.cost.metrics import kendall_tau
from gst.data.loader import Selection
from gst.devices import machine_record
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head
from gst.process.tuning import keep_freed_memory

VARIANTS: dict[str, dict[str, Any]] = {
    "whole graph": {"whole": True},
    "GST": {},
    "GST-One": {"omit_rest": True, "num_fresh": 1},
    "GST+E": {"table": True},
    "GST+EF": {"table": True, "finetune": True},
    "GST+ED": {"table": True, "keep_probability": 0.5},
    "GST+EFD": {"table": True, "keep_probability": 0.5, "finetune": True},
    "GST+ER": {"table": True, "refresh": "drift"},
    "GST+E, p = 0": {"table": True, "keep_probability": 0.0},
    "GST+E, difference": {"table": True, "estimate": "difference"},
    "GST+E, regression": {"table": True, "estimate": "regression"},
    "GST+E, composite": {"table": True, "estimate": "composite"},
}
LOSS = {"runtime": "pairwise_hinge", "number": "squared_error", "class": "cross_entropy"}
RESULTS = Path("experiments/results")


def train(task: Task, variant: str, seed: int) -> dict[str, float]:
    """One training, in this process."""
    keep_freed_memory()
    settings = dict(VARIANTS[variant])
    loader, held_out = task.loaders(settings.pop("whole", False), seed)
    finetune = settings.pop("finetune", False)
    torch.manual_seed(seed)
    channels = task.encoder["channels"]
    if settings.pop("table", False):
        settings["table"] = EmbeddingTable(1, channels, track_drift=settings.get("refresh") == "drift")
    model = GraphSegmentTraining(
        SAGE(**task.encoder), Head(channels, task.classes), task.pooling,
        **{"num_fresh": task.num_fresh, "seed": seed} | settings,
    )  # fmt: skip
    model.embed([held_out[0][0]], torch.zeros(1, 1, dtype=torch.long))
    mean, deviation = mean_and_deviation(loader.selections) if task.kind == "number" else (0.0, 1.0)
    optimizer = torch.optim.AdamW(model.parameters(), task.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, task.epochs * len(loader))
    steps = []
    for epoch in range(task.epochs):
        if finetune and epoch == task.epochs - max(1, task.epochs // 8):
            model.freeze_encoder()
        for step in loader:
            started = time.perf_counter()
            loss = LOSSES[LOSS[task.kind]](model(step.graphs, step.configs), (step.targets - mean) / deviation)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            steps.append(time.perf_counter() - started)
    peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
    return {
        "score": score(model.eval(), held_out, task),
        "seconds": sum(steps),
        "step_ms": 1e3 * statistics.median(steps),
        "peak_mib": peak,
    }


def score(model: GraphSegmentTraining, held_out: list[Selection], task: Task) -> float:
    if task.kind == "runtime":
        taus = []
        for graph, configs in held_out:
            scores = model.scores(graph, configs)
            taus.append(kendall_tau(scores.double().numpy(), graph.targets[configs.numpy()]))
        return float(np.mean(taus))
    predicted: Tensor = torch.cat([model.exact([graph])[:, 0] for graph, _ in held_out])
    targets = np.array([graph.targets[0] for graph, _ in held_out])
    if task.kind == "class":
        return float((predicted.argmax(-1).numpy() == targets).mean())
    return kendall_tau(predicted.double().numpy(), targets)


def compare(task: str, seeds: int, bar: tqdm) -> Iterator[dict[str, Any]]:
    """The table after each seed. Variants take turns, so that a busy machine slows all of them down."""
    runs: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    for seed in range(seeds):
        for variant in VARIANTS:
            bar.set_description(f"{task}, {variant}, seed {seed}")
            child = [sys.executable, "-m", "experiments.variants.compare", "--run", task, variant, str(seed)]
            runs[variant].append(json.loads(subprocess.run(child, check=True, capture_output=True).stdout))
            bar.update()
        yield {variant: row(each) for variant, each in runs.items()}


def row(runs: list[dict[str, float]]) -> dict[str, Any]:
    scores = [run["score"] for run in runs]
    return {
        "score_mean": statistics.mean(scores),
        "score_deviation": statistics.stdev(scores) if len(scores) > 1 else 0.0,
        "scores": scores,
        **{key: statistics.median(run[key] for run in runs) for key in ("seconds", "step_ms", "peak_mib")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        task, variant, seed = options.run
        print(json.dumps(train(TASKS[task], variant, int(seed))))
        return
    tasks = options.tasks.split(",")
    with tqdm(total=len(tasks) * len(VARIANTS) * options.seeds, dynamic_ncols=True) as bar:
        for task in tasks:
            for whole in (True, False):  # prepared here, once
                TASKS[task].loaders(whole, 0)
            for seeds, variants in enumerate(compare(task, options.seeds, bar), start=1):
                result = {
                    "task": task, "kind": TASKS[task].kind, "seeds": seeds, "variants": variants,
                    "machine": machine_record(),
                    "command": f"python -m experiments.variants.compare --tasks {task} --seeds {options.seeds}",
                }  # fmt: skip
                (RESULTS / f"variants_{task}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
