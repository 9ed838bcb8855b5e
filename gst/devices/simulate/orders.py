"""Neighbour lists of a graph in compressed rows, and longest paths from each node to the end (upward ranks)."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Int64

from partitioners.compiled import compiled


def neighbour_lists(
    edges: Int64[np.ndarray, "2 edges"], num_nodes: int
) -> tuple[Int64[np.ndarray, " bounds"], Int64[np.ndarray, " edges"]]:
    """Where the list of each node begins and ends, and the heads of its edges one list after the other.

    Args:
        edges: from a node to one of its list; reversed (`edges[::-1]`) they give the lists of the heads.
        num_nodes: of the graph; the first result has one number more.

    Examples:
        >>> indptr, heads = neighbour_lists(np.array([[0, 0, 1], [1, 2, 2]]), 3)
        >>> indptr.tolist(), heads.tolist()
        ([0, 2, 3, 3], [1, 2, 2])
    """
    order = np.argsort(edges[0], kind="stable")
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(edges[0], minlength=num_nodes), out=indptr[1:])
    return indptr, np.ascontiguousarray(edges[1][order])


@compiled
@no_type_check
def longest_ways(times, transfer, indptr, consumers):
    """The upward rank of each node, in the unit of the times (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002,
    equation 8): its time, and the longest way on, by way of a transfer.

    Args:
        times: of each node, float64; every edge leads to a greater number.
        transfer: to hand the value of each node to any of its readers, float64; zeros count operations alone.
        indptr, consumers: who reads the value of each node, as `neighbour_lists` gives them.
    """
    way = np.zeros(len(times))
    for node in range(len(times) - 1, -1, -1):
        longest = 0.0
        for position in range(indptr[node], indptr[node + 1]):
            longest = max(longest, transfer[node] + way[consumers[position]])
        way[node] = times[node] + longest
    return way
