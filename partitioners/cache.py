"""Partitions kept on disk under a name made from what they were computed from."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from jaxtyping import Int64

from partitioners.csr import checked_edges, checked_weights
from partitioners.methods import partition

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
    parts = _read(path, key)
    if parts is None:
        parts = partition(edges, num_nodes, num_parts, **arguments)
        _write(path, key, parts)
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


def _read(path: Path, key: str) -> Int64[np.ndarray, " nodes"] | None:
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


def _write(path: Path, key: str, parts: Int64[np.ndarray, " nodes"]) -> None:
    content = io.BytesIO()
    np.save(content, parts, allow_pickle=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.stem}-{uuid4().hex}")
    try:
        partial.write_bytes(content.getvalue() + _checksum(key, content.getvalue()))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
