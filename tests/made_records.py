"""Made-up records of searches, as `gst place` hands them to its report."""

from __future__ import annotations

from typing import Any

import numpy as np


def make_record(num_nodes: int = 300, runtime: str = "measured") -> dict[str, Any]:
    """What `gst place` would find; only a measured one has measurements and plain PyTorch."""
    record = {
        "program": "rnnlm", "runtime": runtime, "num_nodes": num_nodes, "num_edges": 2 * num_nodes - 16,
        "objective": 41.2, "lower_bound": 38.5, "best": "hdp",
        "machine": {"cpu": "Example CPU", "threads": 2},
        "devices": [{"name": "cpu:0", "description": "core 0"}, {"name": "cpu:1", "description": "core 1"}],
        "timeline": timeline(num_nodes),
        "methods": ["annealing", "hdp", "go"],
        "seconds": 92.4, "command": "gst place rnnlm --out runs/rnnlm",
        "certificate": {
            "lower_bound": 38.5, "plan": 41.2, "gap": 41.2 / 38.5 - 1, "peak_bytes": {"host": 123 * 2**20},
            "limit_bytes": {"host": None}, "is_fused": False,
        },
    }  # fmt: skip
    times = {"single:cpu:0": 70.3, "chunks": 90.6, "annealing": 44.0, "hdp": 41.2}
    if runtime != "measured":
        plan = lambda ms: {  # noqa: E731
            "latency": ms, "feasible": True, "seconds_to_plan": 3.25, "evaluations": 2_000, "measurements": 0
        }  # fmt: skip
        return record | {"plans": {name: plan(ms) for name, ms in times.items()}}
    ran = lambda ms: {  # noqa: E731
        "median_ms": ms, "low_ms": ms - 1, "high_ms": ms + 1.2, "feasible": True, "reason": "", "seconds_to_plan": 3.25,
        "measurements": 0, "runs": 31, "simulated_ms": 0.9 * ms,
    }  # fmt: skip
    failed = ran(1.0) | {"median_ms": None, "low_ms": None, "high_ms": None, "feasible": False, "reason": "no memory"}
    return record | {
        "plans": {"pytorch": ran(61.8), **{name: ran(ms) for name, ms in times.items()}, "go": failed},
        "pytorch_ms": 61.8, "measurements": trials(),
        "cost_model": {"tau": 0.637, "num_measured": 10, "num_screened": 4321},
    }  # fmt: skip


def trials() -> list[dict[str, Any]]:
    """Ten plans, ever faster, the seventh failed."""
    noise = np.random.default_rng(1).normal(size=10)
    origins = ["single:cpu:0", "annealing", "mutation", "chunks"]
    made = [
        {
            "label": f"plan {i}", "origin": origins[i % 4], "round": i // 4, "median_ms": 50.0 - i, "low_ms": 49.0 - i,
            "high_ms": 51.5 - i, "predicted_ms": None if i < 4 else 51.0 - i + noise[i], "outcome": "ok",
        }
        for i in range(10)
    ]  # fmt: skip
    made[7] |= {"median_ms": None, "low_ms": None, "high_ms": None, "outcome": "failed"}
    return made


def timeline(num_bars: int) -> dict[str, Any]:
    """Two devices in turns, a millisecond each."""
    bars = [[n % 2, float(n), n + 1.0, n % 3] for n in range(num_bars)]
    return {"kinds": ["matrix product", "convolution", "element-wise"], "bars": bars}
