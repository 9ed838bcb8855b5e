"""Small communication times: which consumer should follow its producer at once on the same device, by a linear program.

The algorithm SCT of Hanen and Munier (An approximation algorithm for scheduling dependent tasks on m processors with
small communication delays, 1995), within limits of memories the m-SCT of Baechi (Jeon et al., SoCC 2020).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, eye_array, hstack, vstack
from scipy.sparse.csgraph import connected_components

from gst.devices import Plan
from gst.placement.baselines.list_schedules import Arrays, etf
from gst.placement.task import Task

MOST_EDGES = 10_000  # of the linear program


def sct(task: Task) -> Plan | None:
    """`etf`, where a device waits for the favourite child of what it ran last (see `favourite_children`).

    A task of more than `MOST_EDGES` edges is coarsened for the linear program: colocation groups, and groups that wait
    for each other, are one node, and of the edges between two the one that takes longest stands for all.

    Returns:
        None if even then there are too many edges, or if no plan was found that keeps the limits of the memories.
    """
    pairs = task.costs.edges[:, task.costs.computed[task.costs.edges[0]]]
    ends, times, transfer = pairs, task.times_us.min(0), Arrays.of(task).transfer_us[pairs[0]]
    if pairs.shape[1] > MOST_EDGES:
        group = _acyclic_groups(task.colocation, pairs)
        ends, heaviest = _between(group[pairs], transfer)
        pairs, transfer, times = pairs[:, heaviest], transfer[heaviest], np.bincount(group, times)
    if pairs.shape[1] > MOST_EDGES:
        return None
    chosen = favourite_children(ends, times, transfer)
    favourite = np.full(task.num_nodes, -1)
    favourite[pairs[0, chosen]] = pairs[1, chosen]
    return etf(task, favourite)


def favourite_children(
    edges: Int64[np.ndarray, "2 edges"], times_us: Float64[np.ndarray, " nodes"],
    transfer_us: Float64[np.ndarray, " edges"],
) -> Int64[np.ndarray, " chosen"]:  # fmt: skip
    """Numbers of the edges that lead to a favourite child: each node has at most one, and is it of at most one.

    With x = 0 where a consumer follows at once without a transfer and x = 1 where it does not, the least makespan on
    devices without number is a linear program once x may lie between; edges with x < 1/2 lead to favourite children.

    Args:
        edges: producer -> consumer, each pair once, without cycles.
        transfer_us: to hand over the value of each edge to another device.
    """
    nodes, count = len(times_us), edges.shape[1]
    if not count:
        return np.zeros(0, np.int64)
    unit = max(times_us.mean(), 1e-9)
    times, transfer = times_us / unit, transfer_us / unit
    ones, edge = np.ones(count), np.arange(count)
    leaves, enters = (csr_array((ones, (end, edge)), shape=(nodes, count)) for end in edges)
    moved = csr_array((transfer, (edge, edge)), shape=(count, count))
    rows = [hstack([moved, (leaves - enters).T, coo_array((count, 1))])]  # s_i + p_i + c_ij x_ij <= s_j
    limits = [-times[edges[0]]]
    for incidence in (leaves, enters):  # all but one x of a node are 1, on either side
        degree = np.asarray(incidence.sum(1)).reshape(-1)
        several = np.flatnonzero(degree > 1)
        rows.append(hstack([-incidence[several], coo_array((len(several), nodes + 1))]))
        limits.append(1 - degree[several])
    rows.append(hstack([coo_array((nodes, count)), eye_array(nodes), coo_array(-np.ones((nodes, 1)))]))
    limits.append(-times)  # s_i + p_i <= w
    objective = np.zeros(count + nodes + 1)
    objective[-1] = 1.0
    most = np.concatenate([ones, np.full(nodes + 1, np.inf)])
    found = linprog(
        objective, vstack(rows).tocsr(), np.concatenate(limits),
        bounds=np.stack([np.zeros_like(most), most], axis=1), method="highs",
    )  # fmt: skip
    assert found.status == 0, found.message
    return np.flatnonzero(found.x[:count] < 0.5 - 1e-6)


def _acyclic_groups(
    colocation: Int64[np.ndarray, " nodes"], pairs: Int64[np.ndarray, "2 edges"]
) -> Int64[np.ndarray, " nodes"]:
    """Colocation groups, those that wait for each other made one."""
    count = int(colocation.max()) + 1
    matrix = coo_array((np.ones(pairs.shape[1]), tuple(colocation[pairs])), shape=(count, count))
    return connected_components(matrix, directed=True, connection="strong")[1].astype(np.int64)[colocation]


def _between(
    ends: Int64[np.ndarray, "2 edges"], weights: Float64[np.ndarray, " edges"]
) -> tuple[Int64[np.ndarray, "2 pairs"], Int64[np.ndarray, " pairs"]]:
    """Distinct pairs of different ends, and of each the number of its heaviest edge."""
    order = np.lexsort((-weights, ends[1], ends[0]))
    order = order[ends[0, order] != ends[1, order]]
    pairs, first = np.unique(ends[:, order], axis=1, return_index=True)
    return pairs, order[first]
