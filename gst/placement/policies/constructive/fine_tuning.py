"""Fine-tuning of the constructive policy on one task by evolution strategies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
from jaxtyping import Float32, Float64

from gst.lowering.plan import Plan
from gst.placement.baselines.computed import ComputedOperations
from gst.placement.objectives import Budgeted
from gst.placement.policies.constructive.network import Weights, shipped_weights, tables_of
from gst.placement.policies.constructive.rollout import roll_out, window_of
from gst.placement.task import Task
from gst.util.progress import Progress, no_progress

NOISE = 0.1  # standard deviation on each weight
RATES = (0.03, 0.003)  # of Adam, from the first step to the last
AVERAGED = 0.98  # share that the average of the weights keeps at a step

LogMakespans = Callable[[Float32[np.ndarray, "members weights"]], Float64[np.ndarray, "problems members"]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Evolving:
    """The state of training: weights, their average over late steps (the result), moments of Adam, steps done."""

    weights: Weights
    average: Weights
    first: Weights
    second: Weights
    step: int = 0


State = TypeVar("State", bound=Evolving)


def evolved(
    state: State, log_makespans: LogMakespans, pairs: int, generator: np.random.Generator, done: float
) -> State:
    """Return the state after one step of evolution strategies (Salimans et al., Evolution strategies as a scalable
    alternative to reinforcement learning, 2017).

    Noises are added to the weights and subtracted. The advantage of a member on a problem is the logarithm of its
    makespan less the mean of all; the sum over problems is replaced by its rank, and Adam follows the sum of noises
    times ranks.

    Args:
        log_makespans: logarithm of the makespan of each member, a row of weights, on each problem.
        pairs: of opposite noises.
        done: share of the training that is done, 0 .. 1; the step size falls with it.
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


PAIRS = 8  # of opposite noises at a step
MOST_STEPS = 50  # of fine-tuning, as GO's


class TaskRollouts:
    """Plans that the policy builds for a task, one for each vector of weights. Links never queue, and streams of one
    accelerator do not slow each other down while a plan is built."""

    def __init__(self, task: Task) -> None:
        self._operations = ComputedOperations(task)
        what = self._operations.what
        self._arrays, self._window = what.arrays, window_of(len(what.use))
        self._tables = tables_of(what, self._operations.transfers, is_view_free=True)

    def __call__(self, weights: Weights) -> Plan | None:
        """Build the plan of some weights; None if it exceeds the memories."""
        count = len(self._operations.nodes)
        home, order, state = np.empty(count, np.int64), np.empty(count, np.int64), np.ones(1, np.uint64)
        span = roll_out(self._arrays, self._tables, weights, self._window, False, False, state, home, order)
        return self._operations.plan(home, order) if np.isfinite(span) else None


class FineTuning:
    """Weights of the policy that follow one task: evolution strategies whose members are judged by an objective, as GO
    is fine-tuned on a graph by policy gradient (Zhou et al., Transferable Graph Optimizers, 2020, section 4.3).

    `run` may be called again, as the simulator is corrected by measurements.

    Args:
        weights: to begin with; those of the package if None.

    Examples:
        >>> from gst.placement.objectives import SimulatedObjective
        >>> from gst.placement.policies.generated_tasks import generated_task
        >>> task = generated_task(0, num_nodes=60, num_devices=2)
        >>> objective = Budgeted(SimulatedObjective(task), budget=100)
        >>> FineTuning(task).run(objective)
        >>> objective.num_asked
        98
    """

    def __init__(self, task: Task, seed: int = 0, weights: Weights | None = None) -> None:
        begin = shipped_weights() if weights is None else weights
        nothing = np.zeros_like(begin)
        self.build_by(task)
        self._state = Evolving(weights=begin, average=begin, first=nothing, second=nothing)
        self._generator = np.random.default_rng([seed, 31])

    def build_by(self, task: Task) -> None:
        """Build plans by other costs of the same program from now on."""
        self._rollouts = TaskRollouts(task)

    def run(self, objective: Budgeted, progress: Progress = no_progress) -> None:
        """Ask about the plan of the weights, then about those of each step's members, `MOST_STEPS` steps at most."""
        self._ask(objective, self._state.average[None])
        steps = min(MOST_STEPS, objective.left // (2 * PAIRS))
        for step in range(steps):
            progress("fine-tuning the policy", step, steps)
            logs = partial(self._logs, objective)
            self._state = evolved(self._state, logs, PAIRS, self._generator, step / steps)
        if steps and objective.left > 0:
            self._ask(objective, self._state.average[None])

    def _logs(
        self, objective: Budgeted, weights: Float32[np.ndarray, "members weights"]
    ) -> Float64[np.ndarray, "one members"]:
        """Return logarithms of runtimes; a plan that fails comes last."""
        took = self._ask(objective, weights)
        return np.log(np.where(np.isfinite(took), took, 2 * np.nanmax(took, initial=1e-9)))[None]

    def _ask(
        self, objective: Budgeted, weights: Float32[np.ndarray, "members weights"]
    ) -> Float64[np.ndarray, " members"]:
        """Return the runtime of the plan of each row by the objective; NaN where there is no plan."""
        plans = [self._rollouts(row) for row in weights]
        took = np.full(len(plans), np.nan)
        built = [number for number, plan in enumerate(plans) if plan is not None]
        took[built] = objective([plan for plan in plans if plan is not None])
        return took
