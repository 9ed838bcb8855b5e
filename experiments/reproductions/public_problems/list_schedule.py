"""List schedule with insertion (HEFT on public problems), compiled: each operation goes to its best device."""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np

from gst.placement.baselines.arrays import arrives, free_at, may_take, take
from partitioners.compiled import compiled


class Rule(NamedTuple):
    """Choices of a list schedule.

    Args:
        fill: fill gaps between operations placed before (insertion); only if no device shares a core.
        by_start: take the least start, instead of the least finish.
        by_group: count the whole group in the finish of its first operation.
        is_view_free: operations that take no time need no core.
    """

    fill: bool = True
    by_start: bool = False
    by_group: bool = False
    is_view_free: bool = False


@compiled
@no_type_check
def place_in_order(order, what, places, rule, bias, home, begin):
    """Place nodes in the order given, each on the device where it would finish first: HEFT, if the order is that of
    upward ranks (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002).

    Args:
        order: all nodes, producers before consumers.
        what: `Scheduled`.
        places: `Places`, written.
        rule: `Rule`.
        bias: (devices, nodes), added to the finish of each node on each device; may have no entries.
        home, begin: device and start of each computed node, written.

    Returns:
        True if every node has a device that can run it, within the limits of the memories.
    """
    arrays, computed, core_indptr, cores = what.arrays, what.computed, what.core_indptr, what.cores
    times, groups, nodes = arrays.times, arrays.groups, len(order)
    devices = times.shape[0]
    end, free = np.zeros(nodes), np.zeros(what.use.shape[1])
    slots = nodes if rule.fill else 0
    starts, ends, count = np.empty((devices, slots)), np.empty((devices, slots)), np.zeros(devices, np.int64)
    for node in order:
        if not computed[node]:
            continue
        group = groups[node]
        best, least, best_start = -1, np.inf, 0.0
        for device in range(devices):
            if not may_take(device, group, arrays, places):
                continue
            took = times[device, node]
            start = arrives(node, device, arrays, places, home, end, False)
            if rule.fill:
                start = _gap(starts[device], ends[device], count[device], start, took)
            elif took > 0 or not rule.is_view_free:
                start = max(start, free_at(device, what, free))
            if rule.by_group and places.device[group] < 0:
                took = places.times[device, group]
            score = start if rule.by_start else start + took
            if len(bias):
                score += bias[device, node]
            if score < least:
                best, least, best_start = device, score, start
        if best < 0:
            return False
        take(best, group, arrays, places)
        arrives(node, best, arrays, places, home, end, True)
        took = times[best, node]
        home[node], begin[node], end[node] = best, best_start, best_start + took
        if rule.fill:
            _insert(starts[best], ends[best], count[best], best_start, end[node])
            count[best] += 1
        elif took > 0 or not rule.is_view_free:
            for position in range(core_indptr[best], core_indptr[best + 1]):
                free[cores[position]] = end[node]
    return True


@compiled
@no_type_check
def _gap(starts, ends, count, ready, took):
    """Return the first time from `ready` on at which a device is free for `took`, given the sorted starts and ends of
    its `count` operations."""
    gap = ready
    for slot in range(np.searchsorted(ends[:count], ready, side="right"), count):
        if gap + took <= starts[slot]:
            return gap
        gap = ends[slot]
    return max(ready, ends[count - 1] if count else 0.0)


@compiled
@no_type_check
def _insert(starts, ends, count, start, end):
    """Insert an operation into those of a device."""
    slot = count
    while slot > 0 and starts[slot - 1] >= start:
        if starts[slot - 1] == start and ends[slot - 1] <= end:
            break
        starts[slot], ends[slot] = starts[slot - 1], ends[slot - 1]
        slot -= 1
    starts[slot], ends[slot] = start, end
