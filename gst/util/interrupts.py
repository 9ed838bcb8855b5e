"""Ctrl-C and a supervisor's request to end: a long command unwinds, so that what it holds is closed and released."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
