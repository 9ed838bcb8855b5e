"""Simulated annealing of published problems, compiled: devices of operations, and their order on each device."""

from __future__ import annotations

import time
from typing import no_type_check

import numpy as np

from experiments.reproductions.public_problems.problem import Problem
from experiments.reproductions.public_problems.schedules import Schedule, run_by_ready, run_first_come, run_in_order
from gst.placement.baselines.arrays import moved, upward_rank
from gst.placement.search import windows
from gst.placement.search.moves import MOST_MOVED, rotate, step_from, take_back, uniform
from gst.util.progress import Progress, no_progress
from partitioners.compiled import compiled

HOT, COLD = ((50_000, 0.1), (2_000, 0.01), (0, 0.001)), 0.01
"""First temperature, as a share of the makespan, by the least number of steps for each operation; the last temperature,
as a share of the first."""
SCREENED = 0.8  # share of steps that `run_by_ready` may refuse where devices serve first come first served
BATCH_S = 0.1  # seconds between two looks at the clock


def anneal(
    problem: Problem, start: Schedule, seconds: float = 1.0, steps: int | None = None, seed: int = 0,
    progress: Progress = no_progress,
) -> tuple[Schedule, int]:  # fmt: skip
    """The best plan that annealing (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983) finds from a plan that is
    admitted, and how many it looked at.

    Half of the steps begin at an operation of the chain that the makespan waits for. A step gives a colocation group,
    alone or with others on a random walk from it, to the device of a neighbour or to any, exchanges two, or moves an
    operation within the order as far as its producers and consumers allow. The temperature falls geometrically with
    the time.

    Args:
        seconds: to search; the result depends on the machine's speed.
        steps: plans to look at, in place of seconds; the result depends on the seed alone.

    Examples:
        >>> from pathlib import Path
        >>> from experiments.reproductions.public_problems.formats import read_public_graph
        >>> from experiments.reproductions.public_problems.problem import public_problem
        >>> _ = Path("two.txt").write_text("2\\n\\n\\n\\n30000000000,0\\n20000000000,0\\n")
        >>> problem = public_problem(read_public_graph(Path("two.txt")), "gpus:2")
        >>> plan, count = anneal(problem, Schedule(problem, np.zeros(2, np.int64)), steps=100)
        >>> plan.makespan, count
        (3.0, 100)
    """
    home, order = start.home.copy(), start.order.copy()
    scale, nodes = problem.graph.scale, problem.num_nodes
    quickest = problem.arrays.times.min(0)
    ahead = upward_rank(quickest, np.zeros(len(problem.arrays.amounts)), problem.arrays) - quickest
    ahead *= 1 - 1e-9  # of rounding
    state = np.array([2 * seed + 1], np.uint64)
    best_home, best_order, best = home.copy(), order.copy(), start.makespan * scale
    now, total, batch, rate = best, 0, 64, 0.0
    begun = time.perf_counter()
    done = 0.0
    while done < 1.0 and len(problem.devices) * nodes > 1:
        if steps is not None:
            batch = min(max(steps // 20, 1), steps - total)
        expected = steps if steps is not None else rate * seconds
        hot = best * next(share for least, share in HOT if expected >= least * nodes) + 1e-300
        if done > 0.9 and now > best:  # the last tenth begins at the best
            home, order, now = best_home.copy(), best_order.copy(), best
        now, best = _anneal(
            home, order, now, batch, hot * COLD**done, problem.graph.first_come, ahead, state, problem.arrays,
            best_home, best_order, best,
        )  # fmt: skip
        total += batch
        spent = time.perf_counter() - begun
        done = total / steps if steps is not None else spent / seconds
        rate = total / max(spent, 1e-9)
        batch = int(min(max(rate * BATCH_S, 16), max(rate * (seconds - spent), 1), 4 * batch))
        progress("annealing", min(int(1000 * done), 1000), 1000)
    return Schedule(problem, best_home, best_order), total


def refine(
    problem: Problem, start: Schedule, seconds: float = 1.0, steps: int | None = None, seed: int = 0,
    progress: Progress = no_progress,
) -> tuple[Schedule, int]:  # fmt: skip
    """Anneal windows of a plan that is admitted (`gst.placement.search.windows.refine`); return the shortest plan and
    the number of steps.

    Args:
        seconds: about so long to search, none if 0 or less; the result depends on the machine's speed.
        steps: at most, in place of seconds; the result depends on the seed alone.

    Raises:
        ValueError: devices serve first come first served, so that a plan has no order.

    Examples:
        >>> from experiments.reproductions.public_problems.generated import generated_problem
        >>> from experiments.reproductions.public_problems.baselines import baselines
        >>> problem = generated_problem(1, nodes=2_000, devices=4, shape="layers")
        >>> start = baselines(problem)["heft"]
        >>> plan, count = refine(problem, start, steps=200_000)
        >>> plan.makespan < start.makespan, count <= 200_000
        (True, True)
    """
    if problem.graph.first_come:
        raise ValueError(f"devices of {problem.graph.name} serve first come first served, want an order; use anneal")
    if steps is None and seconds <= 0:
        return start, 0
    what = problem.scheduled
    begin, counted = windows.schedule(what, start.home, start.order), 0
    if steps is None:  # one sweep tells how many steps a second has
        begun, first = time.perf_counter(), begin
        first, counted = windows.refine(what, begin, problem.num_nodes, seed)
        begin = min(begin, first, key=lambda each: each.makespan)
        steps = int(counted * (seconds / (time.perf_counter() - begun) - 1))
    best, count = windows.refine(what, begin, max(steps, 0), seed, progress)
    return Schedule(problem, best.home, best.order), counted + count


@compiled
@no_type_check
def _anneal(home, order, now, steps, temperature, first_come, ahead, state, arrays, best_home, best_order, best):
    """Makespan of the plan that it ends with, and the least; `home`, `order` and the best are written.

    Args:
        now: makespan of `home` and `order`.
        ahead: time that is to come at least after each node: a plan that must be refused is not computed to its end.
        state: of the random numbers, one uint64.
    """
    nodes, devices = len(home), arrays.times.shape[0]
    begin, end, before = np.zeros(nodes), np.zeros(nodes), np.full(nodes, -1)
    begin_now, end_now, before_now = np.zeros(nodes), np.zeros(nodes), np.full(nodes, -1)
    used, position = np.zeros(devices), np.empty(nodes, np.int64)
    position[order] = np.arange(nodes)
    for group in range(len(arrays.sizes)):
        used[home[arrays.members[arrays.member_indptr[group]]]] += arrays.sizes[group]
    if first_come:
        run_first_come(home, arrays, begin_now, end_now, before_now, ahead, np.inf)
    else:
        run_in_order(home, order, arrays, begin_now, end_now, before_now, 0, ahead, np.inf)
        begin[:], end[:], before[:] = begin_now, end_now, before_now
    chain, length, stale, is_tight = np.empty(nodes, np.int64), 0, True, arrays.limits.min() < np.inf
    moved_groups, sources, every = np.empty(MOST_MOVED, np.int64), np.empty(MOST_MOVED, np.int64), np.arange(nodes)
    for _ in range(steps):
        if stale:
            length, stale = _chain(home, begin_now, end_now, before_now, arrays, chain), False
        on_chain = uniform(state) < 0.5
        node = chain[np.int64(uniform(state) * length)] if on_chain else np.int64(uniform(state) * nodes)
        count, origin, to, first = step_from(
            node, every, 0, home, order, position, before_now, used, is_tight, first_come, state, arrays, moved_groups,
            sources,
        )  # fmt: skip
        if count < 0:
            continue
        limit = now - temperature * np.log(uniform(state) + 1e-300)
        if first_come:
            took = run_by_ready(home, arrays, ahead, limit) if uniform(state) < SCREENED else 0.0
            if took <= limit:
                took = run_first_come(home, arrays, begin, end, before, ahead, limit)
        else:
            took = run_in_order(home, order, arrays, begin, end, before, first, ahead, limit)
        if took <= limit:
            now, stale = took, True
            if first_come:
                begin_now[:], end_now[:], before_now[:] = begin, end, before
            else:
                for node in order[first:]:
                    begin_now[node], end_now[node], before_now[node] = begin[node], end[node], before[node]
            if took < best:
                best = took
                best_home[:] = home
                best_order[:] = order
            continue
        if not first_come:
            for node in order[first:]:
                begin[node], end[node], before[node] = begin_now[node], end_now[node], before_now[node]
        take_back(home, used, arrays, moved_groups, sources, count)
        if origin >= 0:
            rotate(order, position, to, origin)
    return now, best


@compiled
@no_type_check
def _chain(home, begin, end, before, arrays, chain):
    """Write the operations that the makespan waits for, the last first; how many they are."""
    node, length = np.argmax(end), 0
    while node >= 0:
        chain[length] = node
        length += 1
        start, cause = begin[node], -1
        if start <= 0.0:
            break
        if before[node] >= 0 and end[before[node]] >= start:
            cause = before[node]
        else:
            for where in range(arrays.producer_indptr[node], arrays.producer_indptr[node + 1]):
                producer = arrays.producers[where]
                transfer = moved(arrays.in_edges[where], home[producer], home[node], arrays)
                if end[producer] + transfer >= start:
                    cause = producer
                    break
        node = cause
    return length
