"""One network for graphs of several kinds, as the studies of features and of transfer train it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float64

from experiments.reproductions.tpugraphs.common_columns import NUM_OPCODES
from gst.cost.losses import list_mle
from gst.graphs.segments import SegmentedGraph
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head

CHANNELS, CONFIGS, NUM_FRESH = 64, 128, 2
Lessons = Sequence[tuple[SegmentedGraph, np.ndarray]]
"""Graphs of a kind, and the configurations of each to learn from."""
Scores = Callable[[SegmentedGraph], Float64[np.ndarray, " configs"]]


def gnn(kinds: Sequence[Lessons], seed: int, steps: int, columns: int | None = None, layers: int = 2) -> Scores:
    """SAGE under Graph Segment Training with ListMLE, after `steps` steps on each kind of graphs alternately.

    Args:
        kinds: what is learned from; each step takes one graph of a kind and a few of its configurations.
        columns: how many columns of nodes it sees, the first ones; all if None.
        layers: how many hops messages go; without any, a node knows its own configuration alone.

    Returns:
        What scores the configurations of any graph with the same columns; the lower, the faster.
    """
    few = lambda graph: replace(graph, node_features=graph.node_features[:, :columns])  # noqa: E731
    seen = [[(few(graph), known) for graph, known in lessons] for lessons in kinds]
    torch.manual_seed(seed)
    encoder = SAGE(CHANNELS, layers, NUM_OPCODES, log_config=False)
    model = GraphSegmentTraining(encoder, Head(CHANNELS), "sum", NUM_FRESH, seed=seed)
    model.embed([seen[0][0][0]], torch.zeros(1, 1, dtype=torch.long))  # gives lazy layers their widths
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, steps * len(seen))
    random = np.random.default_rng(seed)
    for step in range(steps * len(seen)):
        lessons = seen[step % len(seen)]
        graph, known = lessons[random.integers(len(lessons))]
        some = random.permutation(known)[:CONFIGS]
        loss = list_mle(model([graph], torch.from_numpy(some)[None]), torch.from_numpy(graph.targets[some])[None])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
    return lambda graph: model.scores(few(graph)).double().numpy()
