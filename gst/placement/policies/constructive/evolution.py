"""Evolution strategies for policies of few weights: a step from makespans under antithetic noise, by ranks and Adam."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from jaxtyping import Float32, Float64

NOISE = 0.1  # standard deviation on each weight
RATES = (0.03, 0.003)  # of Adam, from the first step to the last
AVERAGED = 0.98  # share that the average of the weights keeps at a step

Weights = Float32[np.ndarray, " weights"]
LogMakespans = Callable[[Float32[np.ndarray, "members weights"]], Float64[np.ndarray, "problems members"]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Evolving:
    """Where training stands.

    Args:
        weights: of the policy at this step.
        average: of the weights of late steps: the result.
        first, second: moments of Adam.
        step: steps done.
    """

    weights: Weights
    average: Weights
    first: Weights
    second: Weights
    step: int = 0


State = TypeVar("State", bound=Evolving)


def evolved(
    state: State, log_makespans: LogMakespans, pairs: int, generator: np.random.Generator, done: float
) -> State:
    """One step of training.

    Noises are added to the weights, and taken away (antithetic sampling). The advantage of a member on a problem is the
    logarithm of its makespan less the mean of all; the sum over problems is replaced by its rank, and Adam follows the
    sum of noises times ranks (Salimans et al., Evolution strategies as a scalable alternative to reinforcement
    learning, 2017).

    Args:
        state: before it.
        log_makespans: logarithm of the makespan of each member, a row of weights, on each problem.
        pairs: of opposite noises.
        generator: of the noise.
        done: share of the training that is done, 0 .. 1, which the step size falls with.
    """
    noise = generator.standard_normal((pairs, len(state.weights)), np.float32)
    noise = np.concatenate([noise, -noise])
    members = len(noise)
    logs = log_makespans(state.weights + NOISE * noise)
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
    return replace(
        state, weights=weights, average=average, first=first.astype(np.float32), second=second.astype(np.float32),
        step=step,
    )  # fmt: skip
