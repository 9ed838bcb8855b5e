"""The segment store: a directory of memory-mapped arrays holding every segmented graph of a dataset.

A store is written under another name and moved to its place whole, named by its content, so it is either complete or
absent. A killed preparation leaves `.partial-...`, and the next one of the same graphs goes on there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gst.graphs.graph import Graph, from_pyg, is_pyg, trouble_with
from gst.graphs.index import (
    INDEX,
    RECORDS,
    SCHEMA,
    check_records,
    checksum_of,
    contents,
    read_index,
    record_of,
    write_index,
)
from gst.graphs.parts import Part, Parts
from gst.graphs.preparation import Preparation
from gst.graphs.remote import open_files, publish
from gst.graphs.segments import BLOCK_NODES, SCALARS, SegmentedGraph, from_arrays, opened_later
from gst.util.addresses import Address, details, place, write_object
from gst.util.arrays import as_bytes, decoded, map_files, shortened, view
from gst.util.copies import local_copy
from gst.util.untrusted import plain, shown
from gst.util.writing import atomic_write, cache_directory, locked_file

DTYPES = {
    "owned_counts": np.int64, "row_ptr": np.int64, "edge_ptr": np.int64, "config_ptr": np.int64, "node_ids": np.int64,
    "opcodes": np.int32, "edges": np.int32, "config_rows": np.int32,
    "config_columns": np.int32, "targets": np.float64, "counts": np.int64, "spreads": np.float64,
}  # fmt: skip
"""Of each array of a `SegmentedGraph`, but for features and data of nodes and edges, and for `config_features`, which
are of int8 or float32."""

READ_WHOLE = ("records", "owned_counts", "row_ptr", "edge_ptr", "config_ptr", "targets", "counts", "spreads")
"""Files that are read when a store behind an address is opened."""


def prepare(
    graphs: Iterable[Graph | Any],
    root: Path | str,
    max_nodes: int = 1000,
    method: str = "metis",
    halo: int = 0,
    seed: int = 0,
    progress: Callable[[str], None] = lambda name: None,
    block_nodes: int = BLOCK_NODES,
    workers: int | str | None = None,
) -> Path | Address:
    """Cut `graphs` into segments and write them as a store under `root`, a folder or an address; returns its directory.

    Graphs are read one after the other and never all held; an iterator is held whole: give a `gst.data.GraphSource`,
    or an object with `__iter__`, for graphs that are larger than memory. A graph with more than `block_nodes` nodes is
    cut and written in pieces, so that memory does not grow with it if its own arrays are memory-mapped.

    Args:
        graphs: `Graph`s, or PyG's `Data`; read until they differ from all stores that are there. If they have a method
            `fingerprint() -> str`, which changes with any graph ("" if unknown), graphs of a known store are not read.
        max_nodes, method, halo, seed, block_nodes: see `gst.segment`.
        progress: called with the name of each graph once it is written.
        workers: processes that partition, one per core if not given; or `ray`, or `ray://HOST:PORT`, hosts of a Ray
            cluster, which read and cut the graphs of a `GraphSource` with `items()` and `load(item)`, and write them
            beside the store, in a folder that they share or at an address. The result is the same.

    Raises:
        ValueError: there are no graphs, or two share a name; a cluster does not answer.
        OSError: the disk is full; nothing is left behind.
    """
    root = place(root)
    if isinstance(graphs, Iterator):
        graphs = list(graphs)  # they may be gone over twice
    settings: dict[str, Any] = {
        "max_nodes": max_nodes, "method": method, "halo": halo, "seed": seed, "block_nodes": block_nodes,
    }  # fmt: skip
    if isinstance(workers, str):
        parts = Parts(graphs, root, workers, prepare, settings)
        directory = prepare(parts, root, progress=progress, workers=1, **settings)
        parts.remove()
        return directory
    fingerprint = getattr(graphs, "fingerprint", str)()
    if isinstance(root, Address):
        here = lambda folder: prepare(graphs, folder, progress=progress, workers=workers, **settings)  # noqa: E731
        return _prepare_at(root, graphs, settings, fingerprint, here)
    if fingerprint:
        key = _digest(settings, [fingerprint])
        note = root / "sources" / key
        name = note.read_text() if note.is_file() else ""
    else:
        key, name = _compare(root, settings, graphs)
    if name and (root / name).is_dir():
        return root / name
    named = _named(graphs)
    readable = chain([next(named)], named)  # the first is read now: if that cannot be, nothing has been touched yet
    with _workplace(root, key) as unfinished:
        workers = workers or len(os.sched_getaffinity(0))
        with Preparation(unfinished, settings, workers, progress) as preparation:
            for graph in readable:
                preparation.add(graph)
            records, sizes = preparation.finish()
        write_index(unfinished, settings, records, sizes)
        final = root / _digest(settings, [f"{record['name']} {record['digest']}" for record in records])
        try:
            unfinished.rename(final)
        except OSError:
            if not final.is_dir():  # else another process was faster
                raise
    if fingerprint:
        with atomic_write(note) as file:
            file.write(final.name)
    return final


def _prepare_at(
    root: Address, graphs: Iterable[Graph | Any], settings: dict[str, Any], fingerprint: str, here: Callable[..., Any]
) -> Address:
    """Prepare in a folder of the cache, where what is killed or cut off goes on, and copy the store to `root`."""
    note = root / "sources" / _digest(settings, [fingerprint])
    if not fingerprint:
        name = _digest(settings, [f"{graph.name} {graph.digest()}" for graph in _named(graphs)])
    else:
        name = local_copy(note).read_text() if details(note) is not None else ""
    folder = cache_directory() / "stores" / shortened(hashlib.sha256(root.encode()))
    if not name or details(root / name / INDEX) is None:
        name = here(folder).name
        try:
            publish(folder / name, root / name)
        except (FileNotFoundError, ValueError):  # another process of this machine was faster, and removed the files
            if (folder / name).is_dir() or details(root / name / INDEX) is None:
                raise
        if fingerprint:
            write_object(note, name.encode())
    shutil.rmtree(folder / name, ignore_errors=True)
    return root / name


def _named(graphs: Iterable[Graph | Any]) -> Iterator[Graph | Part]:
    names: set[str] = set()
    for each in graphs:
        graph = from_pyg(each) if is_pyg(each) else each
        if not isinstance(graph, Graph | Part):
            raise ValueError(f"a {type(graph).__name__} cannot be prepared; want graphs as gst.Graph, or PyG's Data")
        if graph.name in names:
            raise ValueError(f"two graphs are named {graph.name!r}; names must be unique within a dataset")
        names.add(graph.name)
        yield graph
    if not names:
        raise ValueError("there are no graphs to prepare; check the files or the pattern that names them")


def _digest(settings: dict[str, Any], contents: Iterable[str]) -> str:
    digest = hashlib.sha256(json.dumps({"schema": SCHEMA, **settings}, sort_keys=True).encode())
    for content in contents:
        digest.update(content.encode())
    return shortened(digest)


def _compare(root: Path, settings: dict[str, Any], graphs: Iterable[Graph | Any]) -> tuple[str, str]:
    """A key made from the first graph, and the name of the store that holds just these graphs, if there is one."""
    alike = dict(_stores(root, settings))
    read: list[str] = []
    for graph in _named(graphs):
        read.append(f"{graph.name} {graph.digest()}")
        alike = {name: contents for name, contents in alike.items() if contents[: len(read)] == read}
        if not alike:
            break
    return _digest(settings, read[:1]), next((name for name, contents in alike.items() if contents == read), "")


def _stores(root: Path, settings: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Name and contents of each readable store made with `settings`."""
    for path in root.glob("[!.]*/meta.json"):  # one that begins with a dot was killed before it got its name
        with suppress(ValueError, KeyError, TypeError):
            meta = read_index(path.parent)
            if meta["settings"] == settings:
                yield path.parent.name, contents(meta)


@contextmanager
def _workplace(root: Path, key: str) -> Iterator[Path]:
    """Yield a directory to write in, that of a killed preparation if there is one, and remove it afterwards."""
    root.mkdir(parents=True, exist_ok=True)
    path, killed, lock = root / f".lock-{key}", False, None
    with suppress(ValueError, OSError):  # another process writes there, or the file system has no locks
        lock = locked_file(path)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=root)) if lock is None else root / f".partial-{key}"
    try:
        partial.mkdir(exist_ok=True)
        yield partial
    except BaseException as error:  # a process that was killed for want of memory may have been the one that partitions
        killed = not isinstance(error, Exception) or isinstance(error, ChildProcessError)
        raise
    finally:
        if not killed or lock is None:
            shutil.rmtree(partial, ignore_errors=True)
        if lock is not None:
            path.unlink(missing_ok=True)
            lock.close()


def open_store(directory: Path | str, cache: float | None = None) -> list[SegmentedGraph]:
    """The graphs of a store, their arrays memory-mapped and read-only. A graph is opened when it is used.

    Arrays behind an address are read where they are indexed, by ranges of bytes, and this disk keeps copies of these.

    Args:
        cache: most GB of all copies, a tenth of the free disk by default. Those used longest ago are removed first.

    Raises:
        ValueError: it is no store, one of another version, or a file of it is missing, changed or cut short.
    """
    directory = place(directory)
    with _damage_named(directory):
        meta = read_index(directory)
        if isinstance(directory, Address):
            files = open_files(directory, meta, READ_WHOLE, None if cache is None else int(cache * 1e9))
        else:
            files = map_files(directory, meta["files"])
        check_records(meta, files["records"])
        names, ends = meta["graphs"]["names"], meta["graphs"]["ends"]
        _require(len(names) == len(ends) and len(names) > 0, f"{len(ends)} lines of {RECORDS} for {len(names)} graphs")
        return [opened_later(name, partial(_open_graph, directory, meta, files, i)) for i, name in enumerate(names)]


@contextmanager
def _damage_named(directory: Path | str) -> Iterator[None]:
    """Turn any error of reading a damaged store into one line that names it."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OSError, OverflowError, SyntaxError) as error:
        if str(directory) in str(error) and isinstance(error, ValueError):
            raise
        raise ValueError(f"{directory} is no segment store ({plain(error)}); make one with `gst prepare`") from error


def _open_graph(directory: Path | str, meta: dict[str, Any], files: dict[str, Any], number: int) -> SegmentedGraph:
    with _damage_named(directory):
        record = record_of(meta, files["records"], number)
        values: dict[str, Any] = {key: record[key] for key in SCALARS}
        arrays = {key: decoded(files[key], entry) for key, entry in record["arrays"].items()}
        graph = from_arrays(values, arrays | {"edges": view(files["edges"], record["arrays"]["edges"]).T})
        check_layout(graph)
    graph.checksums.update({key: entry.get("checksum", "") for key, entry in record["arrays"].items()})
    return graph


def verify(directory: Path) -> None:
    """Read everything once, compare checksums, and check every index: for a store of unknown origin.

    Raises:
        ValueError: `open_store` refuses it, a byte changed, or an index points nowhere; the message names the array.
    """
    with _damage_named(directory):
        meta = read_index(directory)
        _compare_checksums(directory, meta)
        for graph in open_store(directory):
            check_indices(graph)


def _compare_checksums(directory: Path, meta: dict[str, Any]) -> None:
    changed = "was changed since it was written (checksums differ)"
    advice = f"delete {directory} and prepare it again"
    if checksum_of(meta) != meta.get("checksum"):
        raise ValueError(f"{directory}/meta.json {changed}; {advice}")
    files = map_files(directory, meta["files"])
    check_records(meta, files["records"])
    for number in range(len(meta["graphs"]["names"])):
        record = record_of(meta, files["records"], number)
        for key, entry in record["arrays"].items():
            name = shown(record["name"])
            if shortened(hashlib.sha256(as_bytes(view(files[key], entry)))) != entry.get("checksum"):
                raise ValueError(f"{directory}/{key}.bin: {key} of graph {name} {changed}; {advice}")


# What readers of a store rely on, and may not find in a damaged one ---------------------------------------------------


def check_layout(graph: SegmentedGraph) -> None:
    """Raise ValueError for an array of wrong type or shape, without reading what is as long as the graph."""
    for name, dtype in DTYPES.items():
        if (own := getattr(graph, name).dtype) != dtype:
            raise ValueError(f"{name} is {own}, want {dtype.__name__}")
    features = graph.config_features
    _require(features.dtype in (np.int8, np.float32), f"config_features is {features.dtype}, want int8 or float32")
    _require(isinstance(graph.name, str) and type(graph.num_nodes) is int, "its name or its number of nodes is none")
    _require(isinstance(graph.edge_cut, float | int) and 0 <= graph.edge_cut <= 1, "its edge cut is no share")
    rows, uses, segments, configs = (
        graph.node_ids.size, graph.config_rows.size, graph.owned_counts.size, len(np.atleast_1d(graph.targets)),
    )  # fmt: skip
    shapes = {
        "owned_counts": (segments,), "node_ids": (rows,), "node_features": (rows, -1), "opcodes": (rows,),
        "edges": (2, -1), "config_rows": (uses,), "config_columns": (uses,), "config_features": (configs, -1, -1),
        "targets": (configs, *[-1] * (graph.targets.ndim > 1)), "counts": (configs,), "spreads": (configs,),
    }  # fmt: skip
    data = {
        **{f"node_data_{name}": (array, rows) for name, array in graph.node_data.items()},
        **{f"edge_data_{name}": (array, graph.edges.shape[-1]) for name, array in graph.edge_data.items()},
    }
    for name, (array, length) in data.items():
        _require(array.shape[:1] == (length,), f"{name} has shape {array.shape}, want ({length}, ...)")
    for name, array in (("node_features", graph.node_features), *((name, array) for name, (array, _) in data.items())):
        if problem := trouble_with(array.dtype):
            raise ValueError(f"{name} is {array.dtype}, {problem}")
    for name, shape in shapes.items():
        sizes = tuple(getattr(graph, name).shape)
        if len(sizes) != len(shape) or not all(want in (-1, got) for want, got in zip(shape, sizes, strict=True)):
            raise ValueError(f"{name} has shape {sizes}, want {shape}")
    for name, length in (("row_ptr", rows), ("edge_ptr", graph.edges.shape[1]), ("config_ptr", uses)):
        starts = np.asarray(getattr(graph, name))
        _require(starts.shape == (segments + 1,), f"{name} has shape {starts.shape}, want ({segments + 1},)")
        ordered = starts[0] == 0 and starts[-1] == length and bool((starts[1:] >= starts[:-1]).all())
        _require(ordered, f"{name} does not divide {length} entries among {segments} segments")
    owned = graph.owned_counts
    _require(bool((owned >= 0).all() and (owned <= np.diff(graph.row_ptr)).all()), "a segment owns more than it holds")
    _require(int(owned.sum()) == graph.num_nodes, f"its segments own {owned.sum()} nodes, want {graph.num_nodes}")


def check_indices(graph: SegmentedGraph) -> None:
    """Read all of the graph, segment by segment; raise ValueError for an index that points nowhere."""
    _require(_within(graph.node_ids, graph.num_nodes), "node_ids names a node that is not there")
    _require(_within(graph.opcodes, np.iinfo(np.int32).max), "opcodes holds negative numbers")
    columns = graph.config_features.shape[1]
    _require(_within(graph.config_columns, columns), f"config_columns names one of {columns} that is not there")
    for name, starts in (("edges", graph.edge_ptr), ("config_rows", graph.config_ptr)):
        indices = getattr(graph, name)
        for (start, end), size in zip(pairwise(starts.tolist()), np.diff(graph.row_ptr).tolist(), strict=True):
            inside = _within(indices[..., start:end], size)
            _require(inside, f"{name} names a row that is not in its segment, which has {size}")


def _within(indices: np.ndarray, count: int) -> bool:
    return not indices.size or bool(indices.min() >= 0 and indices.max() < count)


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(problem)
