"""Measurement of plans on hosts of one kind: a pool of workers, and a second attempt for plans of lost ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic, Self, TypeVar

from gst.execution.isolated import START_LIMIT_S
from gst.execution.measure import Measurement
from gst.lowering.calls import Costs
from gst.lowering.plan import Plan, RunsInTurns
from gst.machine.devices import Device, least_memory_limit
from gst.placement.fleet.cluster import Kind, end_workers, replacement_worker
from gst.placement.fleet.host import RemoteWorker, WorkerLost, digest_of, pack
from gst.placement.objectives import Batches
from gst.programs import Program

Worker = TypeVar("Worker")
Answer = TypeVar("Answer")
SLACK_S = 60.0  # of every limit
LOST = "lost worker: "


class NoWorker(WorkerLost):
    """No other worker is available."""


class Pool(Generic[Worker]):
    """Threads that share some workers. Use it as a context manager.

    A worker is made when it is needed, and kept. A lost one is replaced. If there is no replacement, the pool has one
    worker less; without any, all jobs fail.

    Args:
        make: makes a worker, which the pool enters and keeps; raises `NoWorker` if none is available.
        count: number of workers.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Worker]], count: int) -> None:
        self._make, self._executor = make, ThreadPoolExecutor(count)
        self._changed = threading.Condition()
        self._idle: list[tuple[Worker, ExitStack] | None] = [None] * count  # None: a worker that is not made yet
        self._num_places, self._reason = count, ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        """Wait for all jobs; after an error only for those that have begun, and the others are cancelled."""
        self._executor.shutdown(cancel_futures=kind is not None)
        for _, stack in filter(None, self._idle):
            stack.close()

    def submit(self, job: Callable[[], Answer]) -> Future[Answer]:
        """Do a job, which may `run` work, in one of the threads."""
        return self._executor.submit(job)

    def run(self, work: Callable[[Worker], Answer]) -> Answer:
        """Wait for a worker, and do `work` with it.

        Raises:
            WorkerLost: the worker was lost meanwhile.
            ValueError: no worker is available any more.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._idle or not self._num_places)
                if not self._num_places:
                    raise ValueError(self._reason)
                place = self._idle.pop()
            try:
                if place is None:
                    stack = ExitStack()
                    place = stack.enter_context(self._make()), stack
                answer = work(place[0])
            except NoWorker as none:
                with self._changed:
                    self._num_places, self._reason = self._num_places - 1, str(none)
                    self._changed.notify_all()
                continue
            except WorkerLost:
                if place is not None:
                    place[1].close()
                self._put(None)
                raise
            except BaseException:
                self._put(place)
                raise
            self._put(place)
            return answer

    def _put(self, place: tuple[Worker, ExitStack] | None) -> None:
        with self._changed:
            self._idle.append(place)
            self._changed.notify()


def attempt(
    pool: Pool[Worker], measure: Callable[[Worker, Sequence[Plan]], list[Measurement]],
    lost: Callable[[Plan, WorkerLost], Measurement], plans: Sequence[Plan],
) -> list[Measurement]:  # fmt: skip
    """Measure plans alternately on a worker of a pool. If it is lost, measure them one by one, once each: one of them
    may be at fault.

    Args:
        measure: measures plans on a worker; raises `WorkerLost`.
        lost: returns the measurement of a plan that lost two workers.
    """
    with suppress(WorkerLost):
        return pool.run(lambda worker: measure(worker, plans))

    def again(plan: Plan) -> Measurement:
        try:
            return pool.run(lambda worker: measure(worker, [plan]))[0]
        except WorkerLost as error:
            return lost(plan, error)

    return [again(plan) for plan in plans]


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

    def __enter__(self) -> Self:
        import ray

        files = pack(self.program)
        limits = {"memory_limit": least_memory_limit(self.devices), "time_limit_s": self._time_limit_s}
        self._request = {"digest": digest_of(files), "devices": [device.name for device in self.devices], **limits}
        self._files = ray.put(files)
        self._pool.__enter__()
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        if kind is not None:
            self.kind.stopping.set()
        self._pool.__exit__(kind, *error)
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
        return self._pool.submit(partial(attempt, self._pool, self._measure, self._lost, plans))

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
            return self._pool.run(ask)
        try:
            return self._pool.run(ask)
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
