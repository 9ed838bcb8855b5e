"""Load of the CPU cores by other processes: a meter, a gate that waits for quiet cores, and locks of devices."""

from __future__ import annotations

import fcntl
import math
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from gst.machine.devices import Device, usable_cores
from gst.util.compiled import cache_directory
from gst.util.progress import Progress, no_progress

BUSY = 0.15  # share of the cores that others take, beyond which they are waited for
SPOILT = 0.25  # share of the cores that others take, beyond which a round is repeated and less is begun
MOST_STRETCH = 2.0  # times as long that a budget of seconds lasts while other processes take the cores, at most
MOST_RESULTS = 3  # of one measurement that is repeated while the cores are busy
ReadBusy = Callable[[], tuple[float, float]]


def read_busy() -> tuple[float, float]:
    """Return the seconds that this process's cores have been busy since boot, and those of this process and its
    descendants. Without /proc (macOS) no other process is seen."""
    wanted = {f"cpu{core}" for core in usable_cores()}
    path, ticks = Path("/proc/stat"), 0  # /proc/pressure/cpu is missing in containers and includes our own load
    for line in path.read_text().splitlines() if path.exists() else ():
        label, *fields = line.split()
        if label in wanted:
            user, nice, system, _idle, _iowait, *interrupts = map(int, fields[:8])
            ticks += user + nice + system + sum(interrupts)
    living = _ticks_of_descendants()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    per_second = os.sysconf("SC_CLK_TCK")
    return ticks / per_second, time.process_time() + ended.ru_utime + ended.ru_stime + living / per_second


def _ticks_of_descendants() -> int:
    """Return the ticks of living descendants and of their children that have ended."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_bytes().rpartition(b")")[2].split()  # the name before may hold any bytes
        except OSError:  # it ended
            continue
        pid = int(path.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))
    total, waiting = 0, [os.getpid()]
    while waiting:
        own = children.pop(waiting.pop(), [])
        total += sum(ticks[each] for each in own)
        waiting += own
    return total


class LoadMeter:
    """Meter of the share of the cores that other processes took since `start` (0 = none, 1 = all)."""

    def __init__(self, read: ReadBusy = read_busy, clock: Callable[[], float] = time.perf_counter) -> None:
        self._read, self._clock, self._cores = read, clock, len(usable_cores())
        self.start()

    def start(self) -> None:
        """Begin to count."""
        self._since, (self._busy, self._own) = self._clock(), self._read()

    def share(self) -> float:
        """Return the share since `start`; the kernel counts in ticks (10 ms), so short intervals are coarse."""
        elapsed, (busy, own) = self.elapsed(), self._read()
        others = (busy - self._busy) - (own - self._own)
        return min(1.0, max(0.0, others / max(elapsed * self._cores, 1e-9)))

    def stretch(self) -> float:
        """Return how many times as long a budget lasts by the load since `start`: 1 on quiet cores."""
        return min(MOST_STRETCH, 1 / max(1 - self.share(), 1e-9))

    def elapsed(self) -> float:
        """Return the seconds of the clock since `start`."""
        return self._clock() - self._since

    def spent(self) -> float:
        """Return the seconds of a budget that are spent since `start`: those of the clock, less on busy cores."""
        return self.elapsed() / self.stretch()


def present_load(seconds: float = 0.5) -> float:
    """Return the share of the cores that other processes take, by one look of some seconds."""
    meter = LoadMeter()
    time.sleep(seconds)
    return meter.share()


@dataclass(frozen=True)
class LoadGate:
    """Waits until other processes leave the cores alone.

    Args:
        threshold: share of the cores that others may take.
        patience_s: seconds of waiting in all, after which it reports that the cores are loaded.
        interval_s: seconds of one look; with 0 `measure` looks at rounds that ran, and never waits.
        read, sleep, clock: source of busy times, of pauses, and of increasing seconds.
        progress: called after each look at busy cores with a description, and the seconds that are left.

    Examples:
        >>> idle = LoadGate(interval_s=0.0, read=lambda: (0.0, 0.0), sleep=lambda seconds: None)
        >>> seconds, is_quiet = idle.wait()
        >>> is_quiet
        True
    """

    threshold: float = BUSY
    patience_s: float = 20.0
    interval_s: float = 0.1
    read: ReadBusy = read_busy
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.perf_counter
    progress: Progress = no_progress

    def wait(self, patience_s: float | None = None) -> tuple[float, bool]:
        """Look until it is quiet, at most `patience_s` (the gate's own if None), at least once.

        Returns:
            Seconds spent, and True if it was quiet at the end.
        """
        start, patience = self.clock(), self.patience_s if patience_s is None else patience_s
        meter = LoadMeter(self.read, self.clock)
        while True:
            meter.start()
            self.sleep(self.interval_s)
            share, spent = meter.share(), self.clock() - start
            quiet = share <= self.threshold
            if quiet or spent >= patience:
                return spent, quiet
            words = f"waiting for quiet cores, {share:.0%} busy with other work, at most {patience - spent:.0f} s more"
            self.progress(words, int(spent), math.ceil(patience))


class Loaded(Protocol):
    """Result of a measurement; `load` is the share of the cores that other processes took meanwhile."""

    @property
    def load(self) -> float | None: ...


Result = TypeVar("Result", bound=Loaded)


def repeated_while_busy(measure: Callable[[], Result], gate: LoadGate) -> list[Result]:
    """Measure until other processes leave the cores alone meanwhile, at most `MOST_RESULTS` times; return all results.

    Args:
        measure: returns a result with its load.
        gate: finds quiet cores before each repetition; its patience also covers the repetitions.

    Examples:
        >>> from types import SimpleNamespace
        >>> results = iter(SimpleNamespace(load=load) for load in (0.5, 0.02, 0.0))
        >>> idle = LoadGate(interval_s=0.0, read=lambda: (0.0, 0.0), sleep=lambda seconds: None)
        >>> [each.load for each in repeated_while_busy(lambda: next(results), idle)]
        [0.5, 0.02]
    """
    results: list[Result] = []
    ends = math.inf
    while True:
        began = gate.clock()
        results.append(measure())
        now = gate.clock()
        took, ends = now - began, min(ends, now + gate.patience_s)
        is_busy = (results[-1].load or 0.0) > gate.threshold
        if len(results) == MOST_RESULTS or not is_busy or now + took > ends or not gate.wait(ends - took - now)[1]:
            return results


@contextmanager
def lock_devices(devices: Sequence[Device]) -> Iterator[None]:
    """Lock the cores and GPUs of devices against other processes of this user, and other threads of this one. All take
    the locks in one order, which excludes deadlocks; the end of a process releases its locks."""
    directory = cache_directory() / "locks"
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for name in physical(devices):
            fcntl.flock(stack.enter_context((directory / name).open("a")), fcntl.LOCK_EX)
        yield


def physical(devices: Sequence[Device]) -> list[str]:
    """Return the names of the cores and GPUs that devices use, in order; a device free to use any core uses all."""
    names = set()
    for device in devices:
        if device.is_accelerator:
            names.add(str(device.torch_device).replace(":", "-"))
        else:
            names |= {f"core-{core}" for core in device.cores or usable_cores()}
    return sorted(names)


class TimeIsUp(KeyboardInterrupt):
    """Ends a computation that takes too long, as Ctrl-C does."""


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Raise `TimeIsUp` in the body after so many seconds, which last longer on busy cores (`LoadMeter.spent`).

    It has no effect outside the main thread, without alarms, or where an earlier alarm is set.

    Examples:
        >>> import contextlib
        >>> with contextlib.suppress(TimeIsUp), stopped_after(0.01):
        ...     time.sleep(10)
    """
    can_stop = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if math.isinf(seconds) or not can_stop or 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= seconds:
        yield
        return

    meter = LoadMeter()

    def stop(number: int, frame: object) -> None:
        if meter.spent() >= seconds:
            raise TimeIsUp

    begun, before = time.perf_counter(), signal.signal(signal.SIGALRM, stop)
    # Repeated: cores may be busy, and Python ignores exceptions raised while an object is destroyed.
    left, _ = signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3), min(max(seconds, 1e-3), 1.0))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.perf_counter() - begun), 1e-3))
