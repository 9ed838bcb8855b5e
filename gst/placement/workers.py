"""Measuring in other processes, while this one goes on: one measurement at a time on each core and GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from gst.devices import LoadGate, Measurement, Plan
from gst.devices.isolated import IsolatedExecutor, measure_plans

Job = tuple[Sequence[Plan], "Future[list[Measurement]]"]


class Workers:
    """Child processes that run plans of one program, each driven by a thread. Use it as a context manager.

    What one of them measures waits until the devices are free (`gst.devices.locks`): plans on other GPUs are measured
    at the same time, plans that use cores one after the other. A worker whose child dies goes on with another.

    Args:
        make: makes an executor, which a thread enters and keeps.
        count: of processes.
        repetitions, warmup, gate: of each measurement, see `gst.devices.measure`.
    """

    def __init__(
        self, make: Callable[[], IsolatedExecutor], count: int = 1, repetitions: int = 5, warmup: int = 1,
        gate: LoadGate | None = None,
    ) -> None:  # fmt: skip
        if count < 1:
            raise ValueError(f"count is {count}; measuring needs at least one worker")
        self._make, self._settings = make, (repetitions, warmup, gate)
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def submit(self, plans: Sequence[Plan]) -> Future[list[Measurement]]:
        """Measure plans in turns, as soon as a worker is free; a plan that fails is an outcome.

        The future raises ValueError if one of them is no plan for the program, or no child can be had.
        """
        answer: Future[list[Measurement]] = Future()
        self._jobs.put((plans, answer))
        return answer

    def _work(self) -> None:
        executor: IsolatedExecutor | None = None
        while (job := self._jobs.get()) is not None:
            plans, answer = job
            try:
                executor = executor or self._make().__enter__()
                answer.set_result(measure_plans(executor, plans, *self._settings))
            except BaseException as error:
                answer.set_exception(error)
        if executor is not None:
            executor.__exit__(None, None, None)
