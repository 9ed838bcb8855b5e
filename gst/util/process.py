"""This process: signals that end it, settings of memory and threads, and versions of installed packages."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from importlib import metadata
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """The process was asked to end. No `Exception`, so that nothing takes it for an error that can be gone past, and no
    `KeyboardInterrupt`, which Lightning turns into status 1.

    Args:
        number: of the signal.
        advice: how to go on, where more is known of it than the command says.
    """

    def __init__(self, number: int, advice: str = "") -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number, self.advice = number, advice

    @property
    def status(self) -> int:
        """What a shell expects of a process that a signal ended: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.number


@contextmanager
def stoppable() -> Iterator[None]:
    """Within it SIGINT and SIGTERM raise `Stopped` in the main thread. One that was ignored when the process started,
    as under nohup, stays ignored. Elsewhere than in the main thread nothing is changed. Compiled code that is left this
    way makes a `SystemError` of it, and so does each that called it: what leaves here is `Stopped` all the same."""
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
    """Afterwards both signals do what they did before: around libraries that set handlers of their own."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h

WAITING = {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "1000"}
"""How long threads of OpenMP spin before they sleep, where several devices share the cores. PyTorch's default of some
milliseconds takes the core from the next operation there. Without spinning, operations on several cores that follow
each other wake their threads each time and take twice as long. GNU's OpenMP does not spin at all in a process with more
threads than cores, unless the policy is ACTIVE."""


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


def keep_freed_memory(largest_mib: int = 128, most_mib: int = 512) -> bool:
    """Make glibc reuse the memory of freed tensors instead of returning it to the system, which zeroes every page anew.

    By default glibc returns every block over 32 MiB, and whatever lies free at the end of the heap, at once. Steps then
    spend their time in page faults.

    Args:
        largest_mib: blocks up to this size, in MiB, are reused.
        most_mib: at most so many MiB stay free at the end of the heap.

    Returns:
        Whether the C library accepted the settings (glibc does; others may not).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = ((M_MMAP_THRESHOLD, largest_mib), (M_TRIM_THRESHOLD, most_mib))
    return all(mallopt(setting, min(mib << 20, 2**31 - 1)) == 1 for setting, mib in settings)


DISTRIBUTION = "graph-segment-training"


def version() -> str:
    """The version that was installed, `0+not.installed` where none was."""
    return version_of(DISTRIBUTION) or "0+not.installed"


def version_of(package: str) -> str:
    """The version that is installed; '' if none is."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
