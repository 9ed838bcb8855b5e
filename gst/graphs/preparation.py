"""Preparation of a store: processes partition several graphs at once, and their segments are written in order."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from gst.graphs.graph import Graph
from gst.graphs.parts import Part
from gst.graphs.segments import ARRAYS, Cutting, Job
from gst.util.arrays import ArrayWriter, Record
from gst.util.process import Child, ChildFailed, connect
from partitioners import METHODS, partition

PATIENCE = 1.0  # seconds of partitioning before processes are worth their start

Parts = Int64[np.ndarray, " nodes"]


class Preparation:
    """Context manager that takes the graphs of a dataset in order and writes their segments.

    As many graphs are held as are being partitioned; of one with more than `block_nodes` nodes only its own arrays.

    Args:
        directory: an empty one, or one of a killed preparation: its graphs are only compared with those given.
        settings: `max_nodes`, `method`, `halo`, `seed` and `block_nodes` of `gst.segment`.
        progress: called with the name of each graph once it is written.
    """

    def __init__(
        self, directory: Path, settings: dict[str, Any], workers: int, progress: Callable[[str], None]
    ) -> None:
        self.directory, self.settings, self.workers, self.progress = directory, settings, workers, progress
        self._scratch = directory / "scratch"
        self._writer = ArrayWriter(directory, ARRAYS)
        self._partitioning = Partitioning(settings["method"], settings["seed"], workers)
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

    def __exit__(self, kind: Any, *error: Any) -> None:
        self._exit(kind, *error)

    def add(self, graph: Graph | Part) -> None:
        """Write the segments of `graph`, now or a little later; those of a part are copied."""
        position = self._added
        self._added += 1
        record = {"name": graph.name, "num_nodes": graph.num_nodes, "digest": graph.digest()}
        if position < self._resumed:
            if record.items() <= self._writer.finished[position].items():
                self.progress(graph.name)
                return
            self._writer.keep(position)
            self._resumed = position
        if isinstance(graph, Part):
            self._finish(graph.record, lambda: {"arrays": graph.write(self._writer)})
            return
        max_nodes, halo, block_nodes = (self.settings[key] for key in ("max_nodes", "halo", "block_nodes"))
        scratch = self._scratch / str(position) if graph.num_nodes > block_nodes else None
        if scratch is not None:
            scratch.mkdir(parents=True)
        cut = Cutting(graph, max_nodes, halo, block_nodes, scratch)
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

    def _take(self) -> None:
        """Wait for the partition asked for first, and write its graph if it was the last one of that."""
        cut, record, parts = self._waiting.popleft()
        cut.assign(parts.result())
        if not cut.assigned:
            return

        def write() -> Record:
            arrays = self._writer.write(cut.pieces())
            return {"edge_cut": cut.edge_cut, "blocks": cut.num_blocks, "arrays": arrays}

        self._finish(record, write)
        if cut.scratch is not None:
            shutil.rmtree(cut.scratch, ignore_errors=True)  # what is mapped stays a while on NFS; `finish` takes it

    def _finish(self, record: Record, write: Callable[[], Record]) -> None:
        try:
            self._writer.finish(record | write())
        except OSError as error:
            place = self.directory.parent
            message = f"cannot write a store in {place}: {error.strerror}; make room or give another place"
            raise OSError(error.errno, message) from error
        self.progress(record["name"])


class Partitioning:
    """Context manager that answers jobs with `method` and `seed`, in at most `workers` processes; 1 answers here.

    METIS draws from one generator per process and numba holds locks, so processes, not threads; and neither forked
    from a process that runs torch nor started through `multiprocessing`, which would run an unguarded script again.
    """

    def __init__(self, method: str, seed: int, workers: int) -> None:
        self.method, self.seed, self.workers = method, seed, workers if _can_travel(method) else 1
        self._spent = 0.0
        self._threads = ThreadPoolExecutor(workers)
        self._of_thread = threading.local()
        self._children: list[Child] = []

    def __enter__(self) -> Partitioning:
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        if kind is not None:
            for child in self._children:
                child.process.kill()
        self._threads.shutdown(cancel_futures=True)
        for child in self._children:
            child.end()

    def submit(self, job: Job) -> Future[Parts]:
        """Answer one job, here or in a process."""
        options: dict[str, Any] = {"method": self.method, "seed": self.seed}
        if self.workers > 1 and self._spent > PATIENCE:
            return self._threads.submit(self._ask, job, options)
        started = time.monotonic()
        answer: Future[Parts] = Future()
        answer.set_result(partition(*job, **options))
        self._spent += time.monotonic() - started
        return answer

    def _ask(self, job: Job, options: dict[str, Any]) -> Parts:
        """On a thread: have its process answer."""
        if not hasattr(self._of_thread, "child"):
            path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
            self._of_thread.child = Child("gst.graphs.preparation", (), os.environ | {"PYTHONPATH": path})
            self._children.append(self._of_thread.child)
        try:
            answer = self._of_thread.child.ask((job, METHODS.get(self.method), options))
        except ChildFailed as error:
            message = f"a process that partitions {error}; use fewer workers or smaller blocks"
            raise ChildProcessError(message) from error
        if isinstance(answer, Exception):
            raise answer
        return answer


def _can_travel(method: str) -> bool:
    """Return True if another process can import the function of a method."""
    try:
        pickle.dumps(METHODS.get(method))
    except (pickle.PicklingError, AttributeError):
        return False
    return getattr(METHODS.get(method), "__module__", "") != "__main__"


def main() -> None:
    connection, _ = connect()
    while True:
        try:
            job, method, options = connection.recv()
        except (EOFError, OSError):
            return
        try:
            if method is not None:  # registered in the parent
                METHODS.setdefault(options["method"], method)
            answer: Any = partition(*job, **options)
        except Exception as error:
            answer = error
        connection.send(answer)


if __name__ == "__main__":
    main()
