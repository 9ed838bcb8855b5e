"""Pool of workers that take jobs from one queue, and are replaced if they are lost."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

Worker = TypeVar("Worker")
Answer = TypeVar("Answer")


class WorkerLost(Exception):
    """A worker failed, rather than its request; the message has the reason."""


class NoWorker(WorkerLost):
    """No other worker is available."""


class Pool(Generic[Worker]):
    """Threads that drive one worker each and take jobs from one queue. Use it as a context manager.

    A lost worker is replaced. A thread without a replacement ends and leaves its job to the others; when the last one
    ends, all remaining jobs fail.

    Args:
        make: makes a worker, which a thread enters and keeps; raises `NoWorker` if none is available.
        count: number of threads.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Worker]], count: int) -> None:
        if count < 1:
            raise ValueError(f"count is {count}; measuring needs at least one worker")
        self._make = make
        self._jobs: deque[tuple[Callable[[Worker], Any], Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._num_busy, self._num_threads, self._closed, self._reason = 0, count, False, ""
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for all jobs; after an error only for those that have begun, and the others are cancelled."""
        with self._changed:
            self._closed = True
            dropped = [answer for _, answer in self._jobs] if kind is not None else []
            if kind is not None:
                self._jobs.clear()
            self._changed.notify_all()
        for answer in dropped:
            answer.cancel()
        for thread in self._threads:
            thread.join()

    def call(self, work: Callable[[Worker], Answer], first: bool = False) -> Future[Answer]:
        """Do `work` when a worker is free, before all other jobs if `first`. The future raises the exception of `work`,
        or ValueError if no worker is available any more."""
        answer: Future[Answer] = Future()
        with self._changed:
            is_lost = self._num_threads == 0
            if not is_lost:
                (self._jobs.appendleft if first else self._jobs.append)((work, answer))
                self._changed.notify()
        if is_lost:
            answer.set_exception(ValueError(self._reason))
        return answer

    def _take(self) -> tuple[Callable[[Worker], Any], Future[Any]] | None:
        """Take the next job; None if there is none and none can come back from a lost worker."""
        with self._changed:
            while not self._jobs:
                if self._closed and not self._num_busy:
                    return None
                self._changed.wait()
            self._num_busy += 1
            return self._jobs.popleft()

    def _done(self) -> None:
        with self._changed:
            self._num_busy -= 1
            self._changed.notify_all()

    def _work(self) -> None:
        worker: Worker | None = None
        with ExitStack() as stack:
            while (job := self._take()) is not None:
                work, answer = job
                try:
                    if worker is None:
                        worker = stack.enter_context(self._make())
                    if answer.set_running_or_notify_cancel():
                        answer.set_result(work(worker))
                except NoWorker as none:
                    self._end_thread(str(none), job)
                    return
                except WorkerLost as lost:
                    stack.close()
                    answer.set_exception(lost)
                    worker = self._another(stack)
                except BaseException as error:
                    answer.set_exception(error)
                finally:
                    self._done()

    def _another(self, stack: ExitStack) -> Worker | None:
        """Replace a lost worker before the next job, after other threads took lost jobs; None if that fails or no job
        is left."""
        try:
            return stack.enter_context(self._make()) if self._jobs else None
        except Exception:
            return None

    def _end_thread(self, reason: str, job: tuple[Callable[[Worker], Any], Future[Any]]) -> None:
        with self._changed:
            self._num_threads -= 1
            self._reason = reason
            self._jobs.appendleft(job)
            left = [] if self._num_threads else [answer for _, answer in self._jobs]
            if left:
                self._jobs.clear()
        for answer in left:
            answer.set_exception(ValueError(reason))
