"""Lower bound of the makespan by branch and bound over placements: groups are placed one after the other, the most
promising part of a plan first, and the least bound of what is still open holds for every plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from experiments.reproductions.public_problems.branching_kernels import Placing, partial_bound

PRICING, THIRDS = 0.2, 12  # share of the seconds for prices of bytes, and steps of the search for one
MOST_OPEN, MOST_BYTES = 200_000, 1 << 30  # parts of plans that are kept, and what they may take
NEAR = 1e-9  # share by which sums of times may differ


class Branched(NamedTuple):
    """Result of branch and bound over placements.

    Args:
        bound: what no plan takes less than; infinite if none fits the memories.
        num_parts: parts of plans that were looked at.
        complete: whether nothing is open any more, so that more time would not raise the bound.
    """

    bound: float
    num_parts: int
    complete: bool


def branched_bound(
    placing: Placing, least: float, most: float, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> Branched:
    """Lower bound of the makespan, in the unit of the times.

    A part of a plan says where some groups are. Its bound is the greatest of those of chains with transfers and of the
    work of cores (`partial_bound`). The part of least bound is extended by its most urgent group on each device, as in
    Land and Doig (Econometrica 28(3), 1960). When all groups are placed the order is left: the bound of such a plan is
    not always what it takes.

    Args:
        placing: the problem.
        least: what is known that no plan takes less than.
        most: what a plan takes; parts that take as long are not followed.
        seconds: of search; 0 = the bound of nothing placed.
        clock: that counts them.

    Examples:
        >>> from experiments.reproductions.public_problems.placing import placing_of
        >>> from experiments.random_tasks import generated_task
        >>> task = generated_task(0, num_nodes=30, num_devices=2)
        >>> branched_bound(placing_of(task), 0.0, np.inf, 0.1).bound > 0
        True
    """
    started = clock()
    placing = _with_chain_prices(placing, lambda: clock() - started < PRICING * seconds)
    computing = np.unique(placing.arrays.groups[(placing.arrays.times != 0).any(0)])
    nothing = np.full(len(placing.arrays.sizes), -1, np.int64)
    root, urgent = partial_bound(nothing, placing, most)
    heap: list[tuple[float, int, int, bytes]] = []  # bound, minus the number of groups placed, serial number, placement
    serial, bound = 1, max(least, root)
    open_parts: dict[int, Int64[np.ndarray, " groups"]] = {}
    if bound < most:
        heappush(heap, (bound, 0, 0, b""))
        open_parts[0] = urgent
    most_open = min(MOST_OPEN, MOST_BYTES // (16 * max(len(nothing), 1)))
    while heap and len(heap) < most_open:
        bound, placed, number, packed = heap[0]
        part = np.frombuffer(packed, np.int64) if packed else nothing
        undecided = computing[part[computing] < 0]
        if not undecided.size:
            return Branched(min(bound, most), serial, True)
        if clock() - started > seconds:
            return Branched(bound, serial, False)
        heappop(heap)
        group = int(undecided[open_parts.pop(number)[undecided].argmax()])
        for value, child, next_urgent in _children(part, group, placing, most):
            if (raised := max(bound, value)) < most * (1 - NEAR):
                heappush(heap, (raised, placed - 1, serial, child.tobytes()))
                open_parts[serial] = next_urgent
                serial += 1
    if heap:
        return Branched(heap[0][0], serial, False)
    return Branched(most, serial, True)


def _children(
    part: Int64[np.ndarray, " groups"], group: int, placing: Placing, most: float
) -> list[tuple[float, Int64[np.ndarray, " groups"], Float64[np.ndarray, " groups"]]]:
    """The part with the group on each device; of devices alike that are empty the first stands for all."""
    used, alike = set(part[part >= 0].tolist()), placing.alike
    seen: set[int] = set()
    children = []
    for device in range(len(alike)):
        if device not in used:
            if int(alike[device]) in seen:
                continue
            seen.add(int(alike[device]))
        child = part.copy()
        child[group] = device
        value, urgent = partial_bound(child, placing, most)
        if value < most:
            children.append((value, child, urgent))
    return children


def _with_chain_prices(placing: Placing, has_time: Callable[[], bool]) -> Placing:
    """The prices of bytes at which the bound of chains is greatest: one price for the memories of each limit, searched
    by thirds, as the bound is concave in it, while there is time."""
    arrays = placing.arrays
    limited = np.unique(placing.limits[np.isfinite(placing.limits) & (placing.limits > 0)])
    nothing = np.full(len(arrays.sizes), -1, np.int64)
    longest = float(np.where(np.isfinite(arrays.times), arrays.times, 0.0).max(0).sum())
    for limit in limited.tolist() if arrays.sizes.any() and has_time() else ():
        low, high = 0.0, longest / limit
        for _ in range(THIRDS):
            if not has_time():
                return placing
            one, other = low + (high - low) / 3, high - (high - low) / 3
            bounds = [partial_bound(nothing, _priced(placing, limit, price), np.inf)[0] for price in (one, other)]
            low, high = (low, other) if bounds[0] >= bounds[1] else (one, high)
        priced = _priced(placing, limit, (low + high) / 2)
        if partial_bound(nothing, priced, np.inf)[0] > partial_bound(nothing, placing, np.inf)[0]:
            placing = priced
    return placing


def _priced(placing: Placing, limit: float, price: float) -> Placing:
    return placing._replace(chain_prices=np.where(placing.limits == limit, price, placing.chain_prices))
