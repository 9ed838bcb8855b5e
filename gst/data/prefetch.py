"""Reading the next step while this one is computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

Step = TypeVar("Step")
Drawn = TypeVar("Drawn")
Read = TypeVar("Read")


@dataclass(frozen=True)
class Reader(Generic[Step, Drawn, Read]):
    """How a step is read: `draw(step, ahead)` decides what to read, in the caller's thread and therefore in a fixed
    order; `load` reads it, in a thread of its own. `ahead` is 1 where the step before it has not been computed yet."""

    draw: Callable[[Step, int], Drawn]
    load: Callable[[Drawn], Read]


class Prefetched(Generic[Step, Drawn, Read]):
    """Iterates over `(step, what was read for it)`, one step ahead.

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
        with ThreadPoolExecutor(1, "prefetch") as thread:
            step = next(steps, None)
            if step is None:
                return
            pending = thread.submit(self.reader.load, self.reader.draw(step, 0))
            while step is not None:
                asked = time.perf_counter()
                read = pending.result()
                handed = time.perf_counter()
                if began is not None:
                    self.waited += handed - asked
                began = began or handed
                self.passed = handed - began
                following = next(steps, None)
                if following is not None:
                    pending = thread.submit(self.reader.load, self.reader.draw(following, 1))
                yield step, read
                self.passed = time.perf_counter() - began
                step = following
