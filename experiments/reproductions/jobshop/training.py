"""Training of the job shop policy by evolution strategies, on generated problems."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from gst.placement.policies.constructive.fine_tuning import Evolving, evolved
from jaxtyping import Float32, Float64

from experiments.reproductions.jobshop.network import initial_weights, save_weights
from experiments.reproductions.jobshop.problem import generated_job_shop
from experiments.reproductions.jobshop.rollout import NETWORK, Tables, roll_out_many, tables_of
from gst.util.progress import Progress, no_progress

PAIRS = 32  # of opposite noises at a step
PROBLEMS = 16  # at a step, all of them new
JOBS, MACHINES = (6, 30), (6, 20)
VALIDATION = range(10**9, 10**9 + 24)  # seeds of problems that training never sees
EVERY = 50  # steps between validations


@dataclass(frozen=True, eq=False, kw_only=True)
class Training(Evolving):
    """State of training.

    Args:
        seconds: of the process.
        curve: (step, makespan over that of the first weights) of each validation.
    """

    seconds: float = 0.0
    curve: tuple[tuple[int, float], ...] = ()


def train(
    seed: int,
    seconds: float | None = None,
    steps: int | None = None,
    save: Path | None = None,
    progress: Progress = no_progress,
) -> Training:
    """Train for so many seconds of the process, or so many steps; the latter do not depend on the machine.

    The average of the weights is written to `save` every `EVERY` steps.

    At each step (`evolved`) every member builds a schedule for each of `PROBLEMS` new problems.

    Raises:
        ValueError: neither seconds nor steps are given, or both.

    Examples:
        >>> result = train(0, steps=1)
        >>> result.step, bool((result.weights != initial_weights(0)).any())
        (1, True)
    """
    if (seconds is None) == (steps is None):
        raise ValueError("give seconds or steps of training, one of them")
    generator = np.random.default_rng(seed)
    weights = initial_weights(seed)
    nothing = np.zeros_like(weights)
    state = Training(weights=weights, average=weights, first=nothing, second=nothing)
    held_out = [_drawn(np.random.default_rng(each)) for each in VALIDATION] if steps is None or steps >= EVERY else []
    start = _logs(held_out, weights[None])
    begun = time.process_time()
    while True:
        done = state.step / steps if steps else state.seconds / (seconds or 1e-9)
        if done >= 1.0:
            return state
        drawn = [_drawn(generator) for _ in range(PROBLEMS)]
        state = evolved(state, partial(_logs, drawn), PAIRS, generator, done)
        curve = state.curve
        if held_out and state.step % EVERY == 0:
            value = float(np.exp(np.mean(_logs(held_out, state.average[None]) - start)))
            curve = (*curve, (state.step, value))
            if save is not None:
                save_weights(save, state.average)
        state = replace(state, seconds=time.process_time() - begun, curve=curve)
        shown = f"makespan {curve[-1][1]:.4f} of untrained" if curve else "training"
        progress(shown, int(1000 * min(done, 1.0)), 1000)


def _drawn(generator: np.random.Generator) -> Tables:
    """Tables of a random problem: as many jobs as machines or more, but for one in five."""
    machines = int(generator.integers(MACHINES[0], MACHINES[1] + 1))
    fewest = JOBS[0] if generator.random() < 0.2 else max(machines, JOBS[0])
    jobs = int(generator.integers(fewest, JOBS[1] + 1))
    return tables_of(generated_job_shop(int(generator.integers(10**9)), jobs, machines))


def _logs(
    problems: list[Tables], weights: Float32[np.ndarray, "members weights"]
) -> Float64[np.ndarray, "problems members"]:
    """Logarithm of each member's makespan on each problem."""
    rows, state = np.empty((len(problems), len(weights))), np.ones(1, np.uint64)
    for row, tables in zip(rows, problems, strict=True):
        roll_out_many(tables, weights, NETWORK, -1.0, state, row, np.empty(tables.position.shape, np.int64))
    return np.log(rows)
