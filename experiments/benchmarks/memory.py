"""Peak memory and time of a training step on one giant graph: the whole graph at once, and Graph Segment Training.

    python -m experiments.benchmarks.memory --nodes 200000

Each variant runs in a process of its own; the peak is the highest resident set of that process less what it held before
the first step. The whole graph is one segment with all its edges.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embedding_cache import EmbeddingTable
from gst.cost.losses import pairwise_hinge
from gst.data import SyntheticPrograms
from gst.devices import machine_record
from gst.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head
from gst.store import open_store, prepare

CHANNELS = 32
VARIANTS: dict[str, dict[str, Any]] = {
    "whole graph": {},
    "GST-One": {"num_fresh": 1, "omit_rest": True},
    "GST": {"num_fresh": 4},
    "GST+E": {"num_fresh": 4, "table": True},
    "GST+ED": {"num_fresh": 4, "table": True, "keep_probability": 0.5},
}


def memory_mb(entry: str) -> float:
    """`VmRSS` (now) or `VmHWM` (the highest so far) of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{entry}:")[1].split()[0]) / 1024


def run(variant: str, store: Path, steps: int, configs: int) -> dict[str, float]:
    """Train `steps` steps on the same few configurations, so that the table fills; times are of the last half."""
    settings = dict(VARIANTS[variant])
    table = EmbeddingTable(1, CHANNELS) if settings.pop("table", False) else None
    graph = open_store(store)[0]
    torch.manual_seed(0)
    model = GraphSegmentTraining(
        SAGE(CHANNELS, 2, num_opcodes=8, config_symbols=7), Head(CHANNELS), "mean", table=table, **settings
    )
    chosen = torch.arange(configs)[None]
    targets = torch.from_numpy(graph.targets[:configs])[None]
    before = memory_mb("VmRSS")
    seconds = []
    optimizer = None
    for _ in range(steps):
        started = time.perf_counter()
        loss = pairwise_hinge(model([graph], chosen), targets)
        optimizer = optimizer or torch.optim.AdamW(model.parameters())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    known = {"share_known": table.rows_in_use / (graph.num_segments * configs)} if table else {}
    return {"peak_mb": memory_mb("VmHWM") - before, "step_seconds": float(np.median(seconds[steps // 2 :]))} | known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--configs", type=int, default=8, help="configurations in a step")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--max-nodes", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=Path("experiments/results/memory.json"))
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.variant:
        print(json.dumps(run(options.variant, options.store, options.steps, options.configs)))
        return
    store = prepare(SyntheticPrograms(num_nodes=options.nodes), Path("runs/stores"), options.max_nodes)
    result: dict[str, Any] = {
        "nodes": options.nodes, "segments": open_store(store)[0].num_segments, "configs": options.configs,
        "machine": machine_record(), "variants": {},
        "command": f"python -m experiments.benchmarks.memory --nodes {options.nodes} --configs {options.configs}",
    }  # fmt: skip
    whole = prepare(SyntheticPrograms(num_nodes=options.nodes), Path("runs/stores"), options.nodes)
    for variant in VARIANTS:
        place = whole if variant == "whole graph" else store
        child = [sys.executable, "-m", "experiments.benchmarks.memory", "--variant", variant, "--store", str(place),
                 "--steps", str(options.steps), "--configs", str(options.configs)]  # fmt: skip
        result["variants"][variant] = json.loads(subprocess.run(child, check=True, capture_output=True).stdout)
        print(variant, result["variants"][variant], flush=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
