"""Buffers that a run allocates: which values lie in which, and what groups take beside them. Storages of a program and
memories of its values go in; buffers with their bytes come out."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from gst.lowering.storages import Storages
from gst.lowering.stream_program import Ints, Rows, rows
from gst.lowering.work import Work, crossing, positions


def transient_bytes(
    edges: Int64[np.ndarray, "2 edges"], group: Ints, results: Ints, allocated: Storages, own_bytes: Ints | None
) -> Ints:
    """What each group takes while it runs, beside the buffers of what it writes.

    Args:
        edges, group, results: as in `Work`.
        allocated: who allocates what, and which values lie in it.
        own_bytes: the most that each operation takes while it runs; its results alone if None.
    """
    made_bytes = np.bincount(allocated.made_by, allocated.num_bytes, len(group)).astype(np.int64)
    own = made_bytes if own_bytes is None else np.maximum(own_bytes, made_bytes)
    computed = np.flatnonzero(group >= 0)
    transient = np.zeros(int(group.max(initial=-1)) + 1, np.int64)
    np.add.at(transient, group[computed], (own - made_bytes)[computed])
    storage, holder = allocated.held
    stays = np.isin(holder, crossing(edges, group, results))
    inner = np.setdiff1d(np.arange(len(allocated.num_bytes)), storage[stays])  # within a group alone
    np.add.at(transient, group[allocated.made_by[inner]], allocated.num_bytes[inner])
    return transient


def buffers_of(work: Work, made: Ints, home: Ints, count: int) -> tuple[Rows, Ints]:
    """Buffers of each value that a run makes, and their bytes: one for each storage, and one for each copy. A view lies
    in the storage of its base, or, where that was computed elsewhere, in the copy of its base."""
    nodes, allocated = len(work.group), len(work.storages.num_bytes)
    made_by = np.concatenate([work.storages.made_by, np.arange(nodes)])
    num_storages = len(made_by)  # those of inputs last
    holds = np.sort(np.concatenate([
        work.storages.held[1] * num_storages + work.storages.held[0], _held_of_inputs(work, allocated, num_storages)
    ]))  # fmt: skip
    holder, storage = np.divmod(holds, num_storages)
    # The first value that a node reads and that lies in the same storage is the one that it is a view of.
    edges = work.edges[:, np.lexsort((work.edges[0], work.edges[1]))]
    held = rows(holder, np.arange(len(holds)), nodes)
    size = np.diff(held.bounds)[edges[1]]
    edge = np.repeat(np.arange(edges.shape[1]), size)
    offset = np.arange(len(edge)) - np.repeat(np.cumsum(size) - size, size)
    child = held.items[held.bounds[edges[1, edge]] + offset]
    parent_hold = positions(holds, edges[0, edge] * num_storages + storage[child])
    is_view = (parent_hold >= 0) & (made_by[storage[child]] != holder[child])
    child, parent_hold = child[is_view][::-1], parent_hold[is_view][::-1]
    # Roots: a storage by its first hold in a memory, or minus one more than the number of a copy.
    root = np.arange(len(holds))
    parent = root.copy()
    parent[child] = parent_hold
    moved = home[holder[parent]] != home[holder]
    at = positions(made, holder[parent] * count + home[holder])
    local = np.where(moved, root, parent)
    while (local[local] != local).any():
        local = local[local]
    of_copy = np.where(moved[local], at[local], -1)
    # Numbers of buffers: first those of copies.
    node, memory = np.divmod(made, count)
    is_copy = home[node] != memory
    copy_number = np.cumsum(is_copy) - 1
    num_copies = int(is_copy.sum())
    value = positions(made, holder * count + home[holder])
    exists = (value >= 0) & ((storage < allocated) | (of_copy >= 0))  # inputs themselves are never freed
    roots = np.unique(local[exists & (of_copy < 0)])
    number = np.where(of_copy >= 0, copy_number[of_copy], num_copies + np.searchsorted(roots, local))
    owners = np.concatenate([np.flatnonzero(is_copy), value[exists]])
    buffers = np.concatenate([np.arange(num_copies), number[exists]])
    size = np.concatenate([work.output_bytes[node[is_copy]], work.storages.num_bytes[storage[roots]]])
    return rows(owners, buffers, len(made)), size.astype(np.int64)


def _held_of_inputs(work: Work, first: int, num_storages: int) -> Ints:
    """Holds of inputs, constants and their views, whose storages no operation allocates, as keys of `buffers_of`;
    storage `first + node` is that of an input."""
    nodes = len(work.group)
    in_input = np.bincount(work.storages.held[1], minlength=nodes) == 0
    in_input &= (work.group < 0) | (work.output_bytes > 0)
    edges = work.edges[:, in_input[work.edges[0]] & in_input[work.edges[1]]]
    base = np.arange(nodes)
    edges = edges[:, np.argsort(-edges[0], kind="stable")]
    base[edges[1]] = edges[0]  # the first of several
    while (base[base] != base).any():
        base = base[base]
    held = np.flatnonzero(in_input & (work.group[base] < 0))
    return held * num_storages + first + base[held]
