"""Tasks as branch and bound reads them, with prices of time and bytes from a linear program."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.optimize import linprog
from scipy.sparse import coo_array

from experiments.reproductions.public_problems.branching_kernels import Placing
from gst.lowering.plan import rows
from gst.placement.baselines.portfolio import task_scheduled
from gst.placement.baselines.units import limits_bytes, unit_times_us
from gst.placement.task import Task

MOST_VARIABLES = 100_000  # of the linear program


def placing_of(task: Task) -> Placing:
    """Return a task as the kernels of branch and bound read it. Of memory only resident bytes count."""
    view, apart = task_scheduled(task, handed_over=False), task.taken_apart()
    sizes = np.bincount(apart.colocation, apart.resident_bytes.astype(np.float64), apart.num_groups)
    arrays, every = view.arrays._replace(groups=apart.colocation, sizes=sizes), limits_bytes(task)
    memory, limits, use = arrays.memory, every[arrays.memory], view.use
    alike = classes(arrays.times, limits, (arrays.fixed, arrays.per_amount), use)
    own, shared = np.full((1, use.shape[1]), 1 / use.shape[1]), np.zeros((1, len(every)))
    if use.sum() == len(use) == use.shape[1] == len(every):
        of_time, of_bytes = prices(unit_times_us(apart, apart.colocation), sizes, limits, alike)
        own, shared = of_time @ use, np.zeros(of_bytes.shape)
        shared[:, memory] = of_bytes
    members = rows(apart.colocation, np.arange(task.num_nodes), apart.num_groups)
    return Placing(
        arrays, *members, every, use, np.ascontiguousarray(own, np.float64), shared, np.zeros(len(every)), alike
    )


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


def prices(
    times: Float64[np.ndarray, "devices groups"], sizes: Float64[np.ndarray, " groups"],
    limits: Float64[np.ndarray, " devices"], alike: Int64[np.ndarray, " devices"],
) -> tuple[Float64[np.ndarray, "sorts devices"], Float64[np.ndarray, "sorts devices"]]:  # fmt: skip
    """Prices of a microsecond of each device, which add up to 1, and of a byte of its memory: equal prices, and the
    dual of the linear program in which kinds of devices share groups at will. Every such price gives a sound bound.

    Args:
        times: of each group on each device, each of which has a core and a memory of its own.
        sizes: bytes of each group.
        limits: bytes of each device.
        alike: class of each device.

    Examples:
        >>> some = prices(np.array([[1.0, 1.0], [3.0, 3.0]]), np.zeros(2), np.full(2, np.inf), np.array([0, 1]))
        >>> some[0].round(2).tolist()
        [[0.5, 0.5], [0.75, 0.25]]
    """
    devices, groups = times.shape
    even = np.full((1, devices), 1 / devices), np.zeros((1, devices))
    kinds, first, count = np.unique(alike, return_index=True, return_counts=True)
    limited = np.flatnonzero(np.isfinite(limits[first]))
    if (len(kinds) < 2 and not limited.size) or len(kinds) * groups > MOST_VARIABLES:
        return even
    kind, group = np.nonzero(np.isfinite(times[first]))
    took, column = times[first][kind, group], np.arange(len(kind))
    unit, large = max(took.mean(), 1e-9), max(float(sizes.max(initial=0.0)), 1e-9)
    rows, columns, values = [kind], [column], [took / unit]
    rows.append(np.arange(len(kinds)))
    columns.append(np.full(len(kinds), len(kind)))
    values.append(-count.astype(np.float64))
    for row, each in enumerate(limited, start=len(kinds)):
        mine = np.flatnonzero(kind == each)
        rows.append(np.full(len(mine), row))
        columns.append(mine)
        values.append(sizes[group[mine]] / large)
    shape = (len(kinds) + len(limited), len(kind) + 1)
    table = coo_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=shape).tocsr()
    most = np.concatenate([np.zeros(len(kinds)), limits[first][limited] * count[limited] / large])
    whole = coo_array((np.ones(len(kind)), (group, column)), shape=(groups, len(kind) + 1)).tocsr()
    objective = np.zeros(len(kind) + 1)
    objective[-1] = 1.0
    solved = linprog(objective, table, most, whole, np.ones(groups), method="highs")
    if solved.status != 0:
        return even
    dual = np.maximum(-solved.ineqlin.marginals, 0.0)
    total = float(dual[: len(kinds)] @ count)
    if total <= 0:
        return even
    of_bytes = np.zeros(len(kinds))
    of_bytes[limited] = dual[len(kinds) :] * unit / large / total
    classes = np.searchsorted(kinds, alike)
    return (
        np.vstack([even[0], dual[: len(kinds)][classes][None] / total]),
        np.vstack([even[1], of_bytes[classes][None]]),
    )
