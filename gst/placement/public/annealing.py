"""Simulated annealing of published problems, compiled: devices of operations, and their order on each device."""

from __future__ import annotations

import time
from typing import no_type_check

import numpy as np

from gst.placement.public.problem import Problem
from gst.placement.public.schedules import Schedule, run_first_come, run_in_order
from gst.placement.published import uniform
from gst.process.progress import Progress, no_progress
from partitioners.compiled import compiled

HOT_MANY, HOT_FEW, COLD = 0.01, 0.001, 0.01
"""First temperature, as a share of the makespan, where steps are many and few; the last, as a share of the first."""
MANY = 2_000  # steps for each operation
BATCH_S = 0.1  # seconds between two looks at the clock


def anneal(
    problem: Problem, start: Schedule, seconds: float = 1.0, steps: int | None = None, seed: int = 0,
    progress: Progress = no_progress,
) -> tuple[Schedule, int]:  # fmt: skip
    """The best plan that annealing (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983) finds from a plan that is
    admitted, and how many it looked at.

    Half of the steps begin at an operation of the chain that the makespan waits for. A step gives a colocation group
    to the device of a neighbour or to any, exchanges two, or moves an operation within the order as far as its
    producers and consumers allow. The temperature falls geometrically with the time.

    Args:
        seconds: to search; the result depends on the machine's speed.
        steps: plans to look at, in place of seconds; the result depends on the seed alone.

    Examples:
        >>> from pathlib import Path
        >>> from gst.data.public_graphs import read_public_graph
        >>> from gst.placement.public.problem import public_problem
        >>> _ = Path("two.txt").write_text("2\\n\\n\\n\\n30000000000,0\\n20000000000,0\\n")
        >>> problem = public_problem(read_public_graph(Path("two.txt")), "gpus:2")
        >>> plan, count = anneal(problem, Schedule(problem, np.zeros(2, np.int64)), steps=100)
        >>> plan.makespan, count
        (3.0, 100)
    """
    home, order = start.home.copy(), start.order.copy()
    scale, nodes = problem.graph.scale, problem.num_nodes
    state = np.array([2 * seed + 1], np.uint64)
    best_home, best_order, best = home.copy(), order.copy(), start.makespan * scale
    now, total, batch, rate = best, 0, 64, 0.0
    begun = time.perf_counter()
    done = 0.0
    while done < 1.0 and len(problem.devices) * nodes > 1:
        if steps is not None:
            batch = min(max(steps // 20, 1), steps - total)
        expected = steps if steps is not None else rate * seconds
        hot = best * (HOT_MANY if expected > MANY * nodes else HOT_FEW) + 1e-300
        if done > 0.9 and now > best:  # the last tenth begins at the best
            home, order, now = best_home.copy(), best_order.copy(), best
        now, best = _anneal(
            home, order, now, batch, hot * COLD**done, problem.graph.first_come, state, problem.arrays, best_home,
            best_order, best,
        )  # fmt: skip
        total += batch
        spent = time.perf_counter() - begun
        done = total / steps if steps is not None else spent / seconds
        rate = total / max(spent, 1e-9)
        batch = int(min(max(rate * BATCH_S, 16), max(rate * (seconds - spent), 1), 4 * batch))
        progress("annealing", min(int(1000 * done), 1000), 1000)
    return Schedule(problem, best_home, best_order), total


@compiled
@no_type_check
def _anneal(home, order, now, steps, temperature, first_come, state, arrays, best_home, best_order, best):
    """Makespan of the plan that it ends with, and the least; `home`, `order` and the best are written.

    Args:
        now: makespan of `home` and `order`.
        state: of the random numbers, one uint64.
    """
    nodes, devices = len(home), arrays.times.shape[0]
    groups, member_indptr, members = arrays.groups, arrays.member_indptr, arrays.members
    begin, end, before = np.zeros(nodes), np.zeros(nodes), np.full(nodes, -1)
    begin_now, end_now, before_now = np.zeros(nodes), np.zeros(nodes), np.full(nodes, -1)
    place, used, position = np.empty(nodes, np.int64), np.zeros(devices), np.empty(nodes, np.int64)
    for node in range(nodes):
        position[order[node]] = node
    for group in range(len(arrays.sizes)):
        used[home[members[member_indptr[group]]]] += arrays.sizes[group]
    if first_come:
        run_first_come(home, arrays, begin_now, end_now, before_now)
    else:
        run_in_order(home, order, arrays, begin_now, end_now, before_now)
    chain, length, stale = place, 0, True
    for _ in range(steps):
        if stale:  # the operations that the makespan waits for, the last first
            node, length = np.int64(0), 0
            for other in range(nodes):
                if end_now[other] > end_now[node]:
                    node = other
            while node >= 0:
                chain[length] = node
                length += 1
                start, cause = begin_now[node], np.int64(-1)
                if before_now[node] >= 0 and end_now[before_now[node]] >= start:
                    cause = before_now[node]
                else:
                    for where in range(arrays.producer_indptr[node], arrays.producer_indptr[node + 1]):
                        producer, edge = arrays.producers[where], arrays.in_edges[where]
                        arrival = end_now[producer]
                        if home[producer] != home[node]:
                            if len(arrays.table):
                                first, second = arrays.kind[home[producer]], arrays.kind[home[node]]
                                arrival += arrays.table[edge, first, second]
                            else:
                                arrival += arrays.fixed[home[producer], home[node]]
                                arrival += arrays.amounts[edge] * arrays.per_amount[home[producer], home[node]]
                        if arrival >= start:
                            cause = producer
                            break
                if start <= 0.0:
                    break
                node = cause
            stale = False
        on_chain = uniform(state) < 0.5
        node = chain[np.int64(uniform(state) * length)] if on_chain else np.int64(uniform(state) * nodes)
        old, other_group, group = home[node], np.int64(-1), np.int64(-1)
        target, origin, to = old, np.int64(-1), np.int64(-1)
        draw = uniform(state)
        if devices > 1 and (first_come or draw < 0.7):
            group = groups[node]
            before_count = arrays.producer_indptr[node + 1] - arrays.producer_indptr[node]
            count = before_count + arrays.indptr[node + 1] - arrays.indptr[node]
            if count and uniform(state) < 0.5:
                pick = np.int64(uniform(state) * count)
                if pick < before_count:
                    target = home[arrays.producers[arrays.producer_indptr[node] + pick]]
                else:
                    target = home[arrays.consumers[arrays.indptr[node] + pick - before_count]]
            if target == old:
                target = np.int64(uniform(state) * (devices - 1))
                target += target >= old
            if uniform(state) < 0.2:  # exchange
                other = np.int64(uniform(state) * nodes)
                if home[other] == target and groups[other] != group:
                    other_group = groups[other]
            able = True
            size = arrays.sizes[group]
            back = arrays.sizes[other_group] if other_group >= 0 else 0.0
            if used[target] + size - back > arrays.limits[target] or used[old] + back - size > arrays.limits[old]:
                able = False
            for where in range(member_indptr[group], member_indptr[group + 1]):
                able = able and arrays.times[target, members[where]] < np.inf
            if other_group >= 0:
                for where in range(member_indptr[other_group], member_indptr[other_group + 1]):
                    able = able and arrays.times[old, members[where]] < np.inf
            if not able:
                continue
            for where in range(member_indptr[group], member_indptr[group + 1]):
                home[members[where]] = target
            if other_group >= 0:
                for where in range(member_indptr[other_group], member_indptr[other_group + 1]):
                    home[members[where]] = old
        if not first_come and (group < 0 or draw < 0.3):
            low, high, origin = np.int64(0), nodes - 1, position[node]
            for where in range(arrays.producer_indptr[node], arrays.producer_indptr[node + 1]):
                low = max(low, position[arrays.producers[where]] + 1)
            for where in range(arrays.indptr[node], arrays.indptr[node + 1]):
                high = min(high, position[arrays.consumers[where]] - 1)
            ahead = before_now[node]
            if group < 0 and ahead >= 0 and position[ahead] >= low and uniform(state) < 0.5:
                to = position[ahead]
            else:
                to = low + np.int64(uniform(state) * (high - low + 1))
            if to == origin and group < 0:
                continue
            _rotate(order, position, origin, to)
        if first_come:
            took = run_first_come(home, arrays, begin, end, before)
        else:
            took = run_in_order(home, order, arrays, begin, end, before)
        if took <= now or uniform(state) < np.exp((now - took) / temperature):
            now, stale = took, True
            begin_now, begin = begin, begin_now
            end_now, end = end, end_now
            before_now, before = before, before_now
            if group >= 0:
                used[target] += arrays.sizes[group]
                used[old] -= arrays.sizes[group]
            if other_group >= 0:
                used[target] -= arrays.sizes[other_group]
                used[old] += arrays.sizes[other_group]
            if took < best:
                best = took
                best_home[:] = home
                best_order[:] = order
            continue
        if group >= 0:
            for where in range(member_indptr[group], member_indptr[group + 1]):
                home[members[where]] = old
        if other_group >= 0:
            for where in range(member_indptr[other_group], member_indptr[other_group + 1]):
                home[members[where]] = target
        if origin >= 0:
            _rotate(order, position, to, origin)
    return now, best


@compiled
@no_type_check
def _rotate(order, position, origin, to):
    """Move the node at place `origin` of the order to place `to`."""
    node = order[origin]
    step = 1 if to > origin else -1
    place = origin
    while place != to:
        order[place] = order[place + step]
        position[order[place]] = place
        place += step
    order[to] = node
    position[node] = to
