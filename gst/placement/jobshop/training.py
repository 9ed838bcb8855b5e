"""Evolution strategies for the job shop policy: antithetic noise, advantages by problem, ranks, Adam."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Float64

from gst.placement.jobshop.network import NUM_WEIGHTS, Weights, initial_weights, save_weights
from gst.placement.jobshop.problem import generated_job_shop
from gst.placement.jobshop.rollout import NETWORK, Tables, roll_out_many, tables_of
from gst.process.progress import Progress, no_progress

PAIRS = 32  # of opposite noises at a step
PROBLEMS = 16  # at a step, all of them new
NOISE = 0.1  # standard deviation on each weight
RATES = (0.03, 0.003)  # of Adam, from the first step to the last
AVERAGED = 0.98  # share that the average of the weights keeps at a step
JOBS, MACHINES = (6, 30), (6, 20)
VALIDATION = range(10**9, 10**9 + 24)  # seeds of problems that training never sees
EVERY = 50  # steps between validations


@dataclass(frozen=True, eq=False)
class Training:
    """Where training stands: weights, the average of late ones (the result), moments of Adam, steps, seconds of the
    process and the validations (step, makespan over that of the first weights)."""

    weights: Weights
    average: Weights
    first: Float32[np.ndarray, " weights"]
    second: Float32[np.ndarray, " weights"]
    step: int = 0
    seconds: float = 0.0
    curve: list[tuple[int, float]] = field(default_factory=list)


def train(
    seed: int,
    seconds: float | None = None,
    steps: int | None = None,
    save: Path | None = None,
    progress: Progress = no_progress,
) -> Training:
    """Train for so many seconds of the process, or so many steps; the latter do not depend on the machine.

    The average of the weights is written to `save` every `EVERY` steps.

    Each step adds `PAIRS` noises to the weights, and takes them away (antithetic sampling); every member builds a
    schedule for each problem. Its advantage is the logarithm of its makespan less the mean of all members'; the sum
    over problems is replaced by its rank, and Adam follows the sum of noises times ranks (Salimans et al., Evolution
    strategies as a scalable alternative to reinforcement learning, 2017).

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
    moments = np.zeros((2, NUM_WEIGHTS), np.float32)
    state = Training(weights, weights, moments[0], moments[1])
    held_out = [_drawn(np.random.default_rng(each)) for each in VALIDATION] if steps is None or steps >= EVERY else []
    start = _logs(held_out, weights[None])
    begun = time.process_time()
    while True:
        done = state.step / steps if steps else state.seconds / (seconds or 1e-9)
        if done >= 1.0:
            return state
        state = _step(state, [_drawn(generator) for _ in range(PROBLEMS)], generator, done)
        curve = state.curve
        if held_out and state.step % EVERY == 0:
            value = float(np.exp(np.mean(_logs(held_out, state.average[None]) - start)))
            curve = [*curve, (state.step, value)]
            if save is not None:
                save_weights(save, state.average)
        state = Training(
            state.weights, state.average, state.first, state.second, state.step, time.process_time() - begun, curve
        )
        shown = f"makespan {curve[-1][1]:.4f} of untrained" if curve else "training"
        progress(shown, int(1000 * min(done, 1.0)), 1000)


def _drawn(generator: np.random.Generator) -> Tables:
    """Tables of a random problem: as many jobs as machines or more, but for one in five."""
    machines = int(generator.integers(MACHINES[0], MACHINES[1] + 1))
    fewest = JOBS[0] if generator.random() < 0.2 else max(machines, JOBS[0])
    jobs = int(generator.integers(fewest, JOBS[1] + 1))
    return tables_of(generated_job_shop(int(generator.integers(10**9)), jobs, machines))


def _step(state: Training, problems: list[Tables], generator: np.random.Generator, done: float) -> Training:
    noise = generator.standard_normal((PAIRS, NUM_WEIGHTS), np.float32)
    noise = np.concatenate([noise, -noise])
    members = len(noise)
    logs = _logs(problems, state.weights + NOISE * noise)
    advantage = (logs - logs.mean(1, keepdims=True)).sum(0)
    ranks = np.argsort(np.argsort(advantage, kind="stable"), kind="stable") / (members - 1) - 0.5
    gradient = (ranks.astype(np.float32) @ noise) / (members * NOISE)
    step = state.step + 1
    first = 0.9 * state.first + 0.1 * gradient
    second = 0.99 * state.second + 0.01 * gradient**2
    rate = RATES[0] * (RATES[1] / RATES[0]) ** done
    scaled = (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
    weights = (state.weights - rate * scaled).astype(np.float32)
    average = (AVERAGED * state.average + (1 - AVERAGED) * weights).astype(np.float32)
    return Training(
        weights, average, first.astype(np.float32), second.astype(np.float32), step, state.seconds, state.curve
    )


def _logs(
    problems: list[Tables], weights: Float32[np.ndarray, "members weights"]
) -> Float64[np.ndarray, "problems members"]:
    """Logarithm of each member's makespan on each problem."""
    rows, state = np.empty((len(problems), len(weights))), np.ones(1, np.uint64)
    for row, tables in zip(rows, problems, strict=True):
        roll_out_many(tables, weights, NETWORK, -1.0, state, row, np.empty(tables.position.shape, np.int64))
    return np.log(rows)
