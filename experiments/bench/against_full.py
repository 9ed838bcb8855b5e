"""Training on whole graphs and on segments of them, to the same score on configurations that neither saw."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from embedding_cache import EmbeddingTable
from experiments.bench.child import call
from gst.cost.losses import pairwise_hinge
from gst.cost.metrics import kendall_tau
from gst.data.loader import StepLoader, split
from gst.data.synthetic import synthetic_program
from gst.graphs.segments import SegmentedGraph, segment
from gst.machine.devices import machine_record
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head
from gst.util.process import keep_freed_memory
from gst.util.progress import Progress, no_progress

NODES, CONFIGS, HELD_OUT = 20_000, 256, 32
CONFIGS_PER_STEP, CHANNELS, LAYERS, EPOCHS = 16, 32, 2, 20
SEEDS = 3
SCORES = (0.7, 0.8, 0.85, 0.9)  # Kendall's tau, of which times are taken
SCORE = 0.85


def variant(name: str, nodes: int = NODES) -> dict[str, Any]:
    """Segments and estimator of `full` and `gst` (4 of 20 segments fresh, a table, the default estimate)."""
    if name == "full":
        return {"max_nodes": nodes, "num_fresh": 1}
    return {"max_nodes": nodes // 20, "num_fresh": 4, "table": True}


def run(
    progress: Progress = no_progress, nodes: int = NODES, seeds: int = SEEDS, epochs: int = EPOCHS
) -> dict[str, Any]:
    """Train both, in turns, each in a process of its own.

    Args:
        nodes: of the graph.
        seeds: trainings of each, at least 2.
        epochs: of every training.

    Returns:
        `gst_ms`, `full_ms`: median of a step. `gst_seconds`, `full_seconds`: processor time until Kendall's tau on the
        held-out configurations is `score`, the median of the seeds that reached it; `speedup`: their ratio.
        `gst_peak_mib`, `full_peak_mib`: resident, the whole process. `gst_tau`, `full_tau`: after the last step, mean
        over seeds, with `..._deviation`. `seconds_to`: the same times for other scores. `curves`: seconds and tau every
        seven steps until the last of these scores, and at the end, for each seed.
    """
    results: dict[str, list[dict[str, Any]]] = {"gst": [], "full": []}
    for seed in range(seeds):
        for turn, name in enumerate(results):
            progress(f"{name}, seed {seed}", 2 * seed + turn, 2 * seeds)
            results[name].append(call("against_full:train", name=name, seed=seed, epochs=epochs, nodes=nodes))
    progress("done", 2 * seeds, 2 * seeds)
    curves = {name: [each["curve"] for each in runs] for name, runs in results.items()}
    seconds_to = {str(score): times_to(score, curves) for score in SCORES}
    summary: dict[str, Any] = {"score": SCORE}
    for name, runs in results.items():
        last = [each["curve"][-1][1] for each in runs]
        summary |= {
            f"{name}_ms": statistics.median(each["step_ms"] for each in runs),
            f"{name}_seconds": seconds_to[str(SCORE)][name],
            f"{name}_reached": seconds_to[str(SCORE)][f"{name}_reached"],
            f"{name}_peak_mib": max(each["peak_mib"] for each in runs),
            f"{name}_tau": statistics.mean(last),
            f"{name}_tau_deviation": statistics.stdev(last),
        }
    return {
        **summary,
        "speedup": seconds_to[str(SCORE)]["speedup"],
        "step_speedup": summary["full_ms"] / summary["gst_ms"],
        "seconds_to": seconds_to,
        "setting": {"nodes": nodes, "configs": CONFIGS, "held_out": HELD_OUT, "seeds": seeds},
        "curves": curves,
        "machine": machine_record(),
    }


def times_to(score: float, curves: dict[str, list[list[tuple[float, float]]]]) -> dict[str, float]:
    """For `gst` and `full` the median of the seconds until `score`, over the seeds that reached it, how many these are,
    and the ratio."""
    times: dict[str, float] = {}
    for name in ("gst", "full"):
        reached = [seconds for curve in curves[name] if (seconds := _seconds_to(score, curve)) is not None]
        times[name] = statistics.median(reached) if reached else float("nan")
        times[f"{name}_reached"] = len(reached)
    return {**times, "speedup": times["full"] / times["gst"]}


def _seconds_to(score: float, curve: list[tuple[float, float]]) -> float | None:
    return next((seconds for seconds, tau in curve if tau >= score), None)


def train(name: str, seed: int, epochs: int = EPOCHS, nodes: int = NODES) -> dict[str, Any]:
    """One training, in this process; evaluation is exact and not in the times."""
    keep_freed_memory()
    torch.set_num_threads(1)
    settings = variant(name, nodes)
    graph = segment(synthetic_program(nodes, CONFIGS), settings["max_nodes"])
    training, held_out, _ = split([graph], "configs", HELD_OUT, 0, seed)
    loader = StepLoader(training, 1, CONFIGS_PER_STEP, seed=seed)
    torch.manual_seed(seed)
    model = GraphSegmentTraining(
        SAGE(CHANNELS, LAYERS, num_opcodes=8, config_symbols=7), Head(CHANNELS), "mean", settings["num_fresh"],
        table=EmbeddingTable(1, CHANNELS) if settings.get("table") else None, seed=seed,
    )  # fmt: skip
    model.embed([graph], torch.zeros(1, 1, dtype=torch.long))
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    steps: list[float] = []
    curve: list[tuple[float, float]] = []
    for _ in range(epochs):
        for step in loader:
            model.train()
            started = time.process_time()
            loss = pairwise_hinge(model(step.graphs, step.configs), step.targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            steps.append(time.process_time() - started)
            reached = any(tau >= SCORES[-1] for _, tau in curve)
            if len(steps) == epochs * len(loader) or (not reached and len(steps) % 7 == 0):
                curve.append((sum(steps), _tau(model.eval(), *held_out[0])))
    peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
    return {"step_ms": 1e3 * statistics.median(steps), "curve": curve, "peak_mib": peak}


def _tau(model: GraphSegmentTraining, graph: SegmentedGraph, configs: Tensor) -> float:
    scores = model.scores(graph, configs, CONFIGS_PER_STEP)
    return kendall_tau(scores.double().numpy(), graph.targets[configs.numpy()])
