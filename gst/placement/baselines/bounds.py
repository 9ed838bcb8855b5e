"""Lower bound of the makespan: chains of operations with transfers, and work that has to be shared by the devices."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, hstack
from scipy.sparse.csgraph import connected_components

from gst.devices.simulate.simulator import neighbour_lists
from gst.placement.baselines.branching import Branched, branched_bound, classes
from gst.placement.baselines.branching_kernels import Placing
from gst.placement.baselines.chains import Chains, heads
from gst.placement.baselines.list_kernels import TaskArrays
from gst.placement.baselines.list_schedules import task_arrays
from gst.placement.baselines.prices import prices
from gst.placement.task import Task

MOST_VARIABLES = 100_000  # of the linear program
STEPS = 64  # of the thresholds of heads and tails


def lower_bound_us(task: Task) -> float:
    """Microseconds that every plan takes at least, whatever its order.

    Examples:
        >>> from gst.placement.baselines.portfolio import single
        >>> from gst.placement.policies.generated_tasks import generated_task
        >>> task = generated_task(0, num_nodes=60, num_devices=2)
        >>> lower_bound_us(task) <= task.simulator.run(single(task, 0)).makespan_us
        True

    The greater of two bounds:

    - the longest chain, each operation on the device where that is shortest: producers of a value are on the same
      device, one after the other, or pay a transfer (`gst.placement.baselines.chains.heads`);
    - for operations that start after a head h at the earliest and after which at least a tail t is to come, h + their
      work + t, for `STEPS` x `STEPS` choices of h and t, among them none of either (on one machine this is a bound of
      Carlier, The one-machine sequencing problem, EJOR 11, 1982).

    Devices that share cores are one resource, of which an operation takes time x cores, and devices that are alike are
    one resource too. An operation's work is the least that it costs on any of them, at prices at which all cores
    together cost 1 a microsecond. Every such price is sound. With several resources the prices are those at which all
    operations cost most: the dual of the linear program that takes operations apart at will.
    """
    arrays, task = task_arrays(task), task.taken_apart()  # in this order: the simulator of the task is there already
    some, nodes = _two_of_each(task), np.arange(task.num_nodes)
    chains = Chains(
        arrays.times_us, task.colocation, arrays.num_bytes, task.costs.latency_us, 1 / task.costs.bytes_per_us,
        np.zeros((0, 0, 0)), np.zeros(len(task.devices), np.int64),
    )  # fmt: skip
    readers = np.repeat(nodes, np.diff(arrays.indptr))  # whose value moves: the amount of an edge is that of a node
    head = heads(arrays.producer_indptr, arrays.producers, arrays.producers, nodes, some, False, chains)
    tail = heads(arrays.indptr, arrays.consumers, readers, nodes[::-1].copy(), some, True, chains)
    times = arrays.times_us[some]
    longest = float(np.where(np.isfinite(times), head + times + tail, np.inf).min(0).max())
    work = priced_work(*_resources(task, arrays))
    return max(longest, window_bound(head.min(0), tail.min(0), work))


def branched_bound_us(task: Task, least_us: float, most_us: float, seconds: float) -> Branched:
    """Microseconds that every plan takes at least, by a search over placements with memory limits, see
    `gst.placement.baselines.branching.branched_bound`.

    Args:
        least_us: what is known that no plan takes less than.
        most_us: what a plan takes that fits.
        seconds: of search.
    """
    return branched_bound(placing_of(task), least_us, most_us, seconds)


def placing_of(task: Task) -> Placing:
    """A task as the kernels of the search over placements read it; of memory only what is resident counts."""
    arrays, task = task_arrays(task), task.taken_apart()
    nodes, devices = np.arange(task.num_nodes), len(task.devices)
    groups = neighbour_lists(np.stack([task.colocation, nodes]), task.num_groups)
    sizes = np.bincount(task.colocation, task.resident_bytes.astype(np.float64), task.num_groups)
    names, limits = list(task.memories), _limits(task)
    memory = np.array([names.index(device.memory) for device in task.devices])
    links = (task.costs.latency_us, task.costs.bytes_per_us)
    alike = classes(arrays.times_us, limits, links, arrays.use)
    own, shared = np.full((1, arrays.use.shape[1]), 1 / arrays.use.shape[1]), np.zeros((1, len(names)))
    if arrays.use.sum() == devices == arrays.use.shape[1] == len(names):
        times = np.stack([np.bincount(task.colocation, row, task.num_groups) for row in arrays.times_us])
        of_time, of_bytes = prices(times, sizes, limits, alike)
        own, shared = of_time @ arrays.use, np.zeros(of_bytes.shape)
        shared[:, memory] = of_bytes
    return Placing(
        arrays.indptr, arrays.consumers, np.repeat(nodes, np.diff(arrays.indptr)),
        arrays.producer_indptr, arrays.producers, arrays.producers, arrays.times_us, task.colocation, arrays.num_bytes,
        task.costs.latency_us, 1 / task.costs.bytes_per_us, np.zeros((0, 0, 0)), np.zeros(devices, np.int64), *groups,
        arrays.use, sizes, memory, np.array([np.inf if task.memories[each] is None else task.memories[each]
                                             for each in names], np.float64),
        np.ascontiguousarray(own, np.float64), shared, np.zeros(len(names)), alike,
    )  # fmt: skip


def _limits(task: Task) -> Float64[np.ndarray, " devices"]:
    """Bytes of the memory of each device."""
    limits = [task.memories[device.memory] for device in task.devices]
    return np.array([np.inf if limit is None else limit for limit in limits], np.float64)


def _two_of_each(task: Task) -> Int64[np.ndarray, " some"]:
    """Of devices that may be exchanged for each other two stand for all: here, and elsewhere."""
    chosen: list[int] = []
    for device in range(len(task.devices)):
        if sum(_are_alike(task, one, device) for one in chosen) < 2:
            chosen.append(device)
    return np.array(chosen)


def _are_alike(task: Task, one: int, other: int) -> bool:
    exchanged = np.arange(len(task.devices))
    exchanged[[one, other]] = other, one
    links = (task.costs.latency_us, task.costs.bytes_per_us)
    same = all((link == link[np.ix_(exchanged, exchanged)]).all() for link in links)
    return same and bool((task.times_us[one] == task.times_us[other]).all())


def _resources(
    task: Task, arrays: TaskArrays
) -> tuple[Float64[np.ndarray, "resources nodes"], Float64[np.ndarray, " resources"]]:
    """What each operation takes of each resource, core microseconds, and how many cores each has."""
    use = arrays.use
    shared = connected_components(csr_array(use.astype(np.int64) @ use.T), directed=False)[1]
    members = [shared == number for number in range(shared.max() + 1)]
    area = np.stack([(task.times_us[some] * use[some].sum(1)[:, None]).min(0) for some in members])
    cores = np.array([use[some].any(0).sum() for some in members], np.float64)
    alike, which = np.unique(area, axis=0, return_inverse=True)
    return alike, np.bincount(which.reshape(-1), cores)


def priced_work(
    area: Float64[np.ndarray, "resources nodes"], capacity: Float64[np.ndarray, " resources"]
) -> Float64[np.ndarray, " nodes"]:
    """Of each node, at the best prices, or at equal ones where the linear program would be too large."""
    even = np.full(len(capacity), 1 / capacity.sum())
    found = [even] if len(area) == 1 or area.size > MOST_VARIABLES else [even, _prices(area, capacity)]
    costs = [np.where(np.isfinite(area), np.nan_to_num(area, posinf=0.0) * p[:, None], np.inf).min(0) for p in found]
    return max(costs, key=np.sum)


def _prices(
    area: Float64[np.ndarray, "resources nodes"], capacity: Float64[np.ndarray, " resources"]
) -> Float64[np.ndarray, " resources"]:
    """The dual of: least T such that shares of each node add up to 1, and no resource is used for more than T."""
    resources, nodes = area.shape
    kind, node = np.nonzero(np.isfinite(area))
    taken, column = area[kind, node], np.arange(len(kind))
    unit = max(taken.mean(), 1e-9)
    within = hstack(
        [coo_array((taken / unit, (kind, column)), shape=(resources, len(kind))), coo_array(-capacity[:, None])]
    )
    whole = hstack([coo_array((np.ones(len(kind)), (node, column)), shape=(nodes, len(kind))), coo_array((nodes, 1))])
    objective = np.zeros(len(kind) + 1)
    objective[-1] = 1.0
    found = linprog(objective, within.tocsr(), np.zeros(resources), whole.tocsr(), np.ones(nodes), method="highs")
    assert found.status == 0, found.message
    prices = np.maximum(-found.ineqlin.marginals, 0.0)
    return prices / max(float(prices @ capacity), 1e-30)


def window_bound(
    head: Float64[np.ndarray, " nodes"], tail: Float64[np.ndarray, " nodes"], work: Float64[np.ndarray, " nodes"]
) -> float:
    """The greatest h + t + work of the nodes with head >= h and tail >= t."""
    heads, tails = (np.unique(np.quantile(each, np.linspace(0, 1, STEPS))) for each in (head, tail))
    rows = np.searchsorted(heads, head, side="right") - 1
    columns = np.searchsorted(tails, tail, side="right") - 1
    cells = np.bincount(rows * len(tails) + columns, work, len(heads) * len(tails)).reshape(len(heads), len(tails))
    beyond = cells[::-1, ::-1].cumsum(0).cumsum(1)[::-1, ::-1]
    return float(np.where(beyond > 0, heads[:, None] + beyond + tails, 0.0).max())
