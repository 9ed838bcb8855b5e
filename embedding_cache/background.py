"""Rows move beside the caller: on one thread and, where there is an accelerator, on a stream of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

Job = Callable[[], Tensor | None]
Finished = tuple[Tensor | None, "torch.cuda.Event | None"]


class Background:
    """Runs jobs one after another, in the order they are given.

    With CUDA a job sees all that the caller's stream was given before the job, and whoever waits for a job makes
    their stream wait for the job's; the host does not wait for the accelerator.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._thread = ThreadPoolExecutor(1, "embedding-cache")
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._unfinished: list[Pending] = []

    def run(self, job: Job, *inputs: Tensor) -> Pending:
        """Start `job`, which reads `inputs`: leave these as they are until it is done."""
        ready = None if self._stream is None else torch.cuda.current_stream(self._device).record_event()
        pending = Pending(self._thread.submit(self._work, job, inputs, ready), self._device)
        self._unfinished = [each for each in self._unfinished if not each.succeeded()] + [pending]
        return pending

    def wait(self) -> None:
        """For all jobs. Raises what the first that failed has raised."""
        unfinished, self._unfinished = self._unfinished, []
        for pending in unfinished:
            pending.wait()
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _work(self, job: Job, inputs: tuple[Tensor, ...], ready: torch.cuda.Event | None) -> Finished:
        if self._stream is None or ready is None:
            return job(), None
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            result = job()
            for tensor in inputs:
                if tensor.is_cuda:
                    tensor.record_stream(self._stream)  # its memory is not given to others while the job may read it
            return result, self._stream.record_event()


class Pending:
    """A job that may still run."""

    def __init__(self, future: Future[Finished], device: torch.device) -> None:
        self._future, self._device = future, device

    def wait(self) -> Tensor | None:
        """What the job returned; it may be used on the caller's stream from now on. Raises what the job has raised."""
        result, done = self._future.result()
        if done is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(done)
            if result is not None and result.is_cuda:
                result.record_stream(stream)
        return result

    def succeeded(self) -> bool:
        """Whether the job has ended, and raised nothing."""
        return self._future.done() and self._future.exception() is None


class Prefetched(NamedTuple):
    """A pull on its way."""

    rows: Pending
    ages: Int64[Tensor, " keys"]
    is_known: Bool[Tensor, " keys"]

    def wait(self) -> tuple[Float[Tensor, "keys channels"], Int64[Tensor, " keys"], Bool[Tensor, " keys"]]:
        """What `pull` returns."""
        rows = self.rows.wait()
        assert rows is not None
        return rows, self.ages, self.is_known
