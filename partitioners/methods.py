"""Every partitioning method by its name, behind one call; METIS, the method that tries the others, and a cache."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from jaxtyping import Int64

from partitioners.balance import Problem
from partitioners.communities import communities
from partitioners.csr import check_num_parts, check_tolerance, checked_edges, checked_weights
from partitioners.orders import contiguous, fennel, linear_deterministic_greedy, topological, uniform


def has_metis() -> bool:
    """True if pymetis is installed. `gst` depends on it, but a machine that only measures can do without.

    Examples:
        >>> has_metis()
        True
    """
    return find_spec("pymetis") is not None


def usual_method() -> str:
    """The method to cut by where any will do: METIS, and Fennel without pymetis.

    Examples:
        >>> usual_method()
        'metis'
    """
    return "metis" if has_metis() else "fennel"


def metis(problem: Problem) -> Int64[np.ndarray, " nodes"]:
    """Return the part of each node, few edges cut, with parts as uneven as the tolerance allows.

    METIS wants both directions of every edge; one direction gives it a negative cut without an error. It draws from one
    generator per process: run several in processes, not in threads.
    """
    import pymetis

    if problem.num_parts == 1:
        return np.zeros(problem.num_nodes, np.int64)
    csr = problem.csr
    found = pymetis.part_graph(
        problem.num_parts,
        pymetis.CSRAdjacency(csr.starts, csr.neighbours),
        vweights=problem.node_weights,
        eweights=csr.weights // max(1, np.gcd.reduce(csr.weights)),  # else doubled edges give other parts
        recursive=problem.num_parts <= 8 and problem.num_nodes < 100 * problem.num_parts,  # k-way empties tiny parts
        options=pymetis.Options(seed=int(problem.seed % 2**31), ufactor=max(1, round(1000 * problem.tolerance))),
    )
    return problem.refined(np.array(found.vertex_part, dtype=np.int64))


HOPELESS = 1.5  # LDG at this many times the least cut: Fennel, which streams as LDG does, is not worth its time


def auto(problem: Problem) -> Int64[np.ndarray, " nodes"]:
    """Return the part of each node, by the method whose parts, balanced, cut least by weight; the earlier in a tie."""
    best = problem.balanced(contiguous(problem))
    least = problem.csr.cut(best)
    cut_of: dict[Method, int] = {}
    for method in (communities, linear_deterministic_greedy, fennel, topological, metis):
        if least == 0 or (method is fennel and cut_of[linear_deterministic_greedy] > HOPELESS * least):
            continue
        parts = problem.balanced(method(problem))
        cut_of[method] = problem.csr.cut(parts)
        if cut_of[method] < least:
            best, least = parts, cut_of[method]
    return best


Method = Callable[[Problem], Int64[np.ndarray, " nodes"]]


METHODS: dict[str, Method] = {
    "auto": auto,
    "metis": metis,
    "communities": communities,
    "ldg": linear_deterministic_greedy,
    "fennel": fennel,
    "topological": topological,
    "contiguous": contiguous,
    "random": uniform,
}
SEEDED = ("auto", "metis", "random")
"""Methods whose parts depend on the seed."""


def partition(
    edges: Int64[np.ndarray, "2 edges"],
    num_nodes: int,
    num_parts: int,
    method: str = "metis",
    seed: int = 0,
    tolerance: float = 0.1,
    node_weights: Int64[np.ndarray, " nodes"] | None = None,
    edge_weights: Int64[np.ndarray, " edges"] | None = None,
) -> Int64[np.ndarray, " nodes"]:
    """Cut a graph into parts: the part of each node, none empty and none larger than `largest_part` allows.

    Args:
        edges: node ids; direction, order, repetition, self-loops and connectedness do not matter, but for
            "topological" and "auto", which heed directions.
        num_nodes: at least 1; nodes without edges belong to a part too.
        num_parts: 1..num_nodes; `num_parts_for` gives it from the most nodes a part may hold.
        method: a key of `METHODS`. "auto" tries the others and keeps the least cut; "communities" cuts about as little
            as "metis" and is many times faster where hubs abound.
        seed: at least 0; equal arguments give equal parts. Those of `SEEDED` depend on it.
        tolerance: excess of a part over the mean, as a share of the mean; at least 0.
        node_weights: at least 1 each; parts then hold weight instead of nodes.
        edge_weights: at least 1 each: the cost of cutting an edge; parallel edges add up.

    Raises:
        ValueError: an argument is out of range; the message says which and what to ask for.

    Examples:
        >>> chain = np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
        >>> partition(chain, num_nodes=6, num_parts=2, method="contiguous").tolist()
        [0, 0, 0, 1, 1, 1]
    """
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; wanted one of {', '.join(METHODS)}: pick one")
    if seed < 0:
        raise ValueError(f"seed is {seed}; wanted an integer >= 0: pass 0")
    edges = checked_edges(edges, num_nodes)
    check_num_parts(num_nodes, num_parts)
    check_tolerance(tolerance)
    if node_weights is not None:
        node_weights = checked_weights(node_weights, num_nodes, "node_weights")
    if edge_weights is not None:
        edge_weights = checked_weights(edge_weights, edges.shape[1], "edge_weights")
    problem = Problem(edges, num_nodes, num_parts, seed, tolerance, node_weights, edge_weights)
    return problem.balanced(METHODS[method](problem))


VERSION = 1  # of the methods: raise it when one of them gives other parts than before
CHECKSUM_BYTES = 32  # behind the array, where np.load does not look


def partition_cached(
    directory: Path, edges: Int64[np.ndarray, "2 edges"], num_nodes: int, num_parts: int, **arguments: Any
) -> Int64[np.ndarray, " nodes"]:
    """Return the result of `partition` for the same arguments, read from `directory` if it was computed before.

    A file is named by a hash of edges, sizes, weights and the other arguments, written beside its place, moved
    there whole, and carries a checksum; one that was changed or cut short is computed and written again.
    Processes may share the directory.

    Raises:
        ValueError: what `partition` refuses.
        TypeError: an argument that `partition` does not have.
        OSError: `directory` cannot be written.

    Examples:
        >>> chain = np.array([[0, 1, 2], [1, 2, 3]])
        >>> partition_cached(Path("parts"), chain, num_nodes=4, num_parts=2).tolist()
        [0, 0, 1, 1]
        >>> len(list(Path("parts").iterdir()))  # the next call reads it
        1
    """
    edges = checked_edges(edges, num_nodes)
    key = _key(edges, num_nodes, num_parts, arguments)
    path = directory / f"{key}.npy"
    parts = _read_parts(path, key)
    if parts is None:
        parts = partition(edges, num_nodes, num_parts, **arguments)
        _write_parts(path, key, parts)
    return parts


def _key(edges: Int64[np.ndarray, "2 edges"], num_nodes: int, num_parts: int, arguments: dict[str, Any]) -> str:
    call = inspect.signature(partition).bind(edges, num_nodes, num_parts, **arguments)
    call.apply_defaults()
    settings = call.arguments
    arrays = {"edges": settings.pop("edges")}
    for name, count in (("node_weights", num_nodes), ("edge_weights", edges.shape[1])):
        weights = settings.pop(name)
        if weights is not None:
            arrays[name] = checked_weights(weights, count, name)
    header = {"version": VERSION, **settings, **{name: array.shape for name, array in arrays.items()}}
    digest = hashlib.blake2b(json.dumps(header, sort_keys=True, default=lambda number: number.item()).encode())
    for array in arrays.values():
        digest.update(array.data.cast("B") if array.size else b"")
    return digest.hexdigest()[:32]


def _checksum(key: str, content: bytes) -> bytes:
    digest = hashlib.blake2b(key.encode(), digest_size=CHECKSUM_BYTES)
    digest.update(content)
    return digest.digest()


def _read_parts(path: Path, key: str) -> Int64[np.ndarray, " nodes"] | None:
    """The parts in a file that is there and whole, otherwise None; nothing is parsed before its checksum is right."""
    try:
        stored = path.read_bytes()
    except FileNotFoundError:
        return None
    content, checksum = stored[:-CHECKSUM_BYTES], stored[-CHECKSUM_BYTES:]
    if checksum != _checksum(key, content):
        return None
    parts: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
    return parts


def _write_parts(path: Path, key: str, parts: Int64[np.ndarray, " nodes"]) -> None:
    content = io.BytesIO()
    np.save(content, parts, allow_pickle=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.stem}-{uuid4().hex}")
    try:
        partial.write_bytes(content.getvalue() + _checksum(key, content.getvalue()))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
