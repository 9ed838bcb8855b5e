"""Schedules that the constructive policy proposes: the one of its weights, and the best with noise on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import no_type_check

import numpy as np
from jaxtyping import Float32

from experiments.reproductions.public_problems.problem import Problem
from experiments.reproductions.public_problems.schedules import Schedule, run_first_come
from gst.placement.policies.constructive.network import NUM_WEIGHTS, Tables, Weights, tables_of
from gst.placement.policies.constructive.rollout import roll_out, window_of
from partitioners.compiled import compiled

NOISE = 0.3  # standard deviation of what is added to each weight of a sample
BATCH_S = 0.05  # seconds between two looks at the clock


@dataclass(frozen=True, eq=False)
class Proposal:
    """The schedules that a policy proposes for a problem.

    Args:
        greedy: the schedule of the weights as they are; None if the memories do not hold it.
        best: the best schedule of all; None if none fits.
        samples: schedules that were built, the greedy one included.
    """

    greedy: Schedule | None
    best: Schedule | None
    samples: int


def tables_of_problem(problem: Problem) -> Tables:
    """Return the tables of a problem.

    Examples:
        >>> from experiments.reproductions.public_problems.generated import generated_problem
        >>> tables = tables_of_problem(generated_problem(0, nodes=30, devices=2))
        >>> tables.optimistic.shape, bool((tables.rank >= tables.mean_times).all())
        ((2, 30), True)
    """
    return tables_of(problem.scheduled, problem.mean_transfers)


@compiled
@no_type_check
def roll_out_many(arrays, tables, weights, window, is_uniform, first_come, state, spans, best_home, best_order):
    """Build a schedule with each row of weights and write its makespan; the number of the best, and of it the devices
    and the order.

    Args:
        weights: (rollouts, weights) float32.
        spans: (rollouts), written; infinite where the memories do not hold a schedule.
        best_home, best_order: of all nodes, written unless all makespans are infinite.
        window, is_uniform, first_come, state: see `roll_out`.
    """
    nodes, best = len(best_home), -1
    home, order = np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    begin, end, before, ahead = np.empty(nodes), np.empty(nodes), np.empty(nodes, np.int64), np.zeros(nodes)
    for number in range(len(weights)):
        span = roll_out(arrays, tables, weights[number], window, is_uniform, first_come, state, home, order)
        if first_come and span < np.inf:
            span = run_first_come(home, arrays, begin, end, before, ahead, np.inf)
        spans[number] = span
        if span < np.inf and (best < 0 or span < spans[best]):
            best = number
            best_home[:] = home
            best_order[:] = order
    return best


def propose(
    problem: Problem,
    weights: Weights,
    seconds: float = 0.0,
    samples: int | None = None,
    noise: float = NOISE,
    seed: int = 0,
    window: int | None = None,
    is_uniform: bool = False,
) -> Proposal:
    """Build the policy's schedule, and others with noise on the weights for so long.

    Args:
        seconds: to build further schedules, time for tables and the first one included; the result depends on the
            machine's speed.
        samples: schedules to build, in place of seconds; the result depends on the seed alone.
        noise: standard deviation of what is added to each weight.
        window: ready operations that are looked at, see `window_of`, if None.
        is_uniform: whether operations and devices are drawn at random in place of the policy.

    Examples:
        >>> from experiments.reproductions.public_problems.generated import generated_problem
        >>> from experiments.reproductions.public_problems.weights import initial_weights
        >>> problem = generated_problem(1, nodes=40, devices=3, shape="chains")
        >>> proposal = propose(problem, initial_weights(0), samples=20)
        >>> proposal.samples, proposal.best.makespan <= proposal.greedy.makespan
        (20, True)
    """
    begun = time.perf_counter()
    generator, tables, nodes = np.random.default_rng([seed, 29]), tables_of_problem(problem), problem.num_nodes
    state = np.array([2 * seed + 1], np.uint64)
    width = window_of(len(problem.devices)) if window is None else window
    greedy: Schedule | None = None
    plan: tuple[np.ndarray, np.ndarray] | None = None
    least, total, rate, batch = np.inf, 0, 0.0, 1
    rows: Float32[np.ndarray, "rollouts weights"] = weights[None]
    while True:
        spans, home, order = np.empty(len(rows)), np.empty(nodes, np.int64), np.empty(nodes, np.int64)
        best = int(
            roll_out_many(
                problem.arrays, tables, rows, width, is_uniform, problem.graph.first_come, state, spans, home, order
            )
        )
        if best >= 0 and spans[best] < least:
            least, plan = spans[best], (home, order)
        if total == 0 and plan is not None:
            greedy = Schedule(problem, *plan)
        total += len(rows)
        spent = time.perf_counter() - begun
        rate = total / max(spent, 1e-9)
        left = samples - total if samples is not None else int(rate * (seconds - spent))
        if left < 1:
            break
        batch = max(1, min(int(rate * BATCH_S), 4 * batch, left))
        rows = weights + noise * generator.standard_normal((batch, NUM_WEIGHTS), np.float32)
    return Proposal(greedy, greedy if plan is None or total == 1 else Schedule(problem, *plan), total)


def proposer_of(weights: Weights) -> Callable[[Problem, float, int], dict[str, Schedule]]:
    """A function of a problem, seconds and a seed, which gives the plans that `gst place` begins annealing with:
    `policy` and `policy:best`, as far as the memories hold them.

    Examples:
        >>> from experiments.reproductions.public_problems.generated import generated_problem
        >>> from experiments.reproductions.public_problems.weights import initial_weights
        >>> list(proposer_of(initial_weights(0))(generated_problem(1, nodes=30, devices=2), 0.01, 0))
        ['policy', 'policy:best']
    """

    def proposals(problem: Problem, seconds: float, seed: int) -> dict[str, Schedule]:
        proposal = propose(problem, weights, seconds, seed=seed)
        plans = {"policy": proposal.greedy, "policy:best": proposal.best}
        return {name: plan for name, plan in plans.items() if plan is not None}

    return proposals
