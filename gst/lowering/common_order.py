"""The common order of groups and copies, in which every value is made before it is read. Groups with ranks go in, and
how long copies wait; runs and copies come out, one behind the other."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from gst.lowering.stream_program import COPY, RUN, Ints, rows
from gst.lowering.work import Values, Work, positions


class Actions(NamedTuple):
    """Runs, copies and frees in the common order.

    Args:
        kind, argument, target: as in a stream program.
        lane: of each action.
    """

    kind: np.ndarray
    argument: np.ndarray
    target: np.ndarray
    lane: np.ndarray

    def at(self, order: Ints) -> Actions:
        """The same in another order."""
        return Actions(*(column[order] for column in self))


def order_of(work: Work) -> Ints:
    """Place of each group in an order in which every value is made before it is read; of the groups that can come next
    the one of least rank does."""
    num_groups = len(work.rank)
    both = (work.group[work.edges[0]] >= 0) & (work.group[work.edges[1]] >= 0)
    producer, consumer = work.group[work.edges[0, both]], work.group[work.edges[1, both]]
    crosses = producer != consumer
    producer, consumer = producer[crosses], consumer[crosses]
    # By rank, groups often are in such an order already.
    by_rank = np.argsort(work.rank)
    place = inverse(by_rank)
    if (place[producer] < place[consumer]).all():
        return place
    consumers = rows(producer, consumer, num_groups).lists()
    waiting = np.bincount(consumer, minlength=num_groups).tolist()
    number, group_of = place.tolist(), by_rank.tolist()
    ready = [number[group] for group in range(num_groups) if not waiting[group]]
    heapify(ready)
    order = []
    while ready:
        group = group_of[heappop(ready)]
        order.append(group)
        for each in consumers[group]:
            waiting[each] -= 1
            if not waiting[each]:
                heappush(ready, number[each])
    assert len(order) == num_groups, "groups depend on each other in a circle"
    return inverse(np.array(order, np.int64))


def anchors(work: Work, values: Values, place: Ints, ahead: Ints) -> Ints:
    """For each copy the group that it waits for, so as not to lie in its memory too early; -1 if it need not.

    Args:
        place: of each group in the common order.
        ahead: as in `lowered`.
    """
    node, destination = np.divmod(values.copies, len(ahead))
    group = np.full(len(node), -1)
    if not ahead.any() or not len(node):
        return group
    in_lanes = np.lexsort((place, work.lane))  # groups lane by lane, in their order
    at = inverse(in_lanes)
    first = _first_readers(values, place)
    reader = np.where(first < len(place), inverse(place)[np.minimum(first, len(place) - 1)], -1)
    before = at[reader] - ahead[destination]
    candidate = in_lanes[np.maximum(before, 0)]
    made_at = np.where(work.group[node] >= 0, place[work.group[node]], -1)
    waits = (ahead[destination] > 0) & (reader >= 0) & (before >= 0)
    waits &= (work.lane[candidate] == work.lane[reader]) & (place[candidate] > made_at)
    return np.where(waits, candidate, -1)


def _first_readers(values: Values, place: Ints) -> Ints:
    """Place of the first group that reads each copy; their number if none does."""
    first = np.full(len(values.copies), len(place))
    copy = positions(values.copies, values.read)
    np.minimum.at(first, copy[copy >= 0], place[values.reader[copy >= 0]])
    return first


def tasks_of(
    work: Work, values: Values, place: Ints, senders: Ints, num_lanes: int, count: int, anchor: Ints
) -> tuple[Actions, Ints, Ints]:
    """Runs and copies in the common order, and the place in it of each group and of each copy. A copy stands behind the
    group that makes its value, or that it waits for; of several, the one that is read first stands first."""
    num_groups = len(work.lane)
    node, destination = np.divmod(values.copies, count)
    made_at = np.where(work.group[node] >= 0, place[work.group[node]], -1)
    first_reader = _first_readers(values, place)
    moment = np.concatenate([2 * place, 2 * np.where(anchor >= 0, place[anchor], made_at) + 1])
    order = np.lexsort((np.concatenate([np.zeros(num_groups, np.int64), first_reader]), moment))
    tasks = Actions(
        np.repeat([RUN, COPY], [num_groups, len(node)]),
        np.concatenate([np.arange(num_groups), node]),
        np.concatenate([np.full(num_groups, -1), destination]),
        np.concatenate([work.lane, num_lanes + np.searchsorted(senders, values.home[node])]),
    )
    task = inverse(order)
    return tasks.at(order), task[:num_groups], task[num_groups:]


def inverse(order: Ints) -> Ints:
    """Place of each number in an order of all numbers 0, 1, ..."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place
