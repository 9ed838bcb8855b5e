"""Lower bounds of the makespan of programs."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from experiments.reproductions.public_problems.branching import Branched, branched_bound, classes
from experiments.reproductions.public_problems.branching_kernels import Placing
from experiments.reproductions.public_problems.prices import prices
from gst.placement.baselines.list_schedule import Scheduled
from gst.placement.baselines.list_schedules import in_groups, task_scheduled
from gst.placement.baselines.units import unit_times_us
from gst.placement.baselines.work import chains_and_work
from gst.placement.task import Task


def lower_bound_us(task: Task) -> float:
    """Microseconds that every plan takes at least, whatever its order.

    Examples:
        >>> from gst.placement.baselines.portfolio import single
        >>> from gst.placement.policies.generated_tasks import generated_task
        >>> task = generated_task(0, num_nodes=60, num_devices=2)
        >>> lower_bound_us(task) <= task.simulator.run(single(task, 0)).makespan_us
        True

    It is the bound of chains and of work, see `gst.placement.baselines.work.chains_and_work`.

    Devices that share cores are one resource, of which an operation takes time x cores, and devices that are alike are
    one resource too. An operation's work is the least that it costs on any of them, at prices at which all cores
    together cost 1 a microsecond. Every such price is sound. With several resources the prices are those at which all
    operations cost most: the dual of the linear program that takes operations apart at will.
    """
    what, apart = task_scheduled(task, handed_over=False), task.taken_apart()
    arrays = what.arrays._replace(groups=apart.colocation)
    own, none = np.eye(len(task.devices), dtype=bool), np.zeros(len(task.devices))
    alike = classes(arrays.times, none, (arrays.fixed, arrays.per_amount), own)
    return chains_and_work(arrays, alike, *_resources(what))


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


def _resources(
    what: Scheduled,
) -> tuple[Float64[np.ndarray, "resources nodes"], Float64[np.ndarray, " resources"]]:
    """What each operation takes of each resource, core microseconds, and how many cores each has."""
    use, times = what.use, what.arrays.times
    shared = connected_components(csr_array(use.astype(np.int64) @ use.T), directed=False)[1]
    members = [shared == number for number in range(shared.max() + 1)]
    area = np.stack([(times[some] * use[some].sum(1)[:, None]).min(0) for some in members])
    cores = np.array([use[some].any(0).sum() for some in members], np.float64)
    alike, which = np.unique(area, axis=0, return_inverse=True)
    return alike, np.bincount(which.reshape(-1), cores)
