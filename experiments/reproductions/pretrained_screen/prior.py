"""Priors of a simulator's errors, learned from simulated machines: which plans are off by the same factor."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor, nn

from experiments.bench.search_loop import NOISE, unlike
from experiments.reproductions.pretrained_screen.chain_features import NAMES, ChainFeatures, others_running
from experiments.reproductions.pretrained_screen.process import ErrorProcess, Rows
from gst.lowering.plan import Plan
from gst.placement.measured import SEARCH_RUNS
from gst.placement.objectives import SimulatedObjective
from gst.placement.reward import Answers, Surrogate
from gst.placement.task import Task
from gst.programs import NUM_OPCODES
from gst.programs.features import FEATURE_NAMES

MEDIAN_NOISE = 1.25 * NOISE / SEARCH_RUNS**0.5  # of a measurement, which is a median
UNKNOWN = NUM_OPCODES  # kind of operations of generated tasks
POOLS = ("load", "chain", "crowded chain")  # times by which embeddings are summed
LOCAL = 6  # features of an operation where it is placed
CHANNELS = 8  # of embeddings, for each pool


@dataclass(frozen=True, eq=False)
class Examples:
    """Plans of one task, as a prior reads them.

    Args:
        columns: of `ChainFeatures`, by name.
        local: of each operation that takes time, where the plan places it.
        times: of each such operation as a share of the runtime, for each of `POOLS`.
        kinds: opcodes; `UNKNOWN` where there is no captured program.
    """

    task: Task
    plans: tuple[Plan, ...]
    columns: Mapping[str, Float32[np.ndarray, "plans entries"]]
    local: Float32[np.ndarray, "plans nodes local"]
    times: Float32[np.ndarray, "plans nodes pools"]
    kinds: Int64[np.ndarray, " nodes"]


@dataclass(frozen=True, eq=False)
class Lesson:
    """Plans of one task, and logarithms of true / believed runtimes on each of some machines."""

    examples: Examples
    simulated_ms: Answers
    errors: Float64[np.ndarray, "machines plans"]


def examples(features: ChainFeatures, plans: Sequence[Plan]) -> Examples:
    """Return the inputs of a prior for plans of a task: one simulated run of each."""
    task = features.task
    runs = [task.simulator.run(plan) for plan in plans]
    columns = [features.columns(each) for each in runs]
    chain = np.stack([each["chain_by_node"] for each in columns])
    crowd = np.stack([others_running(each) for each in runs])
    times = np.stack([np.stack([each["load_by_node"] for each in columns]), chain, chain * crowd], -1)
    captured = task.graph.node_features.shape[1] == len(FEATURE_NAMES)
    live = np.flatnonzero(task.profiled.times_us.max(0) > 0)
    return Examples(
        task, tuple(plans), {name: np.stack([each[name] for each in columns]).astype(np.float32) for name in NAMES},
        np.stack([local_features(task, each.placement)[live] for each in plans]).astype(np.float32),
        times[:, live].astype(np.float32),
        (task.graph.opcodes if captured else np.full(task.num_nodes, UNKNOWN))[live],
    )  # fmt: skip


def lesson(task: Task, plans: Sequence[Plan], seeds: Sequence[int]) -> Lesson:
    """Plans of a task, and their errors on the machines of `seeds` (`unlike`)."""
    simulated_ms = SimulatedObjective(task)(plans)
    errors = [np.log(SimulatedObjective(unlike(task, seed))(plans) / simulated_ms) for seed in seeds]
    return Lesson(examples(ChainFeatures(task), plans), simulated_ms, np.stack(errors))


def local_features(task: Task, home: Int64[np.ndarray, " nodes"]) -> Float64[np.ndarray, "nodes local"]:
    """Time here, and over the least of all devices; threads; size of the value; values and bytes from other devices."""
    times, nodes = task.profiled.times_us, np.arange(task.num_nodes)
    producers, consumers = task.costs.edges
    crossing = home[producers] != home[consumers]
    received = np.bincount(consumers[crossing], task.costs.output_bytes[producers[crossing]], task.num_nodes)
    count = np.bincount(consumers[crossing], minlength=task.num_nodes)
    here, threads = times[home, nodes], np.array([device.threads for device in task.devices])[home]
    columns = [np.log1p(here / times.mean()), np.log((here + 1e-3) / (times.min(0) + 1e-3)), np.log(threads)]
    columns += [np.log1p(task.costs.output_bytes) / 15, np.minimum(count, 8) / 4, np.log1p(received) / 15]
    return np.stack(columns, -1)


class Prior(nn.Module):
    """Features of plans whose products are covariances of errors: named ones in units that are learned, pooled
    embeddings of operations, or both."""

    def __init__(self, named: bool, learned: bool) -> None:
        super().__init__()
        self.named, self.learned = named, learned
        self.scales = nn.ParameterDict({name: nn.Parameter(torch.tensor(0.1).log()) for name in NAMES})
        self.noise = nn.Parameter(torch.tensor(0.03).log())
        self.kinds = nn.Embedding(NUM_OPCODES + 1, 12)
        width = len(POOLS) * CHANNELS
        self.layers = nn.Sequential(
            nn.Linear(12 + LOCAL, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, width),
        )  # fmt: skip

    def forward(self, batch: Examples, chosen: Int64[np.ndarray, " chosen"]) -> Float[Tensor, "chosen features"]:
        parts = []
        if self.named:
            parts += [self.scales[name].exp() * torch.from_numpy(batch.columns[name][chosen]) for name in NAMES]
        if self.learned:
            local, times = torch.from_numpy(batch.local[chosen]), torch.from_numpy(batch.times[chosen])
            kinds = self.kinds(torch.from_numpy(batch.kinds)).expand(len(chosen), -1, -1)
            embeddings = self.layers(torch.cat([kinds, local], -1)).unflatten(-1, (len(POOLS), CHANNELS))
            parts.append((embeddings * times[..., None]).sum(1).flatten(1))
        return torch.cat(parts, 1)

    def rows(self, batch: Examples) -> Rows:
        """Of all plans, for an `ErrorProcess`."""
        with torch.no_grad():
            return self(batch, np.arange(len(batch.plans))).double().numpy()


def fit(prior: Prior, lessons: Sequence[Lesson], seconds: float, rate: float, seed: int = 0) -> Prior:
    """`prior`, fitted to the likelihood of noisy errors of 40 plans on all machines at once, a task in each step."""
    generator, noises = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(prior.parameters(), rate, weight_decay=1e-3)
    started, share = time.perf_counter(), 0.0
    while share < 1:
        optimizer.param_groups[0]["lr"] = rate * (1 - share)
        each = lessons[int(generator.integers(len(lessons)))]
        promising = np.argsort(each.simulated_ms)[: len(each.simulated_ms) // 2]
        chosen = np.union1d(generator.choice(promising, 26), generator.choice(len(each.simulated_ms), 14))
        errors = torch.from_numpy(each.errors[:, chosen].T).float()
        errors = errors + MEDIAN_NOISE * torch.randn(errors.shape, generator=noises)
        loss = _surprise(prior(each.examples, chosen), prior.noise.exp(), errors - errors.mean(0))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(prior.parameters(), 1.0)
        optimizer.step()
        share = (time.perf_counter() - started) / seconds
    return prior


def _surprise(
    rows: Float[Tensor, "plans features"], noise: Tensor, errors: Float[Tensor, "plans machines"]
) -> Float[Tensor, ""]:
    """Negative logarithm of the likelihood of a plan, up to a constant, if a machine is off by a factor as well."""
    covariance = rows @ rows.T + noise**2 * torch.eye(len(rows)) + 0.3**2
    factor = torch.linalg.cholesky(covariance)
    whitened = torch.linalg.solve_triangular(factor, errors, upper=False)
    return (whitened.square().sum(0).mean() / 2 + factor.diagonal().log().sum()) / len(rows)


class PretrainedSurrogate(Surrogate):
    """`ErrorProcess` on the features of a prior, for a `Reward`."""

    def __init__(self, task: Task, prior: Prior) -> None:
        self._features, self._prior, self._process = ChainFeatures(task), prior, ErrorProcess()

    def learn(self, plans: Sequence[Plan], simulated_ms: Answers, logs: Answers) -> None:
        self._process.learn(self._prior.rows(examples(self._features, plans)), logs)

    def __call__(self, plans: Sequence[Plan], simulated_ms: Answers) -> tuple[Answers, Answers]:
        return self._process(self._prior.rows(examples(self._features, plans)))
