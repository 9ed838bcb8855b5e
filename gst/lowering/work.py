"""What is lowered: groups of operations on lanes, and the values that they read and write. Arrays of a program and
a plan go in; in which memories values are made, read and copied comes out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from gst.lowering.storages import Storages
from gst.lowering.stream_program import Ints


class Work(NamedTuple):
    """What is to be lowered, as arrays.

    Args:
        edges: (2, edges); producer -> consumer, each pair once.
        group: (nodes); group of each operation, -1 for inputs and constants.
        lane: (groups); lane of each group.
        rank: (groups); of the groups that can run, the one of least rank stands first in the order. Distinct.
        home: (nodes); memory of each input that is copied to its other readers; -1 for what lies wherever it is read.
        results: nodes whose values are returned, each once.
        output_bytes: (nodes); of the value of each node.
        transient_bytes: (groups); that a group takes while it runs, beside what it writes.
        storages: who allocates what, and which values lie in it.
    """

    edges: np.ndarray
    group: np.ndarray
    lane: np.ndarray
    rank: np.ndarray
    home: np.ndarray
    results: np.ndarray
    output_bytes: np.ndarray
    transient_bytes: np.ndarray
    storages: Storages


class Values(NamedTuple):
    """Where values are, and who reads them. A value in a memory has the key `node * memories + memory`.

    Args:
        home: (nodes); memory where each value is made or lies from the start; -1 for one that lies wherever it is read.
        written: nodes that groups write, increasing.
        read: key of the value that a group reads, in the memory of the group.
        reader: that group.
        residents, copies: keys of what lies there from the start, and of what is copied there, increasing.
    """

    home: np.ndarray
    written: np.ndarray
    read: np.ndarray
    reader: np.ndarray
    residents: np.ndarray
    copies: np.ndarray


def values_of(work: Work, group_memory: Ints, count: int) -> Values:
    """Values in `count` memories, of groups that are in these memories."""
    nodes, num_groups = len(work.group), len(work.lane)
    crosses = (work.group[work.edges[0]] != work.group[work.edges[1]]) & (work.group[work.edges[1]] >= 0)
    pairs = np.unique(work.edges[0, crosses] * num_groups + work.group[work.edges[1, crosses]])
    node, reader = np.divmod(pairs, num_groups) if num_groups else (pairs, pairs)
    read = node * count + group_memory[reader]
    computed = np.flatnonzero(work.group >= 0)
    home = work.home.copy()
    home[computed] = group_memory[work.group[computed]]
    everywhere = (work.group[node] < 0) & (work.home[node] < 0)
    # An input that is a result has a home: the first memory that reads it, or the first of all.
    is_result, first = np.zeros(nodes, bool), np.full(nodes, count)
    is_result[work.results] = True
    np.minimum.at(first, node, group_memory[reader])
    fixed = np.flatnonzero((work.group < 0) & is_result & (home < 0))
    home[fixed] = np.where(first[fixed] < count, first[fixed], 0)
    at_home = np.flatnonzero((work.group < 0) & (home >= 0) & (is_result | (first < count)))
    return Values(
        home, crossing(work.edges, work.group, work.results), read, reader,
        residents=np.unique(np.concatenate([read[everywhere], at_home * count + home[at_home]])),
        copies=np.unique(read[~everywhere & (home[node] != group_memory[reader])]),
    )  # fmt: skip


def crossing(edges: Int64[np.ndarray, "2 edges"], group: Ints, results: Ints) -> Ints:
    """Operations whose values others than their group read, or the program returns."""
    crosses = (group[edges[0]] != group[edges[1]]) & (group[edges[0]] >= 0)
    return np.unique(np.concatenate([edges[0, crosses], results[group[results] >= 0]]))


def positions(keys: Ints, wanted: Ints) -> Ints:
    """Where each of `wanted` is among increasing `keys`; -1 where it is not."""
    at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    return np.where(keys[at] == wanted, at, -1) if len(keys) else np.full(len(wanted), -1)
