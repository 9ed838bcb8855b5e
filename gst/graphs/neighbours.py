"""The edges at each node, sorted in memory that does not grow with the graph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from gst.files.writing import CHUNK, chunks, empty_array


@dataclass(frozen=True, eq=False)
class Neighbours:
    """For each node the other ends of its edges, `others[starts[v]:starts[v + 1]]`, in the order the edges stand in."""

    starts: Int64[np.ndarray, " nodes_plus_one"]
    others: Int64[np.ndarray, " edges"]

    def degrees(self, nodes: Int64[np.ndarray, " chosen"]) -> Int64[np.ndarray, " chosen"]:
        return np.asarray(self.starts[nodes + 1] - self.starts[nodes])

    def of(self, nodes: Int64[np.ndarray, " chosen"]) -> Int64[np.ndarray, " their_edges"]:
        """Those of one node after those of another."""
        return np.asarray(self.others[ranges(self.starts[nodes], self.starts[nodes + 1])])

    def within(self, low: int, high: int) -> Int64[np.ndarray, "2 inner"]:
        """The edges among the nodes low..high-1, as (other, node), counted from `low`."""
        starts = self.starts[low : high + 1]
        nodes = np.repeat(np.arange(low, high), np.diff(starts))
        others = self.others[starts[0] : starts[-1]]
        inner = (others >= low) & (others < high)
        return np.stack([others[inner], nodes[inner]]) - low


def neighbours(
    edges: Int64[np.ndarray, "2 edges"], side: int, num_nodes: int, block_nodes: int, scratch: Path | None = None,
    chunk: int = CHUNK,
) -> Neighbours:  # fmt: skip
    """Sort the edges by their ends in row `side`.

    A distribution sort: first the edges go to the range of `block_nodes` nodes they belong to, one such range after
    the other, then each range is sorted in memory.

    Args:
        scratch: directory of the arrays returned, and of those needed on the way; in memory if None.
    """
    num_edges = edges.shape[1]
    sizes = np.zeros(-(-num_nodes // block_nodes), np.int64)
    for part in chunks(num_edges, chunk):
        sizes += np.bincount(edges[side, part] // block_nodes, minlength=len(sizes))
    keys = empty_array(scratch, f"nodes-{side}", (num_edges,), np.int64)
    others = empty_array(scratch, f"others-{side}", (num_edges,), np.int64)
    ends = np.cumsum(sizes) - sizes
    for part in chunks(num_edges, chunk):
        block = edges[side, part] // block_nodes
        order, counts = np.argsort(block, kind="stable"), np.bincount(block, minlength=len(sizes))
        place = ranges(ends, ends + counts)
        keys[place], others[place] = edges[side, part][order], edges[1 - side, part][order]
        ends += counts
    starts = empty_array(scratch, f"starts-{side}", (num_nodes + 1,), np.int64)
    starts[0] = 0
    for low, first, end in zip(range(0, num_nodes, block_nodes), ends - sizes, ends, strict=True):
        high = min(low + block_nodes, num_nodes)
        nodes = keys[first:end] - low
        others[first:end] = others[first:end][np.argsort(nodes, kind="stable")]
        starts[low + 1 : high + 1] = first + np.cumsum(np.bincount(nodes, minlength=high - low))
    return Neighbours(starts, others)


def ranges(starts: Int64[np.ndarray, " ranges"], stops: Int64[np.ndarray, " ranges"]) -> Int64[np.ndarray, " numbers"]:
    """The numbers of all half-open ranges, one range after the other."""
    lengths = stops - starts
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)
