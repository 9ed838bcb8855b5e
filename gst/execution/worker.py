"""Persistent threads: one for each lane of a stream program, and what it does in one run."""

from __future__ import annotations

import os
import sys
import threading
from _thread import allocate_lock
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch

from gst.execution.lanes import Lane
from gst.lowering.calls import Values
from gst.lowering.plan import ExecutionError
from gst.lowering.stream_program import COPY, FREE, RECORD, RUN, WAIT
from gst.machine.devices import Device


class Worker:
    """One thread for the life of an executor, bound to the device's cores, with its number of threads.

    New threads would lose the primitive caches of oneDNN, and OpenMP keeps the number of threads per thread.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=device.name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        """Run `job` on the thread, after those submitted before."""
        future: Future[Any] = Future()
        self._jobs.put((job, future))
        return future

    def close(self) -> None:
        """Finish what was submitted and end the thread; not while the interpreter ends, when no thread goes on."""
        if not sys.is_finalizing():
            self._jobs.put(None)
            self._thread.join()

    def _work(self) -> None:
        if self.device.cores and hasattr(os, "sched_setaffinity"):
            with suppress(OSError):  # not allowed here: the device works, unbound
                os.sched_setaffinity(threading.get_native_id(), self.device.cores)
        torch.get_num_threads()  # a thread takes the process's number when first asked: now, not later
        torch.set_num_threads(self.device.threads)
        stream: Any = nullcontext()
        refused: Exception | None = None
        try:
            if self.device.is_accelerator:
                torch.accelerator.set_device_index(self.device.torch_device.index)
                stream = torch.Stream(self.device.torch_device)
        except Exception as error:  # a GPU that others hold, or without memory: said to whoever asks for something
            refused = error
        with torch.no_grad(), stream:
            while (item := self._jobs.get()) is not None:
                job, future = item
                try:
                    if refused is not None:
                        raise refused
                    future.set_result(job())
                except BaseException as error:
                    future.set_exception(error)
                del item, job, future  # nothing of a finished run stays alive while the thread waits


def started(devices: Sequence[Device]) -> tuple[Worker, ...]:
    """A thread for each device. The calling thread keeps its number of threads, from which others start later."""
    threads = torch.get_num_threads()  # also fixes this thread's own number before a worker sets another
    workers = tuple(map(Worker, devices))
    wait([worker.submit(lambda: None) for worker in workers])
    torch.set_num_threads(threads)  # threads made later by others start from the number set last
    return workers


@dataclass(frozen=True, eq=False)
class LaneSteps:
    """The steps of one lane of a stream program, as its thread takes them.

    Args:
        name: of the lane.
        worker: position of its thread among those of the executor.
        memory: number of the memory in which it computes, or from which it copies.
        steps: (kind, number, what). For `RUN` a node and its call; for `COPY` a node, and number and device of the
            memory that gets it; for `RECORD` an event and the locks of those that wait for it; for `WAIT` a lock and
            its event; for `FREE` a node.
    """

    name: str
    worker: int
    memory: int
    steps: Sequence[tuple[int, int, Any]]


class Run:
    """What the lanes share during one run.

    Args:
        memories: in each memory the value of every node, None where it is not.
        num_locks: how many waits there are. Each has a lock, which the record of its event opens.
        num_events: how many events, if lanes run behind the threads that issue their steps; 0 if they do not.
    """

    def __init__(self, memories: Sequence[Values], num_locks: int, num_events: int) -> None:
        self.memories = memories
        self.locks = [allocate_lock() for _ in range(num_locks)]
        for lock in self.locks:
            lock.acquire()
        self.events: list[list[torch.Event]] = [[] for _ in range(num_events)]
        self.is_stopped = False

    def stop(self) -> None:
        """Let no lane begin anything behind the next event that it waits for."""
        self.is_stopped = True
        for lock in self.locks:
            with suppress(RuntimeError):  # it is open
                lock.release()


def run_lane(mine: LaneSteps, lane: Lane, run: Run) -> None:
    """Take all steps of a lane; called on its thread.

    Raises:
        ExecutionError: a step failed; the other lanes have been told to stop.
    """
    kind, number = FREE, -1
    values, locks, events, stream = run.memories[mine.memory], run.locks, run.events, lane.stream
    try:
        with stream or nullcontext():
            for kind, number, what in mine.steps:
                if kind == RUN:
                    values[number] = what(values)
                elif kind == FREE:
                    if stream is not None:
                        lane.free(values[number])
                    values[number] = None
                elif kind == WAIT:
                    locks[number].acquire()
                    if run.is_stopped:
                        return
                    if events:
                        lane.wait(events[what])
                elif kind == RECORD:
                    if events:
                        events[number] = lane.record()
                    for each in what:
                        locks[each].release()
                else:
                    assert kind == COPY
                    run.memories[what[0]][number] = lane.copy(values[number], what[1])
    except BaseException as error:
        if run.is_stopped:  # the first error is the one that is told
            return
        run.stop()
        node = number if kind in (RUN, COPY) else -1
        raise ExecutionError(f"{type(error).__name__}: {error}", mine.name, node) from error
