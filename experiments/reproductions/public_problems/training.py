"""Training of the constructive policy by evolution strategies, on generated problems that grow."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Float64

from experiments.reproductions.public_problems.generated import SIZES, generated_problem
from experiments.reproductions.public_problems.problem import Problem
from experiments.reproductions.public_problems.proposing import roll_out_many, tables_of_problem
from experiments.reproductions.public_problems.weights import initial_weights
from gst.placement.policies.constructive.fine_tuning import Evolving, evolved
from gst.placement.policies.constructive.network import NUM_WEIGHTS, Tables
from gst.placement.policies.constructive.rollout import window_of
from gst.util.progress import Progress, no_progress
from gst.util.untrusted import read_arrays
from gst.util.writing import atomic_path

PAIRS = 24  # of opposite noises at a step
PROBLEMS, RENEWED = 16, 4  # at a step, and how many of these are new
VALIDATION = range(10**9, 10**9 + 48)  # seeds of problems that training never sees
EVERY = 25  # steps between validations
WIDEST = 300.0  # seconds of training before problems have their full size


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Evolving):
    """The state of training.

    Args:
        seconds: that the steps took.
        seed: of the whole training.
        curve: (step, validation) of each validation: the geometric mean of makespans over those of the first weights.
    """

    seconds: float = 0.0
    seed: int = 0
    curve: tuple[tuple[int, float], ...] = ()

    @classmethod
    def new(cls, seed: int) -> State:
        weights = initial_weights(seed)
        nothing = np.zeros_like(weights)
        return cls(weights=weights, average=weights, first=nothing, second=nothing, seed=seed)

    def save(self, path: Path) -> None:
        with atomic_path(path) as partial, partial.open("wb") as file:
            np.savez(
                file, weights=self.weights, average=self.average, first=self.first, second=self.second,
                counters=np.array([self.step, self.seed]), seconds=np.array([self.seconds]),
                curve=np.array(self.curve, np.float64).reshape(-1, 2),
            )  # fmt: skip

    @classmethod
    def load(cls, path: Path) -> State:
        """Raises:
        ValueError: the file is missing, damaged, or of a policy with other features.
        """
        arrays = read_arrays(path)
        try:
            weights, average, first, second = (
                arrays[name].astype(np.float32) for name in ("weights", "average", "first", "second")
            )
            step, seed = arrays["counters"].tolist()
            curve = tuple((int(at), float(value)) for at, value in arrays["curve"].tolist())
            seconds = float(arrays["seconds"][0])
        except (KeyError, TypeError, ValueError, IndexError):
            raise ValueError(f"{path}: not a state of train-policy; give another --out") from None
        vectors = (weights, average, first, second)
        if any(vector.shape != (NUM_WEIGHTS,) or not np.isfinite(vector).all() for vector in vectors):
            raise ValueError(f"{path}: of a policy with other features; give another --out")
        return cls(
            weights=weights, average=average, first=first, second=second, step=step, seconds=seconds, seed=seed,
            curve=curve,
        )  # fmt: skip


@dataclass(eq=False)
class Pool:
    """Problems of a step, of which some are new each time; sizes grow while training begins."""

    generator: np.random.Generator
    most: int = SIZES[1]
    entries: list[tuple[Problem, Tables]] = field(default_factory=list)

    def renew(self, share: float) -> list[tuple[Problem, Tables]]:
        """The next problems; `share` of the full range of sizes, on a logarithmic scale, is in use."""
        count = PROBLEMS if not self.entries else RENEWED
        low = np.log(SIZES[0])
        high = low + (np.log(self.most) - low) * share
        for _ in range(count):
            nodes = max(int(np.exp(self.generator.uniform(low, high))), 2)
            problem = generated_problem(int(self.generator.integers(10**9)), nodes=nodes)
            self.entries.append((problem, tables_of_problem(problem)))
        self.entries = self.entries[-PROBLEMS:]
        return self.entries


def train(
    state: State,
    seconds: float | None = None,
    steps: int | None = None,
    most: int = SIZES[1],
    save: Path | None = None,
    progress: Progress = no_progress,
) -> State:
    """Train until so many seconds or steps have passed in all, those of the state included.

    At each step (`fine_tuning.evolved`) every member builds a schedule for each problem.

    Args:
        seconds: in all; the result depends on the machine's speed.
        steps: in all, in place of seconds; the result depends on the seed alone.
        most: operations of the largest problem.
        save: file of the state, written every `EVERY` steps.

    Raises:
        ValueError: neither seconds nor steps are given.

    Examples:
        >>> state = train(State.new(0), steps=2, most=40)
        >>> state.step, bool((state.weights != State.new(0).weights).any())
        (2, True)
    """
    if (seconds is None) == (steps is None):
        raise ValueError("give seconds or steps of training, one of them")
    held_out = [generated_problem(seed, nodes=None if most >= SIZES[1] else most) for seed in VALIDATION]
    judged = [(problem, tables_of_problem(problem)) for problem in held_out] if steps is None or steps >= EVERY else []
    start = _logs(judged, State.new(state.seed).weights[None])
    generator = np.random.default_rng([state.seed, state.step])
    pool, begun, before = Pool(generator, most), time.perf_counter(), state.seconds
    while True:
        done = state.step / steps if steps else state.seconds / seconds if seconds else 1.0
        if done >= 1.0:
            break
        grown = min(1.0, 0.4 + 0.6 * (state.seconds / WIDEST if steps is None else done * 2))
        state = evolved(state, partial(_logs, pool.renew(grown)), PAIRS, generator, done)
        state = replace(state, seconds=before + time.perf_counter() - begun)
        if judged and state.step % EVERY == 0:
            value = float(np.exp(np.mean(_logs(judged, state.average[None]) - start)))
            state = replace(state, curve=(*state.curve, (state.step, value)))
            if save is not None:
                state.save(save)
        shown = f"makespan {state.curve[-1][1]:.4f} of untrained" if state.curve else "training"
        if steps:
            progress(shown, state.step, steps)
        elif seconds:
            progress(shown, min(int(state.seconds), int(seconds)), max(int(seconds), 1))
    if save is not None:
        state.save(save)
    return state


def _logs(
    problems: list[tuple[Problem, Tables]], weights: Float32[np.ndarray, "members weights"]
) -> Float64[np.ndarray, "problems members"]:
    """Logarithm of each member's makespan on each problem; twice the worst where the memories held no schedule."""
    rows = []
    for problem, tables in problems:
        spans, nodes = np.empty(len(weights)), problem.num_nodes
        home, order, state = np.empty(nodes, np.int64), np.empty(nodes, np.int64), np.ones(1, np.uint64)
        window, first_come = window_of(len(problem.devices)), problem.graph.first_come
        roll_out_many(problem.arrays, tables, weights, window, False, first_come, state, spans, home, order)
        worst = spans[np.isfinite(spans)].max(initial=tables.horizon)
        rows.append(np.log(np.maximum(np.where(np.isfinite(spans), spans, 2 * worst), 1e-300)))
    return np.array(rows).reshape(len(problems), len(weights))
