"""Certificates of plans by several bounds: chains and work, branch and bound over placements, and CP-SAT."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from experiments.reproductions.public_problems.branching import Branched, branched_bound
from experiments.reproductions.public_problems.branching_kernels import Placing
from experiments.reproductions.public_problems.cost_graphs import CostGraph, task_of_cost_graph
from experiments.reproductions.public_problems.exact.cost_graphs import published_optimum
from experiments.reproductions.public_problems.exact.tasks import optimum
from experiments.reproductions.public_problems.prices import prices
from experiments.reproductions.public_problems.published import PublishedObjective, published_bound
from gst.lowering.plan import Plan
from gst.placement.baselines.bounds import lower_bound_us
from gst.placement.baselines.list_schedules import in_groups, task_scheduled
from gst.placement.baselines.units import unit_times_us
from gst.placement.task import Task
from gst.reporting.charts import brief

SECONDS = 5.0  # of proof, unless the user says otherwise
MOST_EXACT, MOST_CHOICES = 200, 4_000  # operations that CP-SAT is asked about, and choices of a device for one
MOST_BRANCHED = 10_000  # operations of a search over placements: of more, one part of a plan takes seconds
SHARE = 1 / 3  # of the seconds that the search over placements has where CP-SAT comes after it
NEAR = 1e-6  # share by which times that are equal may differ: CP-SAT counts in nanoseconds
CHAINS, BRANCHES, EXACT = "chains and work", "branch and bound", "CP-SAT"
LONGEST_PATH = "longest path"
NUM_SHOWN = 8  # memories


@dataclass(frozen=True)
class Certificate:
    """Certificate of a plan: a lower bound by its costs, its gap, and its memory. Times are in `unit`.

    Args:
        bound: no plan takes less. Of a plan that fuses operations: no plan without fusion.
        bound_by: the method that proved it.
        plan_time: what this plan takes by the same costs, its operations one by one.
        unit: of the times, 'ms' or 's'.
        seconds: that the proof took.
        peak_bytes: of each memory, the most that lies there at any moment, with inputs and constants.
        limit_bytes: of each memory; None = all there is.
        memory_by: who says so: 'checker' (exact, any run that the events allow), 'simulator', or 'file' (sizes that a
            file states of its operations).
        is_fused: whether the plan compiles operations into one.
    """

    bound: float
    bound_by: str
    plan_time: float
    unit: str
    seconds: float
    peak_bytes: Mapping[str, int]
    limit_bytes: Mapping[str, int | None]
    memory_by: str
    is_fused: bool = False

    @property
    def gap(self) -> float:
        """By which share the plan is above the least that a plan can take, at most."""
        return self.plan_time / self.bound - 1 if self.bound > 0 else 0.0 if self.plan_time <= 0 else float("inf")

    @property
    def proved(self) -> bool:
        """True if no plan is better."""
        return self.gap <= NEAR

    def to_dict(self) -> dict[str, Any]:
        """For JSON.

        Examples:
            >>> Certificate(4.0, "CP-SAT", 5.0, "ms", 1.0, {"gpu": 8}, {"gpu": None}, "checker").to_dict()["gap"]
            0.25
        """
        gap = self.gap
        return {
            "lower_bound": self.bound, "bound_by": self.bound_by, "plan": self.plan_time, "unit": self.unit,
            "gap": gap if np.isfinite(gap) else None, "proved": self.proved, "seconds": self.seconds,
            "peak_bytes": dict(self.peak_bytes), "limit_bytes": dict(self.limit_bytes), "memory_by": self.memory_by,
            "is_fused": self.is_fused,
        }  # fmt: skip


def certify(
    task: Task, plan: Plan, seconds: float = SECONDS, peak_bytes: Mapping[str, int] | None = None, seed: int = 0,
    least_us: float | None = None,
) -> Certificate:  # fmt: skip
    """The certificate of a plan by the costs of its task.

    Operations take their times alone and the shortest delay between two, values their transfers, and inputs and
    constants their memory. What operations that run beside each other cost each other is left out. Bounds are sought in
    turn, until one meets the plan or the time is over: of chains and work; up to `MOST_BRANCHED` operations by branch
    and bound over placements; up to `MOST_EXACT` by CP-SAT, if OR-tools is installed.

    Args:
        plan: one that fits the memories; of another the bound is that of chains and work.
        seconds: of proof; 0 = chains and work alone. The time of that bound is not limited, nor is the first step of
            any other.
        peak_bytes: of each memory, by the checker; of the simulated run if None.
        seed: of CP-SAT.
        least_us: `lower_bound_us(task)`, if that is known.

    Examples:
        >>> from gst.placement.baselines.portfolio import single
        >>> from gst.placement.machines import generated_task
        >>> task = generated_task(0, num_nodes=60, num_devices=2)
        >>> certificate = certify(task, single(task, 0), seconds=0.1)
        >>> certificate.bound <= certificate.plan_time
        True
    """
    started = time.perf_counter()
    run = task.simulator.run(plan)
    took, alone = run.makespan_us, _with_delays(task)
    bound, by = lower_bound_us(alone) if least_us is None or alone is not task else least_us, CHAINS
    seconds = seconds if _fits(task, run.device) else 0.0
    exact = is_exact(int(task.costs.computed.sum()), len(task.devices))
    if seconds > 0 and bound < took * (1 - NEAR) and task.num_nodes <= MOST_BRANCHED:
        left = seconds * (SHARE if exact else 1.0)
        branched = branched_bound_us(alone, bound, took, left).bound
        if branched > bound * (1 + NEAR):
            bound, by = branched, BRANCHES
    left = seconds - (time.perf_counter() - started)
    if exact and left > 0 and bound < took * (1 - NEAR):
        solved = 1e3 * optimum(alone, left, plan, seed, bound, took).bound_ms
        if solved > bound * (1 + NEAR):
            bound, by = solved, EXACT
    known = task.memory_use(run) if peak_bytes is None else peak_bytes
    return Certificate(
        min(bound, took) / 1e3, by, took / 1e3, "ms", time.perf_counter() - started, known, task.memories,
        "simulator" if peak_bytes is None else "checker", plan.fusion is not None and bool((plan.fusion >= 0).any()),
    )  # fmt: skip


def certify_published(graph: CostGraph, plan: Plan, seconds: float = SECONDS, seed: int = 0) -> Certificate:
    """The certificate of a plan of a published cost graph, by the latency that was published with it: the longest path,
    and up to `MOST_EXACT` operations the bound of CP-SAT, which knows transfers and memory limits.

    Args:
        plan: one that the graph admits.
        seconds: of proof.
        seed: of CP-SAT.
    """
    started = time.perf_counter()
    took = float(PublishedObjective(graph)([plan])[0])
    bound, by = published_bound(graph), LONGEST_PATH
    if seconds > 0 and bound < took * (1 - NEAR) and is_exact(graph.num_nodes, len(graph.devices)):
        solved = published_optimum(graph, seconds, plan, seed=seed).bound_ms
        if solved > bound * (1 + NEAR):
            bound, by = solved, EXACT
    task = task_of_cost_graph(graph)
    home = np.array([list(task.memories).index(device.memory) for device in task.devices])[
        np.array([task.names.index(name) for name in plan.devices])[plan.placement]
    ]
    used = np.bincount(home, graph.sizes, len(task.memories)).astype(np.int64)
    return Certificate(
        min(bound, took), by, took, "ms", time.perf_counter() - started,
        dict(zip(task.memories, used.tolist(), strict=True)), task.memories, "file",
    )  # fmt: skip


def branched_bound_us(task: Task, least_us: float, most_us: float, seconds: float) -> Branched:
    """Microseconds that every plan takes at least, by a search over placements with memory limits, see
    `experiments.reproductions.public_problems.branching.branched_bound`.

    Args:
        least_us: what is known that no plan takes less than.
        most_us: what a plan takes that fits.
        seconds: of search.
    """
    return branched_bound(placing_of(task), least_us, most_us, seconds)


def placing_of(task: Task) -> Placing:
    """A task as the kernels of the search over placements read it; of memory only what is resident counts."""
    what, apart = task_scheduled(task, handed_over=False), task.taken_apart()
    sizes = np.bincount(apart.colocation, apart.resident_bytes.astype(np.float64), apart.num_groups)
    arrays = in_groups(what.arrays, apart.colocation, sizes)
    memory, limits, use = arrays.memory, arrays.limits[arrays.memory], what.use
    alike = classes(arrays.times, limits, (arrays.fixed, arrays.per_amount), use)
    own, shared = np.full((1, use.shape[1]), 1 / use.shape[1]), np.zeros((1, len(arrays.limits)))
    if use.sum() == len(use) == use.shape[1] == len(arrays.limits):
        of_time, of_bytes = prices(unit_times_us(apart, apart.colocation), sizes, limits, alike)
        own, shared = of_time @ use, np.zeros(of_bytes.shape)
        shared[:, memory] = of_bytes
    return Placing(arrays, use, np.ascontiguousarray(own, np.float64), shared, np.zeros(len(arrays.limits)), alike)


def is_exact(num_operations: int, num_devices: int) -> bool:
    """True if CP-SAT is used: it is installed, and the problem is small."""
    small = num_operations <= MOST_EXACT and num_operations * num_devices <= MOST_CHOICES
    return small and find_spec("ortools") is not None


def _fits(task: Task, device: Int64[np.ndarray, " nodes"]) -> bool:
    """True if inputs and constants fit their memories: only then does a plan's time bound the optimum."""
    home = np.array([list(task.memories).index(each.memory) for each in task.devices])[device]
    held = np.bincount(home, task.resident_bytes.astype(np.float64), len(task.memories))
    return all(limit is None or size <= limit for size, limit in zip(held, task.memories.values(), strict=True))


def _with_delays(task: Task) -> Task:
    """The task whose operations take what passes at least between two of them too."""
    contention = task.contention
    delay = max(min(contention.switch_us, contention.hand_over_us, contention.wake_us), 0.0)
    if delay == 0:
        return task
    return replace(task, costs=replace(task.costs, times_us=task.times_us + delay * task.costs.computed))


def words(record: Mapping[str, Any]) -> str:
    """A certificate, as `to_dict` gives it, in two lines.

    Examples:
        >>> print(words(Certificate(100, "CP-SAT", 200, "ms", 1.0, {"gpu": 2**20}, {"gpu": None}, "checker").to_dict()))
        Certificate: no plan takes less than 100 ms by these costs (CP-SAT, 1.0 s); this one 200 ms, at most 100 % above
        Memory at most, by the checker: gpu 1.0 MiB
    """
    unit, gap = record["unit"], record["gap"]
    others = "no plan without fusion" if record.get("is_fused") else "no plan"
    above = "and no bound is known" if gap is None else f"at most {brief(100 * gap)} % above"
    above = "which is proved to be the least" if record["proved"] else above
    limits, bound = record["limit_bytes"], f"{brief(record['lower_bound'])} {unit}"
    by_size = sorted(((name, size) for name, size in record["peak_bytes"].items() if size), key=lambda each: -each[1])
    memories = [f"{name} {_mib(size)}{_of(limits.get(name))}" for name, size in by_size[:NUM_SHOWN]]
    more = f" and {len(by_size) - NUM_SHOWN} more" if len(by_size) > NUM_SHOWN else ""
    return (
        f"Certificate: {others} takes less than {bound} by these costs ({record['bound_by']}, "
        f"{record['seconds']:.1f} s); this one {brief(record['plan'])} {unit}, {above}\n"
        f"Memory at most, by the {record['memory_by']}: {', '.join(memories) or 'none'}{more}"
    )


def _mib(size: float) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _of(limit: float | None) -> str:
    return "" if limit is None else f" of {_mib(limit)}"


def classes(
    times: Float64[np.ndarray, "devices nodes"], limits: Float64[np.ndarray, " devices"],
    links: tuple[Float64[np.ndarray, "devices devices"], ...], use: Bool[np.ndarray, "devices cores"],
) -> Int64[np.ndarray, " devices"]:  # fmt: skip
    """Return the class of each device: those of one class are interchangeable. A device that shares cores is alone.

    Args:
        limits: of the memory of each device.
        links: of each two devices.
        use: true where a device takes a core.
    """
    shares = (use.astype(np.int64) @ use.T).sum(1) > use.sum(1)
    result = np.full(len(times), -1)
    for device in range(len(times)):
        for first in range(device):
            exchanged = np.arange(len(times))
            exchanged[[first, device]] = device, first
            same_links = all((link == link[np.ix_(exchanged, exchanged)]).all() for link in links)
            same = same_links and limits[first] == limits[device] and (times[first] == times[device]).all()
            if same and not shares[first] and not shares[device]:
                result[device] = result[first]
                break
        else:
            result[device] = result.max(initial=-1) + 1
    return result
