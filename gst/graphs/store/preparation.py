"""Graph after graph into the files of a store: partition several at once, write them in order, go on after a kill."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any

from gst.files.arrays import ArrayWriter, Record
from gst.graphs.cutting import Cutting
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph
from gst.graphs.store.partitioning import Partitioning, Parts

SCALARS = ("name", "num_nodes", "edge_cut")
ARRAYS = tuple(field.name for field in fields(SegmentedGraph) if field.name not in SCALARS)


class Preparation:
    """Takes the graphs of a dataset in order and writes their segments. A context manager.

    As many graphs are held as are being partitioned; of one with more than `block_nodes` nodes only its own arrays.

    Args:
        directory: an empty one, or what a killed preparation left: graphs that stand there already, in the same order,
            are only compared with what is given.
        settings: `max_nodes`, `method`, `halo`, `seed` and `block_nodes` of `gst.segment`.
        cache: directory of partitions made earlier.
        workers: processes that partition.
        progress: called with the name of each graph once it is written.
    """

    def __init__(
        self, directory: Path, settings: dict[str, Any], cache: Path, workers: int, progress: Callable[[str], None]
    ) -> None:
        self.directory, self.settings, self.workers, self.progress = directory, settings, workers, progress
        self._scratch = directory / "scratch"
        self._writer = ArrayWriter(directory, ARRAYS)
        self._partitioning = Partitioning(settings["method"], settings["seed"], workers, cache)
        self._added = 0
        self._resumed = len(self._writer.finished)
        self._waiting: deque[tuple[Cutting, Record, Future[Parts]]] = deque()

    def __enter__(self) -> Preparation:
        shutil.rmtree(self._scratch, ignore_errors=True)
        with ExitStack() as stack:
            stack.enter_context(self._writer)
            stack.enter_context(self._partitioning)
            self._exit = stack.pop_all().__exit__
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit(kind, error, trace)

    def add(self, graph: Graph) -> None:
        """Write the segments of `graph`, now or a little later."""
        position = self._added
        self._added += 1
        record = {"name": graph.name, "num_nodes": graph.num_nodes, "digest": graph.digest()}
        if position < self._resumed:
            if record.items() <= self._writer.finished[position].items():
                self.progress(graph.name)
                return
            self._writer.keep(position)
            self._resumed = position
        cut = self._cutting(graph, position)
        for job in cut.jobs():
            self._waiting.append((cut, record, self._partitioning.submit(job)))
            while self._waiting and (len(self._waiting) > self.workers or self._waiting[0][2].done()):
                self._take()

    def finish(self) -> tuple[list[Record], dict[str, int]]:
        """The records of all graphs, and the bytes of each file."""
        while self._waiting:
            self._take()
        shutil.rmtree(self._scratch, ignore_errors=True)
        if self._added < self._resumed:
            self._writer.keep(self._added)
        return self._writer.finished, self._writer.sizes()

    def _cutting(self, graph: Graph, position: int) -> Cutting:
        max_nodes, halo, block_nodes = (self.settings[key] for key in ("max_nodes", "halo", "block_nodes"))
        if graph.num_nodes <= block_nodes:
            return Cutting(graph, max_nodes, halo, block_nodes)
        scratch = self._scratch / str(position)
        scratch.mkdir(parents=True)
        return Cutting(graph, max_nodes, halo, block_nodes, scratch)

    def _take(self) -> None:
        """Wait for the partition asked for first, and write its graph if it was the last one of that."""
        cut, record, parts = self._waiting.popleft()
        cut.assign(parts.result())
        if not cut.assigned:
            return
        try:
            arrays = self._writer.write(cut.pieces())
            self._writer.finish(record | {"edge_cut": cut.edge_cut, "blocks": cut.num_blocks, "arrays": arrays})
        except OSError as error:
            place = self.directory.parent
            message = f"cannot write a store in {place}: {error.strerror}; make room or give another place"
            raise OSError(error.errno, message) from error
        if cut.scratch is not None:
            shutil.rmtree(cut.scratch, ignore_errors=True)  # what is mapped stays a while on NFS; `finish` takes it
        self.progress(record["name"])
