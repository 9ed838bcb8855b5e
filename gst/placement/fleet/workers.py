"""Measurement of plans on hosts of one kind: a pool of workers, and a second attempt for plans of lost ones."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from gst.execution.isolated import START_LIMIT_S
from gst.execution.measure import Measurement
from gst.lowering.costs import Costs
from gst.lowering.plan import Plan, RunsInTurns
from gst.machine.devices import Device, least_memory_limit
from gst.placement.fleet.cluster import Kind, end_workers, replacement_worker
from gst.placement.fleet.host import RemoteWorker, WorkerLost, digest_of, pack
from gst.placement.objectives import Batches
from gst.programs import Program

Worker = TypeVar("Worker")
Answer = TypeVar("Answer")


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


SLACK_S = 60.0  # of every limit
LOST = "lost worker: "


@dataclass(eq=False)
class _Job:
    """Plans that are measured alternately; `attempts` counts the attempts so far."""

    plans: Sequence[Plan]
    attempts: int = 0
    answer: Future[list[Measurement]] = field(default_factory=Future)


class Attempts(Generic[Worker]):
    """Gives jobs to the workers of a pool. If a worker is lost, its plans are measured one by one, once each, as one of
    them may be at fault.

    Args:
        pool: of workers, entered.
        measure: measures plans alternately on a worker; raises `WorkerLost`.
        lost: returns the measurement of a plan that lost two workers.
    """

    def __init__(
        self,
        pool: Pool[Worker],
        measure: Callable[[Worker, Sequence[Plan]], list[Measurement]],
        lost: Callable[[Plan, WorkerLost], Measurement],
    ) -> None:
        self._pool, self._measure, self._lost = pool, measure, lost
        self._lock = threading.RLock()

    def submit(self, plans: Sequence[Plan]) -> Future[list[Measurement]]:
        """Measure plans alternately; see `FleetWorkers.submit`."""
        job = _Job(plans)
        self._begin(job)
        return job.answer

    def _begin(self, job: _Job, first: bool = False) -> None:
        job.attempts += 1
        attempt = self._pool.call(lambda worker: self._measure(worker, job.plans), first)
        attempt.add_done_callback(partial(self._settle, job))

    def _settle(self, job: _Job, attempt: Future[list[Measurement]]) -> None:
        """End the job of an attempt that ended, or begin another attempt."""
        if attempt.cancelled():
            job.answer.cancel()
        elif (error := attempt.exception()) is None:
            job.answer.set_result(attempt.result())
        elif not isinstance(error, WorkerLost):
            job.answer.set_exception(error)
        elif job.attempts > 1:
            job.answer.set_result([self._lost(plan, error) for plan in job.plans])
        else:
            self._one_by_one(job)

    def _one_by_one(self, job: _Job) -> None:
        jobs = [_Job([plan], attempts=1) for plan in job.plans]
        pending = {each.answer for each in jobs}

        def one_is_done(answer: Future[list[Measurement]]) -> None:
            with self._lock:
                pending.remove(answer)
                if pending:
                    return
                try:
                    job.answer.set_result([each.answer.result()[0] for each in jobs])
                except BaseException as error:
                    job.answer.set_exception(error)

        for each in jobs:
            each.answer.add_done_callback(one_is_done)
            self._begin(each, first=True)


Answer = TypeVar("Answer")


class FleetWorkers:
    """Processes on hosts of one kind that run plans of one program. Use it as a context manager.

    A worker that is lost, or exceeds the limits of its runs, is replaced on its host or on a newer one of the kind. Its
    plans are measured once more. A plan that loses a second worker has the outcome 'failed', with a reason that begins
    with `lost worker: `.

    Args:
        kind: of hosts; its workers are used up.
        program: sent in its saved form (`Program.save`) through Ray's object store.
        devices: of that kind, which plans may name.
        time_limit_s: of each run, see `IsolatedExecutor`.
        repetitions, warmup: of each measurement, see `gst.execution.measure.measure`.
        patience_s: seconds that a host waits for quiet cores.
    """

    def __init__(
        self, kind: Kind, program: Program, devices: Sequence[Device], time_limit_s: float = 60.0,
        repetitions: int = 5, warmup: int = 1, patience_s: float = 20.0,
    ) -> None:  # fmt: skip
        self.kind, self.program, self.devices = kind, program, tuple(devices)
        self._time_limit_s, self._patience_s = time_limit_s, patience_s
        self._settings = {"repetitions": repetitions, "warmup": warmup, "patience_s": patience_s}
        self._free: list[RemoteWorker | str] = list(kind.workers)  # or Ray's identity of a host where one was lost
        self._pool = Pool(self._worker, len(kind.workers))
        self._attempts = Attempts(self._pool, self._measure, self._lost)

    def __enter__(self) -> Self:
        import ray

        files = pack(self.program)
        limits = {"memory_limit": least_memory_limit(self.devices), "time_limit_s": self._time_limit_s}
        self._request = {"digest": digest_of(files), "devices": [device.name for device in self.devices], **limits}
        self._files = ray.put(files)
        self._pool.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kind.stopping.set()
        self._pool.__exit__(kind, error, trace)
        end_workers(worker for worker in self._free if isinstance(worker, RemoteWorker))

    def costs(self, repetitions: int = 5) -> Costs:
        """See `IsolatedExecutor.costs`; measured on one of the hosts."""
        return self._with_retry(lambda worker: worker.costs(self.program, self.devices, repetitions, self._patience_s))

    def timelines(self, plans: Sequence[Plan], repetitions: int = 3) -> RunsInTurns:
        """See `IsolatedExecutor.timelines`; recorded on one of the hosts."""
        return self._with_retry(lambda worker: worker.timelines(plans, repetitions))

    def groups(self, plan: Plan) -> dict[int, float]:
        """See `IsolatedExecutor.groups`; measured on one of the hosts."""
        return self._with_retry(lambda worker: worker.groups(plan))

    def measure_with_steps(
        self, plans: Sequence[Plan], repetitions: int, warmup: int, skip_reason: str
    ) -> list[Measurement]:
        """Measure plans and the step as written and compiled, which come last, alternately on one host.

        Raises:
            ValueError: two workers were lost meanwhile.
        """
        settings = {**self._settings, "repetitions": repetitions, "warmup": warmup, "with_steps": skip_reason}
        limit_s = 3 * START_LIMIT_S + len(plans) * (START_LIMIT_S + self._time_limit_s)  # each may have to be compiled
        return self._with_retry(lambda worker: self._with_host(worker, worker.measure(plans, settings, limit_s)))

    def measure_batches(self, batches: Batches) -> Iterator[tuple[int, list[Measurement]]]:
        """See `gst.placement.objectives.Measurer`."""
        positions = {self.submit(plans): position for position, plans in enumerate(batches)}
        for future in as_completed(positions):
            yield positions[future], future.result()

    def submit(self, plans: Sequence[Plan]) -> Future[list[Measurement]]:
        """Measure plans alternately when a worker is free; a plan that fails, or loses two workers, has an outcome. The
        `machine` of a measurement includes its `kind` and its `host`."""
        return self._attempts.submit(plans)

    def _measure(self, worker: RemoteWorker, plans: Sequence[Plan]) -> list[Measurement]:
        settings = {**self._settings, "with_steps": None}
        return self._with_host(worker, worker.measure(plans, settings, self._limit_s(plans)))

    def _limit_s(self, plans: Sequence[Plan]) -> float:
        """Return the limit of some plans: their runs, compilation of fused groups, and the wait for quiet cores."""
        compiling = START_LIMIT_S * sum(plan.fusion is not None for plan in plans)
        runs = len(plans) * (1 + self._settings["warmup"] + self._settings["repetitions"])  # the first is compared
        return SLACK_S + self._patience_s + compiling + runs * self._time_limit_s

    def _with_host(self, worker: RemoteWorker, measurements: Sequence[Measurement]) -> list[Measurement]:
        host = {"kind": self.kind.key, "host": worker.host}
        return [replace(each, machine={**each.machine, **host}) for each in measurements]

    def _lost(self, plan: Plan, lost: WorkerLost) -> Measurement:
        nan, now = float("nan"), datetime.now(UTC).isoformat(timespec="seconds")
        machine = {**self.kind.machine, "kind": self.kind.key}
        reason = f"{LOST}{lost}, a second time"
        return Measurement(f"0:{plan.key}", plan.key, (), nan, nan, nan, "failed", reason, machine=machine, time=now)

    def _with_retry(self, ask: Callable[[RemoteWorker], Answer]) -> Answer:
        with suppress(WorkerLost):
            return self._pool.call(ask).result()
        try:
            return self._pool.call(ask).result()
        except WorkerLost as lost:
            raise ValueError(f"{LOST}{lost}, a second time") from lost

    @contextmanager
    def _worker(self) -> Iterator[RemoteWorker]:
        place = self._free.pop()
        try:
            worker = replacement_worker(self.kind, place) if isinstance(place, str) else place
        except WorkerLost as lost:
            self._free.append(place)
            raise NoWorker(f"{lost}; go on with --resume when one is") from lost
        try:
            key = worker.begin(self._request, self._files)["key"]
            if key != self.program.key:
                raise ValueError(f"program {key} runs on host {worker.host}, {self.program.key} was sent; update it")
            yield worker
        finally:
            worker.end()
            self._free.append(worker.node)
