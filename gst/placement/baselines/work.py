"""Lower bound of the makespan: chains of operations with transfers, and work that has to be shared by the devices."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import linprog
from scipy.sparse import coo_array, hstack

from gst.placement.baselines.arrays import Arrays
from gst.placement.baselines.chains import heads, tails

MOST_VARIABLES = 100_000  # of the linear program
STEPS = 64  # of the thresholds of heads and tails


def chains_and_work(
    arrays: Arrays,
    classes: Int64[np.ndarray, " devices"],
    area: Float64[np.ndarray, "resources nodes"],
    capacity: Float64[np.ndarray, " resources"],
) -> float:
    """What every plan takes at least, in the unit of the times, whatever its order: the greater of two bounds.

    - The longest chain, each operation on the device where that is shortest: producers of a value are on the same
      device, one after the other, or pay a transfer (`gst.placement.baselines.chains.heads`).
    - For operations that start after a head h at the earliest and after which at least a tail t is to come, h + their
      work + t, for `STEPS` x `STEPS` choices of h and t, among them none of either (on one machine this is a bound of
      Carlier, The one-machine sequencing problem, EJOR 11, 1982).

    Args:
        classes: of each device; those of one may be exchanged for each other, so that two stand for all: here, and
            elsewhere.
        area: what each operation takes of each resource; infinite where it cannot use it.
        capacity: how much of each resource there is in a unit of time.
    """
    numbers = np.arange(len(classes))
    some = np.concatenate([numbers[classes == each][:2] for each in np.unique(classes)])
    head, tail, times = heads(arrays.times, some, arrays), tails(arrays.times, some, arrays), arrays.times[some]
    longest = float(np.where(np.isfinite(times), head + times + tail, np.inf).min(0).max())
    return max(longest, window_bound(head.min(0), tail.min(0), priced_work(area, capacity)))


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
