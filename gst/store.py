"""The segment store: a directory of memory-mapped arrays holding every segmented graph of a dataset.

Reading a segment touches the bytes of that segment only. A store is written beside its place and moved there whole,
under a name made from its content, so it is either complete or absent and a second preparation does nothing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gst.graph import Graph
from gst.segments import SegmentedGraph, segment

SCHEMA = 1
ALIGNMENT = 64
SCALARS = ("name", "num_nodes", "edge_cut")
ARRAYS = tuple(field.name for field in fields(SegmentedGraph) if field.name not in SCALARS)


def prepare(
    graphs: Iterable[Graph],
    root: Path,
    max_nodes: int = 1000,
    method: str = "metis",
    halo: int = 0,
    seed: int = 0,
    progress: Callable[[str], None] = lambda name: None,
) -> Path:
    """Segment `graphs` and write the store of them under `root`; returns its directory.

    Args:
        progress: called with the name of each graph once it is written.

    Raises:
        ValueError: there are no graphs, or two share a name.
        OSError: the disk is full; nothing is left behind.
    """
    if iter(graphs) is graphs:
        graphs = list(graphs)  # it is gone over twice
    settings = {"max_nodes": max_nodes, "method": method, "halo": halo, "seed": seed}
    final = root / _digest(graphs, settings)
    if final.exists():
        return final
    root.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=root))
    try:
        _write(graphs, partial, settings, progress)
        if not final.exists():  # another process may have been faster
            partial.rename(final)
        return final
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _digest(graphs: Iterable[Graph], settings: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps({"schema": SCHEMA, **settings}, sort_keys=True).encode())
    names: set[str] = set()
    for graph in graphs:
        if graph.name in names:
            raise ValueError(f"two graphs are named {graph.name!r}; names must be unique within a dataset")
        names.add(graph.name)
        digest.update(f"{graph.name} {graph.digest()}".encode())
    if not names:
        raise ValueError("there are no graphs to prepare; check the files or the pattern that names them")
    return digest.hexdigest()[:16]


def _write(graphs: Iterable[Graph], directory: Path, settings: dict[str, Any], progress: Callable[[str], None]) -> None:
    records: list[dict[str, Any]] = []
    checksum = hashlib.sha256()
    with (directory / "arrays.bin").open("wb") as file:
        for graph in graphs:
            cut = segment(graph, **settings)
            try:
                arrays = {key: _append(file, getattr(cut, key), checksum) for key in ARRAYS}
            except OSError as error:
                message = (
                    f"cannot write a store in {directory.parent}: {error.strerror}; make room or give another place"
                )
                raise OSError(error.errno, message) from error
            records.append({key: getattr(cut, key) for key in SCALARS} | {"arrays": arrays})
            progress(graph.name)
        size = file.tell()
    meta = {
        "schema": SCHEMA,
        "settings": settings,
        "bytes": size,
        "sha256": checksum.hexdigest(),
        "graphs": records,
    }
    (directory / "meta.json").write_text(json.dumps(meta))


def _append(file: BinaryIO, array: np.ndarray, checksum: Any) -> dict[str, Any]:
    file.write(b"\0" * (-file.tell() % ALIGNMENT))
    offset = file.tell()
    data = np.ascontiguousarray(array)
    file.write(data.data.cast("B") if data.size else b"")
    checksum.update(data.data.cast("B") if data.size else b"")
    return {"offset": offset, "shape": list(data.shape), "dtype": data.dtype.str}


def open_store(directory: Path) -> list[SegmentedGraph]:
    """The graphs of a store, their arrays memory-mapped and read-only.

    Raises:
        ValueError: it is no store, one of another version, or shorter than it says.
    """
    try:
        meta = json.loads((directory / "meta.json").read_text())
        if meta["schema"] != SCHEMA:
            raise ValueError(f"{directory} has schema {meta['schema']}, this version reads {SCHEMA}; prepare it again")
        size = (directory / "arrays.bin").stat().st_size
        if size != meta["bytes"]:
            raise ValueError(
                f"{directory}/arrays.bin holds {size} bytes, meta.json says {meta['bytes']}; prepare it again"
            )
        data = np.memmap(directory / "arrays.bin", np.uint8, "r")
        return [_open_graph(record, data) for record in meta["graphs"]]
    except (KeyError, TypeError, ValueError, OSError) as error:
        if str(directory) in str(error) and isinstance(error, ValueError):
            raise
        raise ValueError(f"{directory} is no segment store ({error}); make one with `gst prepare`") from error


def _open_graph(record: dict[str, Any], data: np.ndarray) -> SegmentedGraph:
    def view(entry: dict[str, Any]) -> np.ndarray:
        dtype = np.dtype(entry["dtype"])
        if dtype.hasobject:
            raise ValueError("a store holds numbers only; this one asks for objects")
        length = int(np.prod(entry["shape"], dtype=np.int64)) * dtype.itemsize
        return data[entry["offset"] : entry["offset"] + length].view(dtype).reshape(entry["shape"])

    values: dict[str, Any] = {key: record[key] for key in SCALARS}
    return SegmentedGraph(**values | {key: view(record["arrays"][key]) for key in ARRAYS})


def verify(directory: Path) -> None:
    """Read everything once and compare checksums; ValueError if a byte changed."""
    checksum = hashlib.sha256()
    for graph in open_store(directory):
        for key in ARRAYS:
            array = getattr(graph, key)
            checksum.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    if checksum.hexdigest() != json.loads((directory / "meta.json").read_text())["sha256"]:
        raise ValueError(
            f"{directory} was changed since it was written (checksums differ); delete it and prepare it again"
        )
