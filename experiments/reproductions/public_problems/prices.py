"""Prices of the time of devices and of the bytes of memories at which all operations cost most: a linear program."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import linprog
from scipy.sparse import coo_array

MOST_VARIABLES = 100_000  # of the linear program


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
