"""Variants of the method, whole graphs and controls on the same data, each trained to convergence.

    python -m experiments.variants.compare --tasks alexnet,synthetic --seeds 5

All variants of a task take the same number of steps, after which the validation score of whole graphs has stopped
rising. Each training runs in a process of its own on one core; the learning rate falls along a cosine, and +F freezes
the encoder for the last eighth. Seed 0 trains with the learning rates of the task, of which the validation part chooses
one for the other seeds. A curve of validation scores is taken over the processor time of the training steps; the test
part is scored once, at the end, from all segments. A seed decides the split, the weights and all draws; differences
from whole graphs are taken seed by seed. Finished trainings are kept in `experiments/results/convergence_TASK.json`,
so that a comparison resumes, on the same graphs only; all five columns take about twelve hours of one core.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embedding_cache import EmbeddingTable
from experiments.variants.data import TASKS, Task, mean_and_deviation
from gst.cost.controls import Regress, control_metrics, ridge
from gst.cost.losses import LOSSES
from gst.cost.metrics import kendall_tau
from gst.data.loader import Selection
from gst.graphs.segments import SegmentedGraph
from gst.machine.devices import machine_record
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head
from gst.util.arrays import shortened
from gst.util.process import keep_freed_memory
from gst.util.progress import bar
from gst.util.untrusted import read_object
from gst.util.writing import write_json

WHOLE, OURS = "whole graph", "GST+E, difference"
VARIANTS: dict[str, dict[str, Any]] = {
    WHOLE: {"whole": True},
    "GST": {},
    "GST-One": {"estimate": "fresh", "num_fresh": 1},
    "GST+E": {"table": True, "estimate": "dropout"},
    "GST+EF": {"table": True, "estimate": "dropout", "finetune": True},
    "GST+ED": {"table": True, "keep_probability": 0.5},
    "GST+EFD": {"table": True, "keep_probability": 0.5, "finetune": True},
    OURS: {"table": True, "estimate": "difference"},
    "GST+E, composite": {"table": True, "estimate": "composite"},
    "without messages": {"table": True, "estimate": "difference", "edges": False},
}
LOSS = {"runtime": "pairwise_hinge", "number": "squared_error", "class": "cross_entropy"}
FINETUNING = 1 / 8  # of the steps
POINTS = 12  # of a curve
BUDGET_MIB = 2048.0  # of memory; a training that takes more is given up
LEAST_TARGETS = 8  # of a graph that is scored
RESULTS = Path("experiments/results")


def train(task: Task, variant: str, seed: int, rate: float) -> dict[str, Any]:
    """Train once, in this process.

    Returns:
        `curve`: rows of step, seconds of processor time and validation score. `score`: of the test part. `seconds`,
        `step_ms`, `peak_mib`, and `encoded`, the segments encoded with gradient; `score` is None beyond `BUDGET_MIB`.
    """
    keep_freed_memory()
    torch.set_num_threads(1)
    settings = dict(VARIANTS[variant])
    whole, finetune = settings.pop("whole", False), settings.pop("finetune", False)
    has_edges = settings.pop("edges", True)
    loader, validation, test = task.loaders(whole, seed)
    if not has_edges:
        loader.selections, validation, test = map(without_edges, (loader.selections, validation, test))
    torch.manual_seed(seed)
    channels = task.encoder["channels"]
    if settings.pop("table", False):
        settings["table"] = EmbeddingTable(1, channels)
    model = GraphSegmentTraining(
        SAGE(**task.encoder), Head(channels, task.classes), task.pooling,
        **{"num_fresh": task.num_fresh, "seed": seed} | settings,
    )  # fmt: skip
    model.embed([validation[0][0]], torch.zeros(1, 1, dtype=torch.long))
    mean, deviation = mean_and_deviation(loader.selections) if task.kind == "number" else (0.0, 1.0)
    optimizer = torch.optim.AdamW(model.parameters(), rate * task.learning_rate)
    times, encoded, curve = [0.0], 0, []
    steps = itertools.islice((step for _ in itertools.count() for step in loader), task.steps)
    looks = set(np.linspace(0, task.steps, POINTS + 1)[1:].astype(int).tolist())
    started = time.process_time()
    for number, step in enumerate(steps, 1):
        loss = LOSSES[LOSS[task.kind]](model(step.graphs, step.configs), (step.targets - mean) / deviation)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.process_time() - started)
        encoded += sum(min(model.num_fresh, graph.num_segments) for graph in step.graphs) if not whole else 0
        peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
        if peak > BUDGET_MIB:
            return {"score": None, "peak_mib": peak, "curve": []}
        share = number / task.steps
        optimizer.param_groups[0]["lr"] = rate * task.learning_rate * (1 + math.cos(math.pi * share)) / 2
        if finetune and share >= 1 - FINETUNING and not model.encoder_frozen:
            model.freeze_encoder()
        if number in looks:
            curve.append([number, times[-1], score(model.eval(), validation, task)])
            model.train()
            started = time.process_time() - times[-1]
    return {
        "score": score(model.eval(), test, task),
        "curve": curve,
        "seconds": times[-1],
        "step_ms": 1e3 * statistics.median(b - a for a, b in itertools.pairwise(times)),
        "peak_mib": peak,
        "encoded": encoded,
    }


def without_edges(selections: Sequence[Selection]) -> list[Selection]:
    def cleared(graph: SegmentedGraph) -> SegmentedGraph:
        return replace(graph, edges=graph.edges[:, :0], edge_ptr=np.zeros_like(graph.edge_ptr))

    return [(cleared(graph), configs) for graph, configs in selections]


def score(model: GraphSegmentTraining, part: list[Selection], task: Task) -> float:
    """Return the mean of Kendall's tau over graphs, tau over graphs of one target each, or accuracy of classes."""
    if task.kind == "runtime":
        taus = []
        for graph, configs in part:
            configs = configs[torch.from_numpy(~np.isnan(graph.targets[configs.numpy()]))]
            if len(configs) >= LEAST_TARGETS:
                scores = model.scores(graph, configs, task.configs_per_graph)
                taus.append(kendall_tau(scores.double().numpy(), graph.targets[configs.numpy()]))
        return float(np.mean(taus))
    predicted: Tensor = torch.cat([model.exact([graph]) for graph, _ in part])
    targets = np.array([graph.targets[0] for graph, _ in part])
    if task.kind == "class":
        return float((predicted.argmax(-1).numpy() == targets).mean())
    return kendall_tau(predicted.double().numpy(), targets)


def controls(task: Task, seeds: int) -> dict[str, Any]:
    """Return scores of the test parts by ridge regression and by gradient boosting on features summed over graphs."""
    ways: dict[str, Regress] = {"ridge on sums": ridge, "gradient boosting on sums": boosting}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for seed in range(seeds):
        loader, _, test = task.loaders(False, seed)
        for name, regress in ways.items():
            metrics = control_metrics(LOSS[task.kind], loader.selections, test, regress=regress)
            found[name].append(metrics["accuracy" if task.kind == "class" else "tau"])
    return {
        name: {"scores": scores, "score_mean": statistics.mean(scores), "score_half_width": half_width(scores)}
        for name, scores in found.items()
    }


def boosting(features: np.ndarray, goals: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return gradient boosting of each goal on features."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    real = ~np.isnan(goals).any(1)
    trees = [HistGradientBoostingRegressor(random_state=0).fit(features[real], each[real]) for each in goals.T]
    return lambda rows: np.stack([tree.predict(rows) for tree in trees], 1)


def digest(task: Task) -> str:
    """Return a hash of names and sizes of the graphs, which for binaries depend on the machine."""
    loader, *others = task.loaders(True, 0)
    graphs = sorted((graph.name, graph.num_nodes) for part in (loader.selections, *others) for graph, _ in part)
    return shortened(hashlib.sha256(json.dumps(graphs).encode()))


def run(task: str, job: tuple[str, int, float], found: dict[str, Any], path: Path) -> None:
    """Train in a process of its own, unless the runs in `found` have the result, and save it."""
    (variant, seed, rate), runs = job, found["runs"]
    if (key := f"{variant}, seed {seed}, rate {rate:.2g}") in runs:
        return
    child = [sys.executable, "-m", "experiments.variants.compare", "--run", task, variant, str(seed), str(rate)]
    done = subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True)
    runs[key] = {"variant": variant, "seed": seed, "rate": rate, **json.loads(done.stdout)}
    save(task, found, path)


def save(task: str, found: Mapping[str, Any], path: Path) -> None:
    kept = {key: found[key] for key in ("controls", "graphs")}
    write_json(path, kept | summary(TASKS[task], dict(found["runs"])))


def best_rate(task: Task, runs: Mapping[str, Any], variant: str) -> float:
    """Return the learning rate, of those of the task, with the best last validation score of seed 0."""
    of_seed = [each for each in runs.values() if each["variant"] == variant and each["seed"] == 0 and each["curve"]]
    of_seed = [each for each in of_seed if each["rate"] in task.rates]
    return float(max(of_seed, key=lambda each: each["curve"][-1][2], default={"rate": 1.0})["rate"])


def summary(task: Task, runs: Mapping[str, Any]) -> dict[str, Any]:
    """Return rows of variants: score of the test part, time until 99 % of the validation score of whole graphs."""
    chosen = {
        name: [
            each for each in runs.values() if each["variant"] == name and each["rate"] == best_rate(task, runs, name)
        ]
        for name in VARIANTS
    }
    reference = next((name for name in (WHOLE, "GST") if any(each["curve"] for each in chosen[name])), "")
    finished = [each for each in chosen.get(reference, ()) if each["curve"]]
    of_reference = {each["seed"]: each["score"] for each in finished}
    finals = [each["curve"][-1][2] for each in finished]
    goal = 0.99 * statistics.median(finals) if finals else math.inf
    seeds = 1 + max(each["seed"] for each in runs.values())
    rows = {name: row(each, goal, of_reference) for name, each in chosen.items() if each}
    return {
        "task": task.name, "kind": task.kind, "steps": task.steps, "reference": reference, "goal": goal,
        "budget_mib": BUDGET_MIB, "variants": rows, "runs": runs, "machine": machine_record(),
        "command": f"python -m experiments.variants.compare --tasks {task.name} --seeds {seeds}",
    }  # fmt: skip


def row(runs: Sequence[Mapping[str, Any]], goal: float, of_reference: Mapping[int, float]) -> dict[str, Any]:
    """Return mean and 95 % interval of the scores of a variant, and of their differences from those of the reference
    with the same seed; and medians over its seeds."""
    runs = sorted(runs, key=lambda each: each["seed"])
    if any(each["score"] is None for each in runs):
        return {"rate": runs[0]["rate"], "score_mean": None, "peak_mib": max(each["peak_mib"] for each in runs)}
    scores = [each["score"] for each in runs]
    ahead = [each["score"] - of_reference[each["seed"]] for each in runs if each["seed"] in of_reference]
    reached = [next((at for _, at, value in each["curve"] if value >= goal), math.inf) for each in runs]
    until = statistics.median(reached)
    return {
        "rate": runs[0]["rate"], "scores": scores, "score_mean": statistics.mean(scores),
        "score_half_width": half_width(scores), "ahead_mean": statistics.mean(ahead) if ahead else None,
        "ahead_half_width": half_width(ahead), "seconds_to_goal": until if math.isfinite(until) else None,
        **{key: statistics.median(each[key] for each in runs) for key in ("seconds", "step_ms", "peak_mib", "encoded")},
    }  # fmt: skip


def half_width(values: Sequence[float]) -> float:
    """Return half of the width of the 95 % interval of the mean, by Student's t."""
    from scipy.stats import t

    count = len(values)
    return float(t.ppf(0.975, count - 1) * statistics.stdev(values) / math.sqrt(count)) if count > 1 else math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), help="default: %(default)s")
    parser.add_argument("--variants", default=";".join(VARIANTS), help="separated by semicolons; default: %(default)s")
    parser.add_argument("--seeds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--processes", type=int, default=2, help="trainings at once; default: %(default)s")
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        task, variant, seed, rate = options.run
        print(json.dumps(train(TASKS[task], variant, int(seed), float(rate))))
        return
    variants = options.variants.split(";")
    for task in options.tasks.split(","):
        for whole in (True, False):  # prepared here, once
            TASKS[task].loaders(whole, 0)
        path = RESULTS / f"convergence_{task}.json"
        here = digest(TASKS[task])
        found = read_object(path) if path.exists() else {"controls": {}, "runs": {}, "graphs": here}
        if found.get("graphs") != here:
            raise SystemExit(f"{path} is of other graphs than this machine has; remove it to begin anew")
        if any(len(each["scores"]) != options.seeds for each in found["controls"].values()) or not found["controls"]:
            found["controls"] = controls(TASKS[task], options.seeds)
        with ThreadPoolExecutor(options.processes) as pool:
            for seeds in (range(1), range(1, options.seeds)):
                jobs = [
                    (name, seed, rate)
                    for seed in seeds
                    for name in variants
                    for rate in ([best_rate(TASKS[task], found["runs"], name)] if seed else TASKS[task].rates)
                ]
                done = pool.map(lambda job: run(task, job, found, path), jobs)  # noqa: B023 (ends within the loop)
                list(bar(done, total=len(jobs), desc=f"{task}, {'other seeds' if seeds[0] else 'learning rates'}"))
        save(task, found, path)


if __name__ == "__main__":
    main()
