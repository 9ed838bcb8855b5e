"""Tabu search on the critical path of a job shop's schedule, compiled.

A move takes an operation of a critical block to the block's end or beginning, or the first or last into the block (the
neighbourhood N6 of Balas and Vazacopoulos, Guided local search with shifting bottleneck, 1998, with the ends moved
inwards as in N7 of Zhang et al., A tabu search algorithm with a new neighborhood structure, 2007). Moves are
estimated from heads and tails of the operations between; the chosen one is evaluated exactly.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from experiments.reproductions.jobshop.graph import heads_and_tails, link
from gst.placement.search.moves import uniform
from partitioners.compiled import compiled


@compiled
@no_type_check
def critical_block_path(times, last, arrays, span, state, path):
    """Write one critical path, drawn at random where ways part; its length."""
    before, head = arrays[0], arrays[2]
    count, current = 0, -1
    for operation in range(len(times)):
        if head[operation] + times[operation] == span:
            count += 1
            if uniform(state) * count < 1.0:
                current = operation
    size = 0
    while current >= 0:
        path[size] = current
        size += 1
        by_job, by_machine = -1, before[current]
        if current % last != 0 and head[current - 1] + times[current - 1] == head[current]:
            by_job = current - 1
        if by_machine >= 0 and head[by_machine] + times[by_machine] != head[current]:
            by_machine = -1
        if by_job >= 0 and by_machine >= 0:
            current = by_job if uniform(state) < 0.5 else by_machine
        else:
            current = max(by_job, by_machine)
    for number in range(size // 2):
        path[number], path[size - 1 - number] = path[size - 1 - number], path[number]
    return size


@compiled
@no_type_check
def estimate(times, last, arrays, row, count, new_head):
    """Estimate the longest path through operations reordered to `row` on one machine. Heads and tails of all others
    stay as they are.

    Args:
        row: operations in their new order; the first entry is what comes before, the last what comes after, or -1.
        count: operations, without these two.
        new_head: room for `count` heads.
    """
    head, tail = arrays[2], arrays[3]
    end = 0
    if row[0] >= 0:
        end = head[row[0]] + times[row[0]]
    for number in range(count):
        operation = row[number + 1]
        begin = end
        if operation % last != 0:
            begin = max(begin, head[operation - 1] + times[operation - 1])
        new_head[number] = begin
        end = begin + times[operation]
    behind, longest = 0, 0
    if row[count + 1] >= 0:
        behind = tail[row[count + 1]]
    for number in range(count - 1, -1, -1):
        operation = row[number + 1]
        if (operation + 1) % last != 0:
            behind = max(behind, tail[operation + 1])
        behind += times[operation]
        longest = max(longest, new_head[number] + behind)
    return longest


@compiled
@no_type_check
def tabu_search(machines, flat_times, order, most, patience, target, state, counters):
    """Improve an order; its makespan.

    Args:
        order: (machines, jobs), the start; the best is written there.
        most, patience: moves in all, and without a new best.
        target: stop at this makespan.
        state: of the random numbers, one uint64.
        counters: int64 of moves done and of moves whose order had a circle (none is expected), added to.
    """
    jobs, last = machines.shape
    operations = jobs * last
    arrays = np.zeros((5, operations), np.int64)
    link(machines, order, arrays)
    span = heads_and_tails(flat_times, last, arrays)
    best, since = span, 0
    best_after = arrays[1].copy()
    tabu = np.zeros((operations, jobs), np.int64)  # until which move an operation may not come before a job again
    path, row, new_head = np.empty(operations, np.int64), np.empty(jobs + 2, np.int64), np.empty(jobs, np.int64)
    chosen, drawn = np.empty(jobs + 2, np.int64), np.empty(jobs + 2, np.int64)
    before, after, head, tail = arrays[0], arrays[1], arrays[2], arrays[3]
    tenure = 10.0 + jobs / last
    spread = 0.4 if jobs <= 2 * last else 0.5
    for move in range(1, most + 1):
        if best <= target or since >= patience:
            break
        size = critical_block_path(flat_times, last, arrays, span, state, path)
        least, chosen_count, chosen_right, ties = np.int64(2**62), 0, False, 0
        drawn_count, drawn_right, seen = 0, False, 0
        begin = 0
        while begin < size:
            end = begin
            machine = machines[path[begin] // last, path[begin] % last]
            while end + 1 < size and machines[path[end + 1] // last, path[end + 1] % last] == machine:
                end += 1
            length = end - begin + 1
            # moves of a block: `low` goes right behind `high`, or `high` right before `low`
            for which in range(4 * length):
                kind, offset = which // length, begin + which % length
                if kind == 0:
                    low, high, right = offset, end, True
                elif kind == 1:
                    low, high, right = begin, offset, False
                elif kind == 2:
                    low, high, right = begin, offset, True
                else:
                    low, high, right = offset, end, False
                if low >= high or (kind >= 2 and offset in (begin, end)):
                    continue
                if high == low + 1 and kind != 0 and not (kind == 1 and length > 2 and low == begin):
                    continue
                if low == begin and begin == 0 and high < end and length > 2 and kind >= 1:
                    continue  # inside the first block only moves to its end pay
                first, second = path[low], path[high]
                # No way leads from the next operation of the job to `second` if the tail of `second` is not shorter, or
                # from `first` to the one before it if that ends no later; where one takes no time, it has to be more.
                if right:
                    if (first + 1) % last != 0 and tail[second] < tail[first + 1] + (flat_times[first + 1] == 0):
                        continue
                elif second % last != 0:
                    end_before = head[second - 1] + flat_times[second - 1]
                    if head[first] + flat_times[first] < end_before + (flat_times[second - 1] == 0):
                        continue
                count = high - low + 1
                row[0], row[count + 1] = before[first], after[second]
                forbidden = False
                for number in range(count - 1):
                    if right:
                        row[number + 1] = path[low + 1 + number]
                        forbidden |= tabu[row[number + 1], first // last] > move
                    else:
                        row[number + 2] = path[low + number]
                        forbidden |= tabu[second, row[number + 2] // last] > move
                row[count if right else 1] = first if right else second
                value = estimate(flat_times, last, arrays, row, count, new_head)
                seen += 1
                if uniform(state) * seen < 1.0:
                    drawn[: count + 2] = row[: count + 2]
                    drawn_count, drawn_right = count, right
                if forbidden and value >= best:
                    continue
                ties = ties + 1 if value == least else 1
                if value < least or (value == least and uniform(state) * ties < 1.0):
                    least = value
                    chosen[: count + 2] = row[: count + 2]
                    chosen_count, chosen_right = count, right
            begin = end + 1
        if seen == 0:
            break  # one block or one job makes the makespan: no order is better
        if chosen_count == 0:
            chosen[: drawn_count + 2] = drawn[: drawn_count + 2]
            chosen_count, chosen_right = drawn_count, drawn_right
        until = move + 1 + np.int64(tenure * (1.0 + spread * uniform(state)))
        moved = chosen[chosen_count] if chosen_right else chosen[1]
        for number in range(1, chosen_count + 1):
            other = chosen[number]
            if other != moved and chosen_right:
                tabu[moved, other // last] = until
            elif other != moved:
                tabu[other, moved // last] = until
        for number in range(chosen_count + 1):
            if chosen[number] >= 0:
                after[chosen[number]] = chosen[number + 1]
            if chosen[number + 1] >= 0:
                before[chosen[number + 1]] = chosen[number]
        span = heads_and_tails(flat_times, last, arrays)
        counters[0] += 1
        since += 1
        if span < 0:
            counters[1] += 1
            break
        if span < best:
            best, since = span, 0
            best_after[:] = after
    _write_order(machines, best_after, order)
    return best


@compiled
@no_type_check
def _write_order(machines, after, order):
    """Orders of the machines from successors."""
    jobs, last = machines.shape
    is_first = np.ones(jobs * last, np.bool_)
    for operation in range(jobs * last):
        if after[operation] >= 0:
            is_first[after[operation]] = False
    for operation in range(jobs * last):
        if is_first[operation]:
            machine, number, current = machines[operation // last, operation % last], 0, operation
            while current >= 0:
                order[machine, number] = current // last
                number += 1
                current = after[current]
