"""Lower bounds of the makespan by chains of operations and by work that devices share; certificates of plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, no_type_check

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, hstack
from scipy.sparse.csgraph import connected_components

from gst.lowering.plan import Plan
from gst.placement.baselines.portfolio import task_scheduled
from gst.placement.baselines.units import Arrays, Scheduled, moved
from gst.placement.task import Task
from gst.reporting.charts import brief
from gst.util.compiled import compiled

MOST_VARIABLES = 100_000  # of the linear program
STEPS = 64  # thresholds of heads and of tails
NUM_SHOWN = 8  # memories


def lower_bound_us(task: Task) -> float:
    """Return microseconds that every plan takes at least, whatever its order: the bound of `chains_and_work`.

    Devices that share cores, or are alike, are one resource, of which an operation takes time x cores. Its work is the
    least that it costs at prices at which all cores together cost 1 a microsecond. Every such price is sound.

    Examples:
        >>> from gst.placement.baselines.portfolio import single
        >>> import gst
        >>> task = gst.placement.machine("gpus:2").task(gst.programs.traced("rnnlm:layers=1,steps=2"))
        >>> lower_bound_us(task) <= task.simulator.run(single(task, 0)).makespan_us
        True
    """
    what, apart = task_scheduled(task, handed_over=False), task.taken_apart()
    arrays = what.arrays._replace(groups=apart.colocation)
    return chains_and_work(arrays, _alike(arrays), *_resources(what))


def certificate_of(task: Task, plan: Plan, least_us: float | None = None) -> dict[str, Any]:
    """Return the lower bound, the gap of a plan to it, and its memory, by the costs of its task.

    Args:
        least_us: `lower_bound_us(task)`, if known.

    Returns:
        `lower_bound` and `plan` (ms), `gap` (a share; None without a bound), `peak_bytes` (of the
        simulated run) and `limit_bytes` of each memory, and `is_fused`: the bound is of plans that fuse nothing.
    """
    run, contention = task.simulator.run(plan), task.contention
    delay = max(min(contention.switch_us, contention.hand_over_us, contention.wake_us), 0.0)
    if least_us is None or delay > 0:
        times_us = task.times_us + delay * task.costs.computed
        least_us = lower_bound_us(replace(task, costs=replace(task.costs, times_us=times_us)))
    bound, took = min(least_us, run.makespan_us) / 1e3, run.makespan_us / 1e3
    return {
        "lower_bound": bound, "plan": took, "gap": took / bound - 1 if bound > 0 else 0.0 if took <= 0 else None,
        "peak_bytes": dict(task.memory_use(run)), "limit_bytes": dict(task.memories),
        "is_fused": plan.fusion is not None and bool((plan.fusion >= 0).any()),
    }  # fmt: skip


def words(record: Mapping[str, Any]) -> str:
    """Return a certificate in two lines.

    Examples:
        >>> print(words({"lower_bound": 100.0, "plan": 200.0, "gap": 1.0, "peak_bytes": {"gpu": 2**20},
        ...              "limit_bytes": {"gpu": None}}))
        Lower bound by these costs: 100 ms; this plan takes 200 ms, at most 100 % above the best
        Memory at most, simulated: gpu 1.0 MiB
    """
    others = "Lower bound without fusion" if record.get("is_fused") else "Lower bound by these costs"
    above = "" if record["gap"] is None else f", at most {brief(100 * record['gap'])} % above the best"
    by_size = sorted(((name, size) for name, size in record["peak_bytes"].items() if size), key=lambda each: -each[1])
    limits = record["limit_bytes"]
    memories = [
        f"{name} {_mib(size)}" + (f" of {_mib(limits[name])}" if limits.get(name) is not None else "")
        for name, size in by_size[:NUM_SHOWN]
    ]
    more = f" and {len(by_size) - NUM_SHOWN} more" if len(by_size) > NUM_SHOWN else ""
    return (
        f"{others}: {brief(record['lower_bound'])} ms; this plan takes {brief(record['plan'])} ms{above}\n"
        f"Memory at most, simulated: {', '.join(memories) or 'none'}{more}"
    )


def _mib(size: float) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _alike(arrays: Arrays) -> Int64[np.ndarray, " devices"]:
    """Return the class of each device: those of one class have the same times and links."""
    times, numbers = arrays.times, np.arange(len(arrays.times))
    result = np.full(len(times), -1)
    for device in range(len(times)):
        for first in range(device):
            exchanged = numbers.copy()
            exchanged[[first, device]] = device, first
            links = np.stack([arrays.fixed, arrays.per_amount])
            if (links == links[:, exchanged[:, None], exchanged]).all() and (times[first] == times[device]).all():
                result[device] = result[first]
                break
        else:
            result[device] = result.max(initial=-1) + 1
    return result


def _resources(what: Scheduled) -> tuple[Float64[np.ndarray, "resources nodes"], Float64[np.ndarray, " resources"]]:
    """Return the core microseconds that each operation takes of each resource, and the cores of each resource."""
    use, times = what.use, what.arrays.times
    shared = connected_components(csr_array(use.astype(np.int64) @ use.T), directed=False)[1]
    members = [shared == number for number in range(shared.max() + 1)]
    area = np.stack([(times[some] * use[some].sum(1)[:, None]).min(0) for some in members])
    cores = np.array([use[some].any(0).sum() for some in members], np.float64)
    alike, which = np.unique(area, axis=0, return_inverse=True)
    return alike, np.bincount(which.reshape(-1), cores)


def chains_and_work(
    arrays: Arrays,
    classes: Int64[np.ndarray, " devices"],
    area: Float64[np.ndarray, "resources nodes"],
    capacity: Float64[np.ndarray, " resources"],
) -> float:
    """Return the time that every plan takes at least, in the unit of the times: the greater of two bounds.

    - The longest chain, each operation on its best device: producers of a value are on the same device, one after the
      other, or pay a transfer (`heads`).
    - For operations with a head of at least h and a tail of at least t: h + their work + t, for `STEPS` x `STEPS`
      choices of h and t (on one machine a bound of Carlier, The one-machine sequencing problem, EJOR 11, 1982).

    Args:
        classes: of each device; two of a class stand for all: the device of an operation, and another one.
        area: amount that each operation takes of each resource; infinite where it cannot use it.
        capacity: amount of each resource in a unit of time.
    """
    numbers = np.arange(len(classes))
    some = np.concatenate([numbers[classes == each][:2] for each in np.unique(classes)])
    head, tail, times = heads(arrays.times, some, arrays), tails(arrays.times, some, arrays), arrays.times[some]
    longest = float(np.where(np.isfinite(times), head + times + tail, np.inf).min(0).max())
    return max(longest, window_bound(head.min(0), tail.min(0), priced_work(area, capacity)))


def priced_work(
    area: Float64[np.ndarray, "resources nodes"], capacity: Float64[np.ndarray, " resources"]
) -> Float64[np.ndarray, " nodes"]:
    """Return the work of each node at the best prices, or at equal ones if the linear program would be too large."""
    even = np.full(len(capacity), 1 / capacity.sum())
    found = [even] if len(area) == 1 or area.size > MOST_VARIABLES else [even, _prices(area, capacity)]
    costs = [np.where(np.isfinite(area), np.nan_to_num(area, posinf=0.0) * p[:, None], np.inf).min(0) for p in found]
    return max(costs, key=np.sum)


def _prices(
    area: Float64[np.ndarray, "resources nodes"], capacity: Float64[np.ndarray, " resources"]
) -> Float64[np.ndarray, " resources"]:
    """Return the optimal dual prices of a linear program: the least T such that shares of each node add up to 1, and no
    resource is used longer than T."""
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
    """Return the greatest h + t + work of the nodes with head >= h and tail >= t."""
    heads, tails = (np.unique(np.quantile(each, np.linspace(0, 1, STEPS))) for each in (head, tail))
    rows = np.searchsorted(heads, head, side="right") - 1
    columns = np.searchsorted(tails, tail, side="right") - 1
    cells = np.bincount(rows * len(tails) + columns, work, len(heads) * len(tails)).reshape(len(heads), len(tails))
    beyond = cells[::-1, ::-1].cumsum(0).cumsum(1)[::-1, ::-1]
    return float(np.where(beyond > 0, heads[:, None] + beyond + tails, 0.0).max())


@compiled
@no_type_check
def heads(times, devices, arrays):
    """Return (devices, nodes) the least time before each node starts on each of some devices; see `_least`."""
    order = np.arange(times.shape[1])
    return _least(arrays.producer_indptr, arrays.producers, order, False, times, devices, arrays)


@compiled
@no_type_check
def tails(times, devices, arrays):
    """Return (devices, nodes) the least time after each node ends."""
    order = np.arange(times.shape[1])[::-1].copy()
    return _least(arrays.indptr, arrays.consumers, order, True, times, devices, arrays)


@compiled
@no_type_check
def _least(indptr, others, order, backwards, times, devices, arrays):
    """Return heads, or tails if `backwards`. An operation starts when the values of its producers are there: some
    producers are on the same device, one after the other, and the others pay a transfer, by the best choice
    (Papadimitriou and Yannakakis, SIAM J. Computing 19(2), 1990).
    """
    nodes, count = len(order), len(devices)
    head = np.zeros((count, nodes))
    for node in order:
        first, degree = indptr[node], indptr[node + 1] - indptr[node]
        if degree == 0:
            continue
        away, near, here = np.empty(degree), np.empty(degree), np.empty(degree)
        for mine in range(count):
            for number in range(degree):
                other = others[first + number]
                away[number] = np.inf
                for there in range(count):
                    if there == mine or arrays.groups[other] == arrays.groups[node]:
                        continue
                    if backwards:
                        transfer = moved(node, devices[mine], devices[there], arrays)
                    else:
                        transfer = moved(other, devices[there], devices[mine], arrays)
                    away[number] = min(away[number], head[there, other] + times[devices[there], other] + transfer)
                near[number], here[number] = head[mine, other], times[devices[mine], other]
            dearest, soonest = np.argsort(-away), np.argsort(near)
            rank = np.empty(degree, np.int64)
            for number in range(degree):
                rank[dearest[number]] = number
            low, high = 0, degree  # how many of the dearest are near: the least for which they take as long as the rest
            least = np.inf
            while low <= high:
                middle = (low + high) // 2
                limit = away[dearest[middle]] if middle < degree else 0.0
                taken = 0.0
                for number in soonest:
                    if rank[number] < middle:
                        taken = max(taken, near[number]) + here[number]
                least = min(least, max(taken, limit))
                if taken >= limit:
                    high = middle - 1
                else:
                    low = middle + 1
            head[mine, node] = least
    return head
