"""Reading the next step while this one is computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

Step = TypeVar("Step")
Drawn = TypeVar("Drawn")
Read = TypeVar("Read")


@dataclass(frozen=True)
class Reader(Generic[Step, Drawn, Read]):
    """How a step is read: `draw(step, ahead)` decides what to read, in the caller's thread and therefore in a fixed
    order; `load` reads it, in a thread of its own. `ahead` is 1 where the step before it has not been computed yet.
    `draw` then returns None if it cannot decide before that, and is asked again, with 0, once it was computed."""

    draw: Callable[[Step, int], Drawn | None]
    load: Callable[[Drawn], Read]


class Prefetched(Generic[Step, Drawn, Read]):
    """Iterates over `(step, what was read for it)`, one step ahead wherever `draw` can decide ahead.

    Attributes:
        waited: seconds that the consumer had to wait for reading, the first step aside.
        passed: seconds since the first step was handed over.
    """

    def __init__(self, steps: Iterable[Step], reader: Reader[Step, Drawn, Read]) -> None:
        self.steps, self.reader = steps, reader
        self.waited = self.passed = 0.0

    def __iter__(self) -> Iterator[tuple[Step, Read]]:
        steps = iter(self.steps)
        began: float | None = None
        pending: Future[Read] | None = None
        with ThreadPoolExecutor(1, "prefetch") as thread:
            step = next(steps, None)
            while step is not None:
                asked = time.perf_counter()
                pending = pending or self._begin(thread, step, 0)
                assert pending is not None, "draw decides what no other step comes before"
                read = pending.result()
                handed = time.perf_counter()
                if began is not None:
                    self.waited += handed - asked
                began = began or handed
                self.passed = handed - began
                following = next(steps, None)
                pending = None if following is None else self._begin(thread, following, 1)
                yield step, read
                self.passed = time.perf_counter() - began
                step = following

    def _begin(self, thread: ThreadPoolExecutor, step: Step, ahead: int) -> Future[Read] | None:
        drawn = self.reader.draw(step, ahead)
        return None if drawn is None else thread.submit(self.reader.load, drawn)
