"""Made-up records of trainings, as `gst fit` hands them to its report."""

from __future__ import annotations

from typing import Any

import numpy as np

from gst.cost.metrics import METRICS


def make_training(kind: str = "order", epochs: int = 6, graphs: int = 1, configs: int = 400) -> dict[str, Any]:
    """A training with a table that gets better every epoch but the last."""
    rng = np.random.default_rng(0)
    taus = [0.4 + 0.08 * epoch for epoch in range(epochs - 1)] + [0.6]
    return {
        "name": "alexnet_layout", "command": "gst fit --config experiments/configs/alexnet_layout.yaml",
        "seconds": 93.4, "machine": {"cpu": "Example CPU", "cores": 2, "code": "0.1.0"},
        "epochs": [
            {
                "epoch": epoch, "steps": 166 * (epoch + 1), "loss": 0.9 / (epoch + 1), "tau": tau,
                "ordered_pairs": 0.5 + tau / 2, "slowdown@1": 0.05 / (epoch + 1), "slowdown@5": 0.01 / (epoch + 1),
                "age_mean": 12.5 + epoch, "age_max": 160.0, "share_unknown": 0.8 / (epoch + 1), "rows_in_use": 31_234,
                "bytes": 2**23,
            }
            for epoch, tau in enumerate(taus)
        ],
        "held_out": {
            "epoch": max(epochs - 2, 0), "kind": kind,
            "graphs": [_graph(f"graph {number}", kind, configs, rng) for number in range(graphs)],
        },
        "model": {"variant": "GST+ED", "encoder": "SAGE", "parameters": 54_321, "loss": "pairwise_hinge"},
        "data": {"source": "TpuGraphs(files=['alexnet.npz'])", "segments": {"max_nodes": 128, "method": "metis"}},
        "parts": [
            {"part": "training", "graphs": 1, "nodes": 372, "segments": 7, "configurations": 21_905},
            {"part": "validation", "graphs": 1, "nodes": 372, "segments": 7, "configurations": 1_000},
        ],
        "checkpoints": ["runs/alexnet_layout/checkpoints/best.ckpt"],
        "metrics": {name: metric.for_report() for name, metric in METRICS.items()},
    }  # fmt: skip


def _graph(name: str, kind: str, configs: int, rng: np.random.Generator) -> dict[str, Any]:
    if kind == "class":
        measured = rng.integers(0, 4, configs)
        predicted = np.where(rng.random(configs) < 0.7, measured, rng.integers(0, 4, configs))
    else:
        measured = rng.uniform(80.0, 120.0, configs)
        predicted = measured + rng.normal(0, 4, configs)
    return {"graph": name, "predicted": predicted.tolist(), "measured": measured.tolist(), "tau": 0.812}


def make_demo() -> dict[str, Any]:
    """A record as `gst demo` makes it."""
    segments = [{"nodes": 10**k, "prepare_s": 0.5, "step_ms": 20.0, "peak_mib": 500.0 + k} for k in (4, 5, 6)]
    wholes = [{"nodes": 10**k, "prepare_s": 0.5, "step_ms": 20.0, "peak_mib": 10.0 ** (k - 2) + 500} for k in (4, 5)]
    compared = {"nodes": 100_000, "train_s": 1.5, "peak_mib": 800.0, "wrong_pairs": 0.115}
    times = {"median_ms": 10.0, "again_median_ms": 10.0, "feasible": True}
    plans = {"annealing": {**times, "simulated_ms": 9.0}, "pytorch": {**times, "again_median_ms": 15.0}}
    plans |= {"compiled": {**times, "again_median_ms": 12.0}, "frozen": {"feasible": False, "reason": "left out: <no>"}}
    trials = [
        {"label": label, "origin": "annealing", "round": round_, "predicted_ms": 9.0, "median_ms": ms}
        for label, round_, ms in (("a", 0, 11.0), ("b", 1, 10.0), ("a", 2, 11.0))
    ]
    return {
        "command": "gst demo --quick", "machine": {"cpu": "Example CPU", "cores": 2}, "seconds": 99.5,
        "growth": {
            "segments": segments, "whole": wholes, "seconds": 40.0,
            "compared": {"segments": compared, "whole": {**compared, "train_s": 9.5, "wrong_pairs": 0.102}},
        },
        "ranking": {
            "tau": {"GST": 0.8, "linear regression on sums": 0.5, "linear regression on each node": 0.79},
            "num_train": 875, "num_held_out": 300, "nodes": 372,
            "held_out": {
                "kind": "order", "unit": "ns",
                "graphs": [{"graph": "AlexNet", "predicted": [0.1, 0.5, 0.9], "measured": [7.0, 9.0, 8.0], "tau": 0.8}],
            },
        },
        "placement": {
            "program": "inception-2", "runtime": "measured", "plans": plans,
            "best": "annealing", "winner": "annealing", "measurements": trials,
            "cost_model": {"name": "gst", "tau": 0.4, "num_measured": 3, "num_screened": 1_234},
        },
    }  # fmt: skip
