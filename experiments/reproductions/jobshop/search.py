"""A job shop's schedule in so many seconds of the process: samples of the policy are a pool, tabu search improves it.

Once each of the pool is improved, tabu search goes on from mixtures of two of them (path relinking; compare Peng, Lu
and Cheng, A tabu search/path relinking algorithm to solve the job shop scheduling problem, 2015).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from experiments.reproductions.jobshop.bounds import lower_bound
from experiments.reproductions.jobshop.graph import makespan_of, starts_of
from experiments.reproductions.jobshop.local_search import tabu_search
from experiments.reproductions.jobshop.network import Weights
from experiments.reproductions.jobshop.problem import JobShop
from experiments.reproductions.jobshop.rollout import (
    FIRST_COME,
    MOST_WORK,
    NETWORK,
    SHORTEST,
    UNIFORM,
    roll_out,
    tables_of,
)

NOISE = 0.15  # standard deviation on the weights of a sample
POOL = 10  # schedules
SAMPLING = 0.08  # share of the time for samples, if tabu search follows
PATIENCE = 10_000  # moves of tabu search without a new best
Order = Int64[np.ndarray, "machines jobs"]
Clock = Callable[[], float]


@dataclass(frozen=True, eq=False)
class Schedule:
    """A schedule and how it came about.

    Args:
        order: which jobs each machine runs, in order.
        makespan, lower_bound: in units of the problem.
        rollouts, moves: schedules that were built, and moves of tabu search.
        history: (seconds, makespan) of each best schedule, from the one before tabu search on.
    """

    order: Order
    makespan: int
    lower_bound: int
    rollouts: int
    moves: int
    history: tuple[tuple[float, int], ...]


def rule_schedules(shop: JobShop) -> list[tuple[int, Order]]:
    """Schedules of the three dispatching rules, non-delay and active, the best first.

    Examples:
        >>> shop = JobShop(np.array([[0, 1], [1, 0]]), np.array([[3, 2], [2, 4]]))
        >>> [makespan for makespan, _ in rule_schedules(shop)]
        [7, 7, 7, 7, 7, 7]
    """
    tables, weights, state, results = tables_of(shop), np.zeros(1, np.float32), np.ones(1, np.uint64), []
    for rule in (MOST_WORK, SHORTEST, FIRST_COME):
        for window in (0.0, 1.0):
            order = np.empty((shop.num_machines, shop.num_jobs), np.int64)
            results.append((int(roll_out(tables, weights, rule, window, state, order)), order))
    return sorted(results, key=lambda result: result[0])


def samples(
    shop: JobShop,
    weights: Weights | None,
    seed: int,
    most: int | None,
    until: float = np.inf,
    clock: Clock | None = None,
) -> tuple[list[tuple[int, Order]], int]:
    """The best different schedules of a policy, at most `POOL`, the best first, and how many were built.

    Args:
        weights: of the policy, whose first schedule is without noise; choices by chance if None.
        most: schedules that are built, unless `clock` reaches `until` before.

    Examples:
        >>> shop = JobShop(np.array([[0, 1], [1, 0]]), np.array([[3, 2], [2, 4]]))
        >>> results, count = samples(shop, None, 0, 5)
        >>> results[0][0], count
        (7, 5)
    """
    generator, tables = np.random.default_rng(seed), tables_of(shop)
    state = generator.integers(1, 2**63, 1).astype(np.uint64)
    chooser = UNIFORM if weights is None else NETWORK
    plain = np.zeros(1, np.float32) if weights is None else weights
    order, count = np.empty((shop.num_machines, shop.num_jobs), np.int64), 0
    best: dict[int, Order] = {}
    worst = np.inf
    while (most is None or count < most) and (count == 0 or clock is None or clock() < until):
        noisy = plain + NOISE * generator.standard_normal(len(plain), np.float32) if count else plain
        makespan = int(roll_out(tables, noisy, chooser, 1.0 if weights is None else -1.0, state, order))
        count += 1
        if makespan < worst:
            best.setdefault(makespan, order.copy())  # one of each makespan, so that the pool differs
            if len(best) > POOL:
                del best[max(best)]
                worst = max(best)
    return sorted(best.items()), count


def search(
    shop: JobShop,
    seeds: list[tuple[int, Order]] | None,
    seconds: float,
    seed: int,
    weights: Weights | None = None,
    clock: Clock = time.process_time,
) -> Schedule:
    """The best schedule of tabu search within `seconds` of `clock`, compilation not included.

    Args:
        seeds: schedules to begin with; samples of the policy if None.
        weights: of that policy; choices by chance if None.

    Examples:
        >>> shop = JobShop(np.array([[0, 1], [1, 0]]), np.array([[3, 2], [2, 4]]))
        >>> search(shop, None, 0.01, 0).makespan
        7
    """
    generator, flat, bound = np.random.default_rng(seed), shop.times.reshape(-1), lower_bound(shop)
    state, counters = generator.integers(1, 2**63, 1).astype(np.uint64), np.zeros(2, np.int64)
    tabu_search(shop.machines, flat, rule_schedules(shop)[0][1], 1, 1, bound, state.copy(), counters.copy())
    samples(shop, weights, 0, 1)  # both are compiled now
    begun = clock()
    rollouts = 0
    if seeds is None:
        seeds, rollouts = samples(shop, weights, seed, None, begun + SAMPLING * seconds, clock)
    pool: list[tuple[int, Order]] = []
    waiting = [order.copy() for _, order in seeds[:POOL]]
    best, best_order = seeds[0][0], seeds[0][1]
    history = [(clock() - begun, best)]
    rate = 20_000.0  # moves a second, measured as soon as some are done
    while best > bound and (left := seconds - (clock() - begun)) > 0.002:
        order = waiting.pop(0) if waiting else _mixture(shop, pool, generator)
        before, moved = clock(), int(counters[0])
        most = max(int(rate * left), 1)
        makespan = int(tabu_search(shop.machines, flat, order, most, PATIENCE, bound, state, counters))
        rate = max((counters[0] - moved) / max(clock() - before, 1e-6), 1000.0)
        if makespan < best:
            best, best_order = makespan, order.copy()
            history.append((clock() - begun, best))
        _keep(pool, makespan, order)
    assert counters[1] == 0, "a move made a circle"
    assert makespan_of(shop, best_order) == best
    return Schedule(best_order, best, bound, rollouts, int(counters[0]), tuple(history))


def _keep(pool: list[tuple[int, Order]], makespan: int, order: Order) -> None:
    """Put a schedule into the pool unless it is there; the worst one leaves a full pool."""
    if any(makespan == other and (order == there).all() for other, there in pool):
        return
    pool.append((makespan, order))
    pool.sort(key=lambda result: result[0])
    del pool[POOL:]


def _mixture(shop: JobShop, pool: list[tuple[int, Order]], generator: np.random.Generator) -> Order:
    """An order between two of the pool: operations sorted by a weighted mean of their ranks by start in both; both
    rankings respect the jobs, hence so does the mean. Of a pool of one, the same with noise of half its length."""
    first = _ranks(shop, pool[int(generator.integers(len(pool)))][1])
    if len(pool) > 1:
        second = _ranks(shop, pool[int(generator.integers(len(pool)))][1])
    else:
        second = np.sort(generator.random(first.shape), axis=1) * shop.num_operations
    share = generator.uniform(0.25, 0.75)
    mean = share * first + (1 - share) * second + 1e-6 * np.arange(shop.num_machines)
    keys = np.empty((shop.num_machines, shop.num_jobs))
    keys[shop.machines, np.arange(shop.num_jobs)[:, None]] = mean
    return np.argsort(keys, axis=1, kind="stable")


def _ranks(shop: JobShop, order: Order) -> np.ndarray:
    """(jobs, steps) float64: ranks of operations by start, a linear extension of the jobs' and the machines' orders."""
    starts = starts_of(shop, order)
    ends = starts + shop.times
    steps = np.broadcast_to(np.arange(shop.num_machines), starts.shape)
    sequence = np.lexsort((steps.reshape(-1), ends.reshape(-1), starts.reshape(-1)))
    ranks = np.empty(starts.size)
    ranks[sequence] = np.arange(starts.size)
    return ranks.reshape(starts.shape)
