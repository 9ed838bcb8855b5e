"""The variants and whole graphs on the same data in the same processor time: score, steps and memory.

    python -m experiments.variants.compare --tasks alexnet,elf-language --seeds 5

Each training runs in a process of its own on one core, for `--seconds` of processor time in its training steps, those
that read segments included; the learning rate falls along a cosine of the time, and +F freezes the encoder for the last
eighth of it. In the last four the fresh segments correct the rows of all; "difference" is the default with a table.
Scores are of what was held out, after the training, from all segments. A seed decides the split, the weights and all
draws. Finished trainings are kept in `runs/variants`, so that a comparison resumes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embedding_cache import EmbeddingTable
from experiments.variants.data import TASKS, Task, mean_and_deviation
from gst.cost.losses import LOSSES
from gst.cost.metrics import kendall_tau
from gst.data.loader import Selection
from gst.machine.devices import machine_record
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head
from gst.util.process import keep_freed_memory
from gst.util.progress import bar
from gst.util.writing import atomic_write

VARIANTS: dict[str, dict[str, Any]] = {
    "whole graph": {"whole": True},
    "GST": {},
    "GST-One": {"estimate": "fresh", "num_fresh": 1},
    "GST+E": {"table": True, "estimate": "dropout"},
    "GST+EF": {"table": True, "estimate": "dropout", "finetune": True},
    "GST+ED": {"table": True, "keep_probability": 0.5},
    "GST+EFD": {"table": True, "keep_probability": 0.5, "finetune": True},
    "GST+E, difference": {"table": True, "estimate": "difference"},
    "GST+E, composite": {"table": True, "estimate": "composite"},
}
HALOS: dict[str, dict[str, Any]] = {
    "no halo": {"table": True},
    "halo of one hop": {"table": True, "halo": 1},
    "halo as deep as the encoder": {"table": True, "halo": -1},
}
COMPARED, BASELINES = {"variants": VARIANTS, "halos": HALOS}, {"variants": "GST+EFD", "halos": "no halo"}
LOSS = {"runtime": "pairwise_hinge", "number": "squared_error", "class": "cross_entropy"}
FINETUNING = 1 / 8  # of the time
LEAST_TARGETS = 8  # of a graph that is scored
RESULTS, RUNS = Path("experiments/results"), Path("runs/variants")


def train(task: Task, variant: str, seed: int, seconds: float) -> dict[str, float]:
    """One training, in this process."""
    keep_freed_memory()
    torch.set_num_threads(1)
    settings = dict((VARIANTS | HALOS)[variant])
    layers, halo = task.encoder["num_layers"], settings.pop("halo", 0)
    loader, held_out = task.loaders(settings.pop("whole", False), seed, layers if halo < 0 else halo)
    finetune = settings.pop("finetune", False)
    torch.manual_seed(seed)
    channels = task.encoder["channels"]
    if settings.pop("table", False):
        settings["table"] = EmbeddingTable(1, channels)
    model = GraphSegmentTraining(
        SAGE(**task.encoder), Head(channels, task.classes), task.pooling,
        **{"num_fresh": task.num_fresh, "seed": seed} | settings,
    )  # fmt: skip
    model.embed([held_out[0][0]], torch.zeros(1, 1, dtype=torch.long))
    mean, deviation = mean_and_deviation(loader.selections) if task.kind == "number" else (0.0, 1.0)
    optimizer = torch.optim.AdamW(model.parameters(), task.learning_rate)
    times = [time.process_time()]
    for step in (step for _ in itertools.count() for step in loader):
        loss = LOSSES[LOSS[task.kind]](model(step.graphs, step.configs), (step.targets - mean) / deviation)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.process_time())
        share = (times[-1] - times[1]) / seconds  # the first step compiles kernels
        if share >= 1:
            break
        optimizer.param_groups[0]["lr"] = task.learning_rate * (1 + math.cos(math.pi * share)) / 2
        if finetune and share >= 1 - FINETUNING and not model.encoder_frozen:
            model.freeze_encoder()
    peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
    return {
        "score": score(model.eval(), held_out, task),
        "steps": len(times) - 1,
        "step_ms": 1e3 * statistics.median(b - a for a, b in itertools.pairwise(times)),
        "peak_mib": peak,
    }


def score(model: GraphSegmentTraining, held_out: list[Selection], task: Task) -> float:
    if task.kind == "runtime":
        taus = []
        for graph, configs in held_out:
            configs = configs[torch.from_numpy(~np.isnan(graph.targets[configs.numpy()]))]
            if len(configs) >= LEAST_TARGETS:
                scores = model.scores(graph, configs)
                taus.append(kendall_tau(scores.double().numpy(), graph.targets[configs.numpy()]))
        return float(np.mean(taus))
    predicted: Tensor = torch.cat([model.exact([graph]) for graph, _ in held_out])
    targets = np.array([graph.targets[0] for graph, _ in held_out])
    if task.kind == "class":
        return float((predicted.argmax(-1).numpy() == targets).mean())
    return kendall_tau(predicted.double().numpy(), targets)


def run(task: str, variant: str, seed: int, seconds: float) -> dict[str, float]:
    """One training in a process of its own, unless it was finished before."""
    path = RUNS / f"{task} {variant} {seed} {seconds:g}.json"
    if not path.exists():
        child = [sys.executable, "-m", "experiments.variants.compare", "--seconds", str(seconds)]
        arguments = ["--run", task, variant, str(seed)]
        done = subprocess.run([*child, *arguments], check=True, stdout=subprocess.PIPE, text=True)
        with atomic_write(path) as file:
            file.write(done.stdout)
    found: dict[str, float] = json.loads(path.read_text())
    return found


def row(runs: list[dict[str, float]], baseline: list[dict[str, float]]) -> dict[str, Any]:
    """Of one variant; `over_baseline` are the differences of scores, seed by seed."""
    scores = [run["score"] for run in runs]
    return {
        "score_mean": statistics.mean(scores),
        "score_deviation": statistics.stdev(scores) if len(scores) > 1 else 0.0,
        "scores": scores,
        "over_baseline": [each["score"] - other["score"] for each, other in zip(runs, baseline, strict=True)],
        **{key: statistics.median(run[key] for run in runs) for key in ("steps", "step_ms", "peak_mib")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=10.0, help="of one training; default: %(default)s")
    parser.add_argument("--processes", type=int, default=2, help="trainings at once; default: %(default)s")
    parser.add_argument("--compare", choices=COMPARED, default="variants", help="default: %(default)s")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        task, variant, seed = options.run
        print(json.dumps(train(TASKS[task], variant, int(seed), options.seconds)))
        return
    tasks, variants = options.tasks.split(","), COMPARED[options.compare]
    RUNS.mkdir(parents=True, exist_ok=True)
    for task in tasks:
        for whole in (True, False):  # prepared here, once
            TASKS[task].loaders(whole, 0)
    jobs = [(task, variant, seed) for task in tasks for seed in range(options.seeds) for variant in variants]
    with ThreadPoolExecutor(options.processes) as pool:
        done = pool.map(lambda job: run(*job, options.seconds), jobs)
        runs = dict(zip(jobs, bar(done, total=len(jobs), desc="trainings"), strict=True))
    command = f"python -m experiments.variants.compare --compare {options.compare} --seeds {options.seeds}"
    for task in tasks:
        by_variant = {variant: [runs[task, variant, seed] for seed in range(options.seeds)] for variant in variants}
        result = {
            "task": task, "kind": TASKS[task].kind, "seeds": options.seeds, "seconds": options.seconds,
            "variants": {name: row(each, by_variant[BASELINES[options.compare]]) for name, each in by_variant.items()},
            "machine": machine_record(), "command": f"{command} --seconds {options.seconds:g} --tasks {task}",
        }  # fmt: skip
        with atomic_write(RESULTS / f"{options.compare}_{task}.json") as file:
            file.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
