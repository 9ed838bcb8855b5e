"""GST network of the scheduled program: a cost model for what fitted costs cannot express.

Each plan is a graph of its own: the program with an edge from each operation to the next on its device, as the
simulator with fitted costs schedules them. The network learns logarithms of measured / fitted runtimes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import nn

from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.lowering.plan import Plan, Timeline
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head
from gst.placement.cost_models import NetworkOnFitted
from gst.placement.fitted import FittedSimulator
from gst.placement.objectives import Answers, Surrogate
from gst.placement.task import Task
from gst.util.random_numbers import seeded

CHANNELS, LAYERS, MAX_NODES = 32, 2, 4096
STEPS, PLANS_A_STEP, RATE, DECAY = 60, 16, 3e-3, 1e-2
SAME = 1e-9  # deviation of residuals, below which there is nothing to learn


class ScheduledNetwork(Surrogate):
    """A GST network of the schedules of plans by a fitted simulator; it trains anew each time.

    Args:
        fitted: the simulator whose schedules are read, and whose residuals are learned.
    """

    def __init__(self, task: Task, fitted: FittedSimulator, seed: int = 0) -> None:
        self._task, self._fitted, self._seed = task, fitted, seed
        self._model: GraphSegmentTraining | None = None
        self._mean, self._deviation = 0.0, 0.0

    def learn(self, plans: Sequence[Plan], simulated_ms: Answers, logs: Answers) -> None:
        """Train on residuals, `logs`, of fitted costs."""
        self._mean, self._deviation = float(logs.mean()), float(logs.std())
        if self._deviation < SAME:
            return
        graphs, labels = self._graphs(plans), torch.from_numpy((logs - self._mean) / self._deviation).float()
        with seeded(self._seed):
            encoder = SAGE(CHANNELS, LAYERS, int(self._task.graph.opcodes.max()) + 1)
            self._model = GraphSegmentTraining(encoder, Head(CHANNELS), "mean", num_fresh=4, seed=self._seed)
            self._model(graphs[:1])  # lazy layers get their widths
            optimizer = torch.optim.AdamW(self._model.parameters(), RATE, weight_decay=DECAY)
            self._model.train()
            for _ in range(STEPS):
                drawn = torch.randperm(len(graphs))[:PLANS_A_STEP]
                loss = nn.functional.mse_loss(self._model([graphs[i] for i in drawn.tolist()]), labels[drawn])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def __call__(self, plans: Sequence[Plan], simulated_ms: Answers) -> tuple[Answers, Answers]:
        if self._model is None:
            return np.full(len(plans), self._mean), np.zeros(len(plans))
        with torch.no_grad():
            scores = self._model.eval()(self._graphs(plans)).double().numpy()
        return self._mean + self._deviation * scores, np.zeros(len(plans))

    def _graphs(self, plans: Sequence[Plan]) -> list[SegmentedGraph]:
        simulator = self._fitted.corrected(self._task).simulator
        return [segment(scheduled_graph(self._task, simulator.run(plan)), MAX_NODES) for plan in plans]


def scheduled_graph(task: Task, run: Timeline) -> Graph:
    """Return the program with the order on each device as edges, and what the schedule says of each operation.

    Features: the logarithm of its microseconds; its share of the schedule's time, times the number of operations, so
    that the mean over nodes is the number of busy devices; its begin; how long its device waited for it; its slack; how
    many others run when it begins; and its device. Begin and slack are shares of the time of the schedule.
    """
    nodes, span = np.flatnonzero(task.costs.computed), max(run.makespan_us, SAME)
    order = nodes[np.lexsort((run.begin_us[nodes], run.device[nodes]))]
    follows = run.device[order[1:]] == run.device[order[:-1]]
    before, after = order[:-1][follows], order[1:][follows]
    edges = np.hstack([task.costs.edges, [before, after]])
    takes, waited = run.end_us - run.begin_us, np.zeros(len(run.device))
    waited[after] = run.begin_us[after] - run.end_us[before]
    begins, ends = np.sort(run.begin_us[nodes]), np.sort(run.end_us[nodes])
    at_once = np.searchsorted(begins, run.begin_us, "right") - np.searchsorted(ends, run.begin_us, "right")
    each_us = span / len(nodes)
    features = [
        np.log1p(takes), takes / each_us, run.begin_us / span, waited / each_us, slack_us(edges, run) / span, at_once,
        *np.eye(len(task.devices))[run.device].T,
    ]  # fmt: skip
    return Graph(np.stack(features, 1).astype(np.float32), edges, task.graph.opcodes)


def slack_us(edges: Int64[np.ndarray, "2 edges"], run: Timeline) -> Float64[np.ndarray, " nodes"]:
    """Return how much later each operation may end without a longer schedule, copies left out.

    Args:
        edges: of data and of the order on devices.
    """
    latest = np.full(len(run.device), run.makespan_us)
    turns = np.argsort(run.begin_us, kind="stable")
    place = np.empty_like(turns)
    place[turns] = np.arange(len(turns))
    producers, consumers = edges[:, np.argsort(-place[edges[0]], kind="stable")]
    for producer, consumer in zip(producers.tolist(), consumers.tolist(), strict=True):
        latest[producer] = min(latest[producer], latest[consumer] - (run.end_us[consumer] - run.begin_us[consumer]))
    return latest - run.end_us


class NetworkOfSchedules(NetworkOnFitted):
    """Fitted costs, corrected by a network of the schedules that they predict."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        super().__init__(task, seed)
        self.network = ScheduledNetwork(task, self.fitted, seed)  # type: ignore[assignment]
