"""Plans measured by workers that may be lost or slow: every plan is tried at most twice, and has one outcome."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Generic

from gst.devices import Measurement, Plan
from gst.placement.workers import Pool, Worker, WorkerLost

MUCH_LONGER = 10.0  # than the median of the others, and
SLACK_S = 10.0  # this on top: a straggler
NUM_KNOWN = 3  # measurements from which on the median says something


@dataclass(eq=False)
class _Job:
    """Plans that are measured in turns.

    Args:
        num_begun: attempts that were asked for.
        num_running: of these, those that have not ended.
    """

    plans: Sequence[Plan]
    num_begun: int = 0
    num_running: int = 0
    answer: Future[list[Measurement]] = field(default_factory=Future)


class Attempts(Generic[Worker]):
    """Gives jobs to the workers of a pool, and a second time to whoever is free first when

    - the worker was lost: then its plans are measured one by one, once each, as one of them may be to blame;
    - it takes `MUCH_LONGER` than the median of the others, and a worker is free: then whichever answers first counts, a
      backup task in the sense of MapReduce (Dean and Ghemawat, OSDI 2004, section 3.6), and the other worker is ended.

    Args:
        pool: of workers, entered.
        measure: has a worker measure plans in turns; `limit_s` is to be asked again and again how many seconds that may
            take, and when they have gone by `WorkerLost` is to be raised.
        lost: the outcome of a plan that lost two workers.
        allowed_s: seconds that some plans may take by the limits of their runs.
    """

    def __init__(
        self, pool: Pool[Worker], measure: Callable[[Worker, Sequence[Plan], Callable[[], float]], list[Measurement]],
        lost: Callable[[Plan, WorkerLost], Measurement], allowed_s: Callable[[Sequence[Plan]], float],
    ) -> None:  # fmt: skip
        self._pool, self._measure, self._lost, self._allowed_s = pool, measure, lost, allowed_s
        self._lock = threading.RLock()
        self._seconds: list[float] = []  # for each plan, of jobs that are done

    def submit(self, plans: Sequence[Plan]) -> Future[list[Measurement]]:
        """Measure plans in turns; see `FleetWorkers.submit`."""
        job = _Job(plans)
        self._begin(job)
        return job.answer

    def straggles_s(self, count: int) -> float:
        """Seconds after which a job of `count` plans is a straggler; infinite while too little is known."""
        if len(self._seconds) < NUM_KNOWN:
            return float("inf")
        return SLACK_S + MUCH_LONGER * count * statistics.median(self._seconds)

    def _begin(self, job: _Job, first: bool = False) -> None:
        with self._lock:
            job.num_begun += 1
            job.num_running += 1
        self._pool.call(partial(self._attempt, job), first).add_done_callback(partial(self._settle, job))

    def _attempt(self, job: _Job, worker: Worker) -> list[Measurement]:
        begun, count = time.monotonic(), len(job.plans)

        def limit_s() -> float:
            if job.answer.done():
                return 0.0
            if job.num_begun < 2 and time.monotonic() - begun > self.straggles_s(count):
                self._begin(job, first=True)
            return self._allowed_s(job.plans)

        if job.answer.done():
            return []
        seen = self._measure(worker, job.plans, limit_s)
        self._seconds.append((time.monotonic() - begun) / max(1, count))
        return seen

    def _settle(self, job: _Job, attempt: Future[list[Measurement]]) -> None:
        """What the end of an attempt means for its job."""
        with self._lock:
            job.num_running -= 1
            if job.answer.done():
                return
            if attempt.cancelled():
                job.answer.cancel()
            elif (error := attempt.exception()) is None:
                job.answer.set_result(attempt.result())
            elif not isinstance(error, WorkerLost):
                job.answer.set_exception(error)
            elif job.num_running:
                return  # the other attempt decides
            elif job.num_begun > 1 and len(job.plans) == 1:
                job.answer.set_result([self._lost(plan, error) for plan in job.plans])
            else:
                self._one_by_one(job)

    def _one_by_one(self, job: _Job) -> None:
        again = [_Job([plan], num_begun=1) for plan in job.plans]
        left = {each.answer for each in again}

        def one_is_done(answer: Future[list[Measurement]]) -> None:
            with self._lock:
                left.remove(answer)
                if left:
                    return
                try:
                    job.answer.set_result([each.answer.result()[0] for each in again])
                except BaseException as error:
                    job.answer.set_exception(error)

        for each in again:
            each.answer.add_done_callback(one_is_done)
            self._begin(each, first=True)
