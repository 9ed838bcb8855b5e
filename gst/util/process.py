"""Processes: signals that end this one, its memory and threads, versions of packages; children that answer messages.

A child is for work that may crash, hang or need other settings. The parent starts `python -m MODULE DESCRIPTOR PARENT
ARGUMENT...` (`Child`); the module calls `connect`. Messages and answers are pickled. The child ends with its parent,
leaves Ctrl-C to it, and writes no core file.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LOOK_S, LONGEST_IMPORT_S = 0.1, 10.0  # a signal waits for imports


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


def _raise(number: int, frame: FrameType | None, waited: float = 0.0) -> None:
    """Raise `Stopped`, after a running import: an exception out of a C++ module that is being imported ends Python."""
    if waited < LONGEST_IMPORT_S and _is_importing(frame):
        later = partial(_raise, waited=waited + LOOK_S)

        def send_again() -> None:
            if signal.getsignal(number) is later:  # else whoever was to be stopped has ended
                os.kill(os.getpid(), number)

        signal.signal(number, later)
        again = threading.Timer(LOOK_S, send_again)
        again.daemon = True
        again.start()
        return
    raise Stopped(number)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


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


def wait_briefly(environment: MutableMapping[str, str] = os.environ, shares_cores: bool = True) -> None:
    """Set the variables of `WAITING` that are not set yet. OpenMP reads them when torch is loaded: call this before.

    Args:
        shares_cores: False if no devices share the cores; then threads do not spin, as on busy cores all would wait for
            the one that lost its core.

    Examples:
        >>> environment = {"OMP_WAIT_POLICY": "PASSIVE"}
        >>> wait_briefly(environment)
        >>> environment
        {'OMP_WAIT_POLICY': 'PASSIVE', 'GOMP_SPINCOUNT': '1000'}
    """
    for name, value in (WAITING if shares_cores else {"OMP_WAIT_POLICY": "PASSIVE"}).items():
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


class ChildFailed(Exception):
    """Failure of a child process: it ended with a status and a last line of output, crashed, or took too long."""


class Child:
    """A running child process, and the connection to it.

    Args:
        module: that the child runs.
        arguments: further arguments of the child.
        environment: of the child.
    """

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        self._connection, its_end = Pipe()
        with its_end:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, str(its_end.fileno()), str(os.getpid()), *arguments],
                env=environment, pass_fds=[its_end.fileno()], stdin=subprocess.DEVNULL, stdout=self._output,
                stderr=self._output,
            )  # fmt: skip

    def ask(self, message: Any, limit_s: float | None = None) -> Any:
        """Send a message, if it is not None, and return the next answer.

        Args:
            message: for the child.
            limit_s: seconds to wait for the answer; None = as long as the child runs.

        Raises:
            ChildFailed: there is no answer; the message has the reason.
        """
        try:
            if message is not None:
                self._connection.send(message)
            if not self._connection.poll(limit_s):
                raise ChildFailed(f"timed out after {limit_s:g} s")
            return self._connection.recv()
        except (EOFError, ConnectionError):
            raise ChildFailed(self._end_words()) from None

    def end(self) -> None:
        """Kill the child, if it still runs, and close the connection."""
        self.process.kill()
        self.process.wait()
        self._connection.close()
        self._output.close()

    def _end_words(self) -> str:
        status = self.process.wait()
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        if status >= 0:
            return f"stopped with status {status}: {lines[-1] if lines else 'without output'}"
        cause = ", as the system does when memory runs out" if -status == signal.SIGKILL else ""
        return f"crashed: signal {-status} ({signal.strsignal(-status)}{cause})"


def connect() -> tuple[Connection[Any, Any], list[str]]:
    """Return the connection of this child process to its parent, and its further arguments."""
    descriptor, parent, *arguments = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (int(most != 0),) * 2)  # 1 byte: nor does Linux pipe one to a handler
    end_with_parent(int(parent), signal.SIGKILL)
    return Connection(int(descriptor)), arguments
