"""Portfolio: the plans that need no search, by name: one device, pieces, METIS parts, and list schedules (HEFT,
earliest time first, small communication times, moldable operations). A search never returns a slower one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, eye_array, hstack, vstack

from gst.lowering.plan import Plan, priority_of
from gst.machine.devices import core_use, memories_of, overlap
from gst.placement.baselines import units
from gst.placement.baselines.list_kernels import earliest_first, place_in_order, place_the_rest, with_widths
from gst.placement.baselines.units import Arrays, Places, Scheduled, mean_times, upward_rank
from gst.placement.task import Task
from partitioners import has_metis, partition

WHOLE = 10**8  # sum of the integer weights that METIS is given
SLACKS = (-0.3, 0.0, 0.1, 0.2, 0.4)  # core time that a wide operation may take more than a narrow one, as a share

Order = Int64[np.ndarray, " nodes"]


def portfolio(task: Task) -> dict[str, Plan]:
    """Return every baseline by name. Each of the `quickest_devices` alone is included, even if it cannot run all; other
    methods are left out if they find no plan within the memory limits.

    Examples:
        >>> import gst
        >>> sorted(portfolio(gst.placement.machine("gpus:2").task(gst.programs.traced("rnnlm:layers=1,steps=2"))))[:6]
        ['chunks', 'etf', 'heft', 'metis', 'sct', 'single:cuda:0']
    """
    alone = units.quickest_devices(task).tolist()
    plans: dict[str, Plan | None] = {f"single:{task.names[device]}": single(task, device) for device in alone}
    if len(task.devices) > 1:
        plans |= {
            "chunks": chunks(task), "metis": metis(task), "topo": topo(task),
            "heft": heft(task), "etf": etf(task), "sct": sct(task),
        }  # fmt: skip
        if overlap(task.devices):
            plans |= {"heft:narrow": heft(task, narrow=True), "moldable": moldable(task)}
    return {name: plan for name, plan in plans.items() if plan is not None}


def single(task: Task, device: int) -> Plan:
    """Place everything on one device."""
    return task.plan(np.full(task.num_nodes, device))


def chunks(task: Task) -> Plan | None:
    """Cut program order into a piece of equal profiled time for each of the `peers`, as far as memories have room."""
    parts = units.smallest_units(task)
    return units.fitted(task, parts, partial(in_turn, task, parts, profiled_us(task, parts), False))


def topo(task: Task) -> Plan | None:
    """Place by m-TOPO of Baechi (Jeon et al., SoCC 2020): in program order each of the `peers` takes operations until
    it holds its share of all bytes plus the largest operation."""
    parts = units.smallest_units(task)
    size = task.resident_bytes + task.costs.own_bytes.min(0) * task.costs.computed
    return units.fitted(task, parts, partial(in_turn, task, parts, np.bincount(parts.of, size, parts.count), True))


def metis(task: Task, seed: int = 0) -> Plan | None:
    """Partition colocation groups by METIS (Karypis and Kumar, 1998), into 2 parts up to one for each of the `peers`.

    Groups are weighted by profiled time, edges by transfer time. The plan that simulates fastest is returned, in
    program order or by upward rank; None without pymetis.
    """
    if not has_metis():
        return None
    parts, devices = units.colocated(task), units.peers(task)
    priority = priority_of(longest_first(task))
    plans: list[Plan | None] = []
    for count in numbers_of_parts(min(len(devices), parts.count)):
        found = devices[weighted_metis(task, parts, count, seed)]
        for order in (None, priority):
            plans.append(units.fitted(task, parts, partial(_repaired_plan, task, parts, found, order)))
    return units.quickest(task, plans)


def numbers_of_parts(most: int) -> list[int]:
    """Return 2, 3, ... 16, then each half as many again, and the most.

    Examples:
        >>> numbers_of_parts(3), numbers_of_parts(60)[14:]
        ([2, 3], [16, 24, 36, 54, 60])
    """
    numbers = list(range(2, min(most, 16) + 1))
    while numbers and numbers[-1] * 3 // 2 < most:
        numbers.append(numbers[-1] * 3 // 2)
    return sorted({*numbers, most})


def weighted_metis(task: Task, parts: units.Units, num_parts: int, seed: int) -> units.Assignment:
    """Return the part of each unit: equal profiled time, little transfer time."""
    pairs = task.costs.edges[:, task.costs.computed[task.costs.edges[0]]]
    ends, transfer = parts.of[pairs], mean_transfers_us(task)[pairs[0]]
    crossing = ends[0] != ends[1]
    shares = (each / max(each.sum(), 1e-9) for each in (profiled_us(task, parts), transfer[crossing]))
    node_weights, edge_weights = (np.maximum(1, np.rint(WHOLE * each)).astype(np.int64) for each in shares)
    return partition(
        ends[:, crossing], parts.count, num_parts, "metis", seed, node_weights=node_weights, edge_weights=edge_weights
    )


def profiled_us(task: Task, parts: units.Units) -> Float64[np.ndarray, " units"]:
    """Return the time of each unit on the first of the `peers`, or its least time."""
    times = parts.times_us[units.peers(task)[0]]
    return np.where(np.isfinite(times), times, parts.times_us.min(0))


def in_turn(
    task: Task, parts: units.Units, weights: Float64[np.ndarray, " units"], full: bool, room: units.Rooms
) -> Plan | None:
    """Give units in order to one peer after the other, a share of the weight each, as far as its memory has room. If
    `full`, the heaviest unit may exceed a share; otherwise devices share out evenly what earlier ones left."""
    devices, memory, left = units.peers(task), memories_of(task.devices)[1], room.copy()
    assignment = np.full(parts.count, devices[-1])
    first = 0
    for number, device in enumerate(devices):
        rest = weights[first:]
        if full:
            allowed = np.cumsum(rest) <= weights.sum() / len(devices) + weights.max()
        else:
            allowed = np.cumsum(rest) - rest / 2 <= rest.sum() / (len(devices) - number)
        allowed &= np.cumsum(parts.load_bytes[first:]) <= left[memory[device]]
        end = first + int(np.logical_and.accumulate(allowed).sum())
        assignment[first:end] = device
        left[memory[device]] -= parts.load_bytes[first:end].sum()
        first = end
    return _repaired_plan(task, parts, assignment, None, room)


def _repaired_plan(
    task: Task,
    parts: units.Units,
    assignment: units.Assignment,
    priority: Int64[np.ndarray, " nodes"] | None,
    room: units.Rooms,
) -> Plan | None:
    found = units.repaired(task, parts, assignment, room)
    return None if found is None else task.plan(found[parts.of], priority)


# List schedules -------------------------------------------------------------------------------------------------------


def task_scheduled(task: Task, handed_over: bool = True) -> Scheduled:
    """Return a task for the kernels, in microseconds and bytes of the value of each node. Edges are those between
    computed nodes: values of inputs and constants are there from the start.

    Args:
        handed_over: add to links the time until another thread has seen and read a value.
    """
    costs, simulator = task.costs, task.simulator
    elsewhere = simulator.worker[:, None] != simulator.worker if handed_over else np.zeros(())
    arrays = Arrays(
        *costs.readers, *costs.producers, costs.times_us,
        costs.output_bytes.astype(np.float64), costs.latency_us + task.contention.hand_over_us * elsewhere,
        1 / costs.bytes_per_us + task.contention.remote_ns_per_byte / 1e3 * elsewhere,
        task.colocation, np.zeros(task.num_groups), memories_of(task.devices)[1],
    )  # fmt: skip
    return Scheduled(arrays, costs.computed, core_use(task.devices), *costs.cores)


def mean_transfers_us(task: Task) -> Float64[np.ndarray, " nodes"]:
    """Return the microseconds to hand over the value of each node, mean over all pairs of devices."""
    arrays = task_scheduled(task).arrays
    return arrays.fixed.mean() + arrays.per_amount.mean() * arrays.amounts


def rank_us(task: Task) -> Float64[np.ndarray, " nodes"]:
    """Return the upward rank of each node in microseconds, with mean times and mean transfers."""
    arrays = task_scheduled(task).arrays
    return upward_rank(mean_times(task.times_us), mean_transfers_us(task), arrays.indptr, arrays.consumers)


def longest_first(task: Task) -> Order:
    """Return nodes by upward rank, the greatest first."""
    return np.argsort(-rank_us(task), kind="stable")


def heft(task: Task, narrow: bool = False) -> Plan | None:
    """Place by Heterogeneous Earliest Finish Time (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002).

    The operation of greatest upward rank is next, on the device where it would finish first, after the others there. A
    device of several cores is free when all of them are. Programs are placed by operations and by colocation groups;
    the plan that simulates faster is returned, None if none keeps the memory limits.

    Args:
        narrow: use the devices of fewest threads alone; otherwise nearly everything goes to the widest device.
    """
    threads = np.array([device.threads for device in task.devices])
    allowed = threads == threads.min() if narrow else np.ones(len(threads), bool)
    what, order = task_scheduled(task), longest_first(task)

    def make(parts: units.Units, room: units.Rooms) -> Plan | None:
        each, undecided = _undecided(task, what, parts, room)
        undecided = undecided._replace(times=np.where(allowed[:, None], parts.times_us, np.inf))
        home = np.full(task.num_nodes, -1)
        if not place_in_order(order, each, undecided, home):
            return None
        place_the_rest(home, each.arrays, undecided)
        return task.plan(home, priority_of(order)) if (home >= 0).all() else None

    return _of_both_units(task, make)


def _of_both_units(task: Task, make: Callable[[units.Units, units.Rooms], Plan | None]) -> Plan | None:
    """Return the plan that simulates faster, within limits, of those that `make` places by either units."""
    return units.quickest(task, [units.fitted(task, each, partial(make, each)) for each in units.both_units(task)])


def etf(task: Task, favourite: Order | None = None) -> Plan | None:
    """Place by earliest time first (Hwang, Chow, Anger and Lee, SIAM J. Computing 18(2), 1989) within memory limits:
    the m-ETF of Baechi (Jeon et al., Baechi: Fast Device Placement of Machine Learning Graphs, SoCC 2020).

    The ready operation and device that can start earliest are next; of equal starts the operation of greatest upward
    rank. Where devices differ in speed, the time that the fastest device would save counts too.

    Args:
        favourite: child of each node for which its device is kept free, or -1.
    """
    children = np.full(task.num_nodes, -1) if favourite is None else favourite
    what, order = task_scheduled(task), longest_first(task)
    return _of_both_units(task, partial(_scheduled, task, what, _earliest_first(order, children)))


Schedule = Callable[[Scheduled, Places], tuple[Order, Order]]


def _earliest_first(order: Order, favourite: Order) -> Schedule:
    return lambda task, places: earliest_first(order, task, places, favourite)


def _scheduled(task: Task, what: Scheduled, by: Schedule, parts: units.Units, room: units.Rooms) -> Plan | None:
    """Return the plan that runs nodes by their turn in a schedule; None if one has no place."""
    placement, turn = by(*_undecided(task, what, parts, room))
    return task.plan(placement, priority_of(np.argsort(turn, kind="stable"))) if (placement >= 0).all() else None


def _undecided(task: Task, each: Scheduled, parts: units.Units, room: units.Rooms) -> tuple[Scheduled, Places]:
    """Return units as groups, none of them placed yet."""
    grouped = each._replace(arrays=each.arrays._replace(groups=parts.of, sizes=parts.load_bytes))
    queued, lanes = (task.num_nodes, len(room)) if task.costs.copies_queue else (0, 0)
    arrived = np.full((queued, lanes), np.inf)
    none = np.full(parts.count, -1)
    return grouped, Places(parts.times_us, room.copy(), none, arrived, np.zeros(lanes), np.zeros(lanes))


def moldable(task: Task) -> Plan | None:
    """Place on devices that share cores: allot cores first, then schedule a list (Turek, Wolf and Yu, SPAA 1992).

    An operation may take several cores if that costs little more core time (time x cores) than one. Each of `SLACKS`
    is simulated, by upward rank and by program order, by `etf` and by events. The plan is never slower in simulation
    than `heft` or any of the `quickest_devices` alone; None if none keeps the memory limits.
    """
    what, parts, costs, simulator = task_scheduled(task), units.smallest_units(task), task.costs, task.simulator
    plans = [heft(task), heft(task, narrow=True)]
    for device in units.quickest_devices(task):
        if np.isfinite(task.times_us[device]).all():
            plans.append(units.kept(task, single(task, device)))
    none, helpers_us = np.full(task.num_nodes, -1), (simulator.threads > 1)[:, None] * task.contention.helper_us
    times = costs.times_us + helpers_us * costs.computed
    helped = what._replace(arrays=what.arrays._replace(times=times, fixed=costs.latency_us))
    threads = simulator.worker, simulator.leader, simulator.contention
    for slack, order in product(SLACKS, (longest_first(task), np.arange(task.num_nodes))):
        worthwhile = _worthwhile(what, parts, slack)
        some = replace(parts, times_us=np.where(worthwhile, parts.times_us, np.inf))
        by_etf = units.fitted(task, parts, partial(_scheduled, task, what, _earliest_first(order, none), some))
        if by_etf is not None:
            plans += [by_etf, units.kept(task, task.plan(by_etf.placement, priority_of(order)))]
        for crowd in (0.0, 1.0):
            by_events = partial(with_widths, order, *threads, worthwhile, crowd)
            plans.append(units.fitted(task, parts, partial(_scheduled, task, helped, by_events, parts)))
    return units.quickest(task, plans)


def _worthwhile(each: Scheduled, parts: units.Units, slack: float) -> Bool[np.ndarray, "devices units"]:
    """Return the narrowest devices of each unit, and those with at most 1 + `slack` times their core time."""
    width = each.use.sum(1)[:, None]
    core_time = parts.times_us * width
    able = np.isfinite(parts.times_us)
    narrow = width == np.where(able, width, width.max()).min(0)
    there = np.where(narrow, core_time, np.inf).min(0)
    return able & (narrow | (core_time <= (1 + slack) * there))


MOST_EDGES = 10_000  # of the linear program


def sct(task: Task) -> Plan | None:
    """Place by earliest time first with favourite children: the m-SCT of Baechi (Jeon et al., SoCC 2020).

    See `favourite_children`. None for a task of more than `MOST_EDGES` edges, or if no plan keeps the memory limits."""
    pairs = task.costs.edges[:, task.costs.computed[task.costs.edges[0]]]
    if pairs.shape[1] > MOST_EDGES:
        return None
    chosen = favourite_children(pairs, task.times_us.min(0), mean_transfers_us(task)[pairs[0]])
    favourite = np.full(task.num_nodes, -1)
    favourite[pairs[0, chosen]] = pairs[1, chosen]
    return etf(task, favourite)


def favourite_children(
    edges: Int64[np.ndarray, "2 edges"],
    times_us: Float64[np.ndarray, " nodes"],
    transfer_us: Float64[np.ndarray, " edges"],
) -> Int64[np.ndarray, " chosen"]:
    """Return the numbers of edges to a favourite child: a node has at most one, and is the one of at most one.

    With x = 0 if a consumer follows at once without a transfer and x = 1 otherwise, the least makespan on unlimited
    devices is a linear program if x may lie between; edges with x < 1/2 lead to favourite children. `edges` have no
    cycles and no duplicates.
    """
    nodes, count = len(times_us), edges.shape[1]
    if not count:
        return np.zeros(0, np.int64)
    unit = max(times_us.mean(), 1e-9)
    times, transfer = times_us / unit, transfer_us / unit
    ones, edge = np.ones(count), np.arange(count)
    leaves, enters = (csr_array((ones, (end, edge)), shape=(nodes, count)) for end in edges)
    moved = csr_array((transfer, (edge, edge)), shape=(count, count))
    lines = [hstack([moved, (leaves - enters).T, coo_array((count, 1))])]  # s_i + p_i + c_ij x_ij <= s_j
    limits = [-times[edges[0]]]
    for incidence in (leaves, enters):  # all but one x of a node are 1, on either side
        degree = np.asarray(incidence.sum(1)).reshape(-1)
        several = np.flatnonzero(degree > 1)
        lines.append(hstack([-incidence[several], coo_array((len(several), nodes + 1))]))
        limits.append(1 - degree[several])
    lines.append(hstack([coo_array((nodes, count)), eye_array(nodes), coo_array(-np.ones((nodes, 1)))]))
    limits.append(-times)  # s_i + p_i <= w
    objective = np.zeros(count + nodes + 1)
    objective[-1] = 1.0
    most = np.concatenate([ones, np.full(nodes + 1, np.inf)])
    found = linprog(
        objective,
        vstack(lines).tocsr(),
        np.concatenate(limits),
        bounds=np.stack([np.zeros_like(most), most], axis=1),
        method="highs",
    )
    assert found.status == 0, found.message
    return np.flatnonzero(found.x[:count] < 0.5 - 1e-6)
