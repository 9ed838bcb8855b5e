"""This process: signals that end it, settings of memory and threads, and versions of installed packages."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from importlib import metadata
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """Request to end the process. It is no `Exception`, so that no handler of errors continues after it, and no
    `KeyboardInterrupt`, which Lightning turns into status 1.

    Args:
        number: of the signal.
        advice: how to continue, if more specific than the command's.
    """

    def __init__(self, number: int, advice: str = "") -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number, self.advice = number, advice

    @property
    def status(self) -> int:
        """Exit status of a process that a signal ended: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.number


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise `Stopped` in the main thread; an ignored signal, as under nohup, stays ignored.
    Compiled code turns `Stopped` into a `SystemError`; this context raises `Stopped` again."""
    with handlers_kept():
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, _raise)
        try:
            yield
        except SystemError as error:
            cause: BaseException | None = error
            while isinstance(cause, SystemError):
                cause = cause.__cause__
            if isinstance(cause, Stopped):
                raise cause from None
            raise


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Restore the handlers of both signals afterwards, around libraries that set their own."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


class TimeIsUp(KeyboardInterrupt):
    """Ends a computation that takes too long, as Ctrl-C does."""


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Raise `TimeIsUp` in the body after so many seconds. It has no effect outside the main thread, without alarms, or
    where an earlier alarm is set.

    Examples:
        >>> import contextlib
        >>> with contextlib.suppress(TimeIsUp), stopped_after(0.01):
        ...     time.sleep(10)
    """
    can_stop = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if math.isinf(seconds) or not can_stop or 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= seconds:
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise TimeIsUp

    begun, before = time.perf_counter(), signal.signal(signal.SIGALRM, stop)
    # Repeated every second: Python ignores an exception that is raised while an object is destroyed.
    left, _ = signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3), 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.perf_counter() - begun), 1e-3))


PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(parent: int, number: int, libc: ctypes.CDLL | None = None) -> None:
    """Let Linux send a signal to this process when its parent ends, and end at once if that was before."""
    if sys.platform == "linux":
        (libc or ctypes.CDLL(None)).prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
REUSED_MIB, FREE_MIB = 128, 512

WAITING = {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "1000"}
"""Time that threads of OpenMP spin before they sleep, where several devices share the cores. PyTorch's default of some
milliseconds takes the core from the next operation. Without spinning, operations on several cores take twice as long.
GNU's OpenMP does not spin in a process with more threads than cores, unless the policy is ACTIVE."""


def wait_briefly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables of `WAITING` that are not set yet. OpenMP reads them when torch is loaded: call this before.

    Examples:
        >>> environment = {"OMP_WAIT_POLICY": "PASSIVE"}
        >>> wait_briefly(environment)
        >>> environment
        {'OMP_WAIT_POLICY': 'PASSIVE', 'GOMP_SPINCOUNT': '1000'}
    """
    for name, value in WAITING.items():
        environment.setdefault(name, value)


def keep_freed_memory() -> bool:
    """Make glibc reuse the memory of freed tensors instead of returning it to the system, which zeroes every page anew.

    By default glibc returns blocks over 32 MiB at once, so that steps spend their time in page faults. Blocks up to
    `REUSED_MIB` are reused then, and `FREE_MIB` stay free at the end of the heap.

    Returns:
        True if the C library accepted the settings (glibc does; others may not).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = ((M_MMAP_THRESHOLD, REUSED_MIB), (M_TRIM_THRESHOLD, FREE_MIB))
    return all(mallopt(setting, mib << 20) == 1 for setting, mib in settings)


DISTRIBUTION = "graph-segment-training"


def version() -> str:
    """Return the installed version, `0+not.installed` without one."""
    return version_of(DISTRIBUTION) or "0+not.installed"


def version_of(package: str) -> str:
    """Return the installed version of a package; '' without one."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
