"""The persistent thread of a device, and what it does for one run of a plan."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from gst.devices.describe.machine import Device
from gst.devices.execute.calls import Values, copied
from gst.devices.execute.schedule import Share
from gst.devices.plan import ExecutionError

Message = tuple[int, Any, "torch.Event | None", Device]  # node, value, what to wait for, sender
Inbox = SimpleQueue[Message | None]  # None: give up


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
        """Finish what was submitted and end the thread."""
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


@dataclass(eq=False)
class Run:
    """What the devices share during one run.

    Args:
        inboxes: of each device of the executor.
        outputs: nodes to return.
        results: their values, filled by the devices.
    """

    inboxes: Sequence[Inbox]
    outputs: frozenset[int]
    results: dict[int, Any] = field(default_factory=dict)

    def give_up(self) -> None:
        """Tell every device to stop."""
        for inbox in self.inboxes:
            inbox.put(None)


@dataclass(frozen=True)
class Finished:
    """What a device did: its order of operations, and values copied from other memories (number, bytes)."""

    order: list[int]
    copies: int
    bytes: int


def run_share(share: Share, values: Values, run: Run) -> Finished:
    """Compute one device's share; called on the device's thread.

    Args:
        share: what to do.
        values: of each node; holds this memory's inputs and constants.
        run: shared with the other devices.

    Raises:
        ExecutionError: an operation failed; the other devices have been told to stop.
    """
    node = -1
    order: list[int] = []
    copies = copied_bytes = 0
    device, inboxes = share.device, run.inboxes
    inbox, outputs, results = inboxes[share.position], run.outputs, run.results
    calls, rank, by_rank, consumers = share.calls, share.rank, share.by_rank, share.consumers
    reads, sends, pending, uses = share.reads, share.sends, share.pending.copy(), share.uses.copy()
    ready, nothing_waits = share.first.copy(), inbox.empty
    try:
        while len(order) < share.count:
            while not ready or not nothing_waits():
                message = inbox.get()
                if message is None:
                    return Finished(order, copies, copied_bytes)
                node = message[0]
                values[node], size = receive(message[1], message[2], message[3], device)
                if message[3].memory != device.memory:
                    copies, copied_bytes = copies + 1, copied_bytes + size
                    if share.forwards[node]:
                        _tell(share.forwards[node], node, values[node], device, inboxes)
                for consumer in consumers[node]:
                    pending[consumer] -= 1
                    if not pending[consumer]:
                        heappush(ready, rank[consumer])
                del message
            node = by_rank[heappop(ready)]
            value = calls[node](values)  # type: ignore[misc]
            order.append(node)
            if sends[node]:
                _tell(sends[node], node, value, device, inboxes)
            if node in outputs:
                results[node] = value
            for producer in reads[node]:
                uses[producer] -= 1
                if not uses[producer]:
                    values[producer] = None
            if uses[node]:
                values[node] = value
                for consumer in consumers[node]:
                    pending[consumer] -= 1
                    if not pending[consumer]:
                        heappush(ready, rank[consumer])
        if device.is_accelerator:
            torch.accelerator.current_stream(device.torch_device).synchronize()
    except BaseException as error:
        run.give_up()
        raise ExecutionError(f"{type(error).__name__}: {error}", device.name, node) from error
    return Finished(order, copies, copied_bytes)


def _tell(positions: Sequence[int], node: int, value: Any, device: Device, inboxes: Sequence[Inbox]) -> None:
    event = departure(device)
    for position in positions:
        inboxes[position].put((node, value, event, device))


def departure(device: Device) -> torch.Event | None:
    """What to wait for before reading a value just made on `device`: an event of its stream, or None."""
    return torch.accelerator.current_stream(device.torch_device).record_event() if device.is_accelerator else None


def receive(value: Any, event: torch.Event | None, source: Device, destination: Device) -> tuple[Any, int]:
    """Make `value` readable on the thread (and stream) of `destination`, which is the caller's.

    Returns:
        The value, or its copy, and the bytes that were copied.
    """
    if event is not None:
        if destination.is_accelerator:
            torch.accelerator.current_stream(destination.torch_device).wait_event(event)
        else:
            event.synchronize()
    if source.memory == destination.memory:
        if destination.is_accelerator:
            for tensor in _tensors(value):
                tensor.record_stream(torch.accelerator.current_stream(destination.torch_device))
        return value, 0
    result = _copy(value, source, destination)
    return result, sum(tensor.numel() * tensor.element_size() for tensor in _tensors(result))


def _copy(value: Any, source: Device, destination: Device) -> Any:
    if isinstance(value, list | tuple):
        return [_copy(each, source, destination) for each in value]
    if not isinstance(value, Tensor):
        return value
    result = copied(value, destination.torch_device)
    if source.is_accelerator:  # the allocator may reuse the source only after this copy, on this thread's stream
        value.record_stream(torch.accelerator.current_stream(value.device))
    return result


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for each in value for tensor in _tensors(each)] if isinstance(value, list | tuple) else []
