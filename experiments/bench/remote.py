"""Epochs of training from an S3 server on this machine with 20 ms of latency, compared with those from a local store.

Each round trains one epoch from the local store and one from the server, so that both share the load of the machine.
The first epoch from the server fetches; later ones read the copies on the disk.

    python -m experiments.bench remote --json experiments/results/remote.json
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from experiments.bench.s3_server import STATISTICS
from gst.data.loader import StepLoader
from gst.data.synthetic import synthetic_program
from gst.graphs.segments import SegmentedGraph
from gst.graphs.store import open_store, prepare
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head

HELP = {"rounds": "epochs of each kind"}
LATENCY, BUCKET = 0.02, "bucket"
NODES, CONFIGS, MAX_NODES, CONFIGS_A_STEP = 8_000, 64, 1000, 8
FIXED = ("node_ids", "targets", "counts", "spreads", "owned_counts", "row_ptr", "edge_ptr", "config_ptr")


def run(rounds: int = 9) -> dict[str, Any]:
    """Return seconds of epochs, their ratios, and bytes fetched compared with those of the segments drawn."""
    command = [sys.executable, "-m", "experiments.bench.s3_server", "--latency", str(LATENCY)]
    with (
        TemporaryDirectory() as place,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
    ):
        assert server.stdout is not None and server.stdin is not None
        endpoint = server.stdout.readline().strip()
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": endpoint, "XDG_CACHE_HOME": f"{place}/cache",
        }  # fmt: skip
        try:
            return _measured(Path(place), endpoint, rounds)
        finally:
            server.stdin.close()


def _measured(place: Path, endpoint: str, rounds: int) -> dict[str, Any]:
    import boto3

    boto3.client("s3").create_bucket(Bucket=BUCKET)
    program = synthetic_program(num_nodes=NODES, num_configs=CONFIGS, configurable=0.1)
    layouts = np.repeat(program.config_features % 6, 18, axis=2).astype(np.int8)  # as wide as those of TpuGraphs
    graphs = [replace(program, config_features=layouts, node_features=np.repeat(program.node_features, 32, axis=1))]
    here = open_store(prepare(graphs, place / "stores", MAX_NODES))
    there = open_store(prepare(graphs, f"s3://{BUCKET}/stores", MAX_NODES))
    drawn = sum(array.nbytes for graph in here for name, array in graph._arrays() if name not in FIXED)
    local, far = _Training(here), _Training(there)
    before, seconds = _statistics(endpoint)[0], []
    local.epoch()  # warm
    for round_ in range(rounds):
        seconds.append((local.epoch(), far.epoch()))
        if round_ == 0:
            fetched, requests = _statistics(endpoint)
    again = _statistics(endpoint)[0] - fetched
    ratios = [there / here for here, there in seconds]
    return {
        "latency_ms": 1000 * LATENCY, "steps": len(local.loader), "local_seconds": [here for here, _ in seconds],
        "remote_seconds": [there for _, there in seconds],
        "first_epoch_over_local": ratios[0], "later_epochs_over_local": statistics.median(ratios[1:]),
        "fetched_over_drawn": (fetched - before) / drawn, "bytes_fetched_later": again, "requests": requests,
    }  # fmt: skip


def _statistics(endpoint: str) -> tuple[int, int]:
    sent, requests = urllib.request.urlopen(endpoint + STATISTICS).read().split()
    return int(sent), int(requests)


class _Training:
    """A training of which every epoch takes all segments under all configurations."""

    def __init__(self, graphs: list[SegmentedGraph]) -> None:
        torch.manual_seed(0)
        self.model = GraphSegmentTraining(SAGE(32, 2), Head(32), num_fresh=graphs[0].num_segments)
        self.loader = StepLoader([(each, torch.arange(each.num_configs)) for each in graphs], 1, CONFIGS_A_STEP)
        self.loader.reader = lambda step, ahead: partial(
            self.model.load, self.model.draw(step.graphs, step.configs, ahead)
        )
        self.optimizer: torch.optim.Optimizer | None = None

    def epoch(self) -> float:
        """Train one epoch; returns its seconds."""
        started = time.perf_counter()
        for step in self.loader:
            scores = self.model(step.graphs, step.configs, step.prefetched)
            loss = (scores - step.targets.float().log()).square().mean()
            self.optimizer = self.optimizer or torch.optim.SGD(self.model.parameters(), 1e-3)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return time.perf_counter() - started
