"""Partition many graphs at once, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from jaxtyping import Int64

from gst.graphs.cutting import Job
from partitioners import partition_cached

PATIENCE = 1.0  # seconds of partitioning before processes are worth their start

Parts = Int64[np.ndarray, " nodes"]


class Partitioning:
    """Answers jobs with `method` and `seed`. Use it as a context manager; its processes live until it is left.

    METIS draws from one generator per process and numba holds locks, so processes, not threads; and neither forked
    from a process that runs torch nor started through `multiprocessing`, which would run an unguarded script again.

    Args:
        workers: processes at most; 1 answers here.
        cache: directory of earlier answers.
    """

    def __init__(self, method: str, seed: int, workers: int, cache: Path) -> None:
        self.method, self.seed, self.workers, self.cache = method, seed, workers, cache
        self._spent = 0.0
        self._threads = ThreadPoolExecutor(workers)
        self._of_thread = threading.local()
        self._processes: list[tuple[subprocess.Popen[bytes], Connection]] = []

    def __enter__(self) -> Partitioning:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for process, _ in self._processes:
                process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process, connection in self._processes:
            connection.close()
            process.wait()

    def submit(self, job: Job) -> Future[Parts]:
        arguments = (self.cache, *job)
        options: dict[str, Any] = {"method": self.method, "seed": self.seed}
        if self.workers > 1 and self._spent > PATIENCE:
            return self._threads.submit(self._ask, arguments, options)
        started = time.monotonic()
        answer: Future[Parts] = Future()
        answer.set_result(partition_cached(*arguments, **options))
        self._spent += time.monotonic() - started
        return answer

    def _ask(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> Parts:
        """On a thread: have its process answer."""
        if not hasattr(self._of_thread, "connection"):
            self._of_thread.connection = self._start()
        connection: Connection = self._of_thread.connection
        try:
            connection.send((arguments, options))
            answer = connection.recv()
        except (EOFError, OSError) as error:
            message = "a process that partitions died, perhaps for want of memory; use fewer workers or smaller blocks"
            raise ChildProcessError(message) from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _start(self) -> Connection:
        ours, theirs = Pipe()
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        process = subprocess.Popen(
            [sys.executable, "-m", "gst.graphs.store.partitioning", str(theirs.fileno())],
            pass_fds=[theirs.fileno()], env=os.environ | {"PYTHONPATH": path},
        )  # fmt: skip
        theirs.close()
        self._processes.append((process, ours))
        return ours


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C too, and hangs up
    connection: Connection = Connection(int(sys.argv[1]))
    while True:
        try:
            arguments, options = connection.recv()
        except (EOFError, OSError):
            return
        try:
            answer: Any = partition_cached(*arguments, **options)
        except Exception as error:
            answer = error
        connection.send(answer)


if __name__ == "__main__":
    main()
