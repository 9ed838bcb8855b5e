"""Progress bars with the time left, lines of progress for logs, and the verbosity of commands."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tqdm import tqdm

Verbosity = Literal["quiet", "normal", "verbose"]
Progress = Callable[[str, int, int], None]
"""Called with a description of the work, the number of finished items and the number of all items."""


def no_progress(what: str, done: int, total: int) -> None:
    """A `Progress` that shows nothing."""


LINE_S, LATEST_LINE_S = 5.0, 30.0
"""Where stderr is no terminal, a line follows another at a quarter of the work after `LINE_S` seconds at the earliest,
otherwise after `LATEST_LINE_S`."""

LINE = "{desc}: {percentage:3.0f}% ({n_fmt} of {total_fmt}, {elapsed} elapsed, {remaining} left)"

VARIABLE = "GST_VERBOSITY"  # read by child processes as well


def verbosity() -> str:
    """Verbosity of this command: `quiet` prints results and errors only, `verbose` leaves finished bars in place."""
    return os.environ.get(VARIABLE, "normal")


@contextmanager
def saying(level: Verbosity) -> Iterator[None]:
    """Set the verbosity within the context; `normal` leaves it as it is.

    >>> with saying("quiet"):
    ...     verbosity()
    'quiet'
    """
    before = os.environ.get(VARIABLE)
    if level != "normal":
        os.environ[VARIABLE] = level
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before


def notice(words: str) -> None:
    """Print one line to stderr, unless the verbosity is `quiet`."""
    if verbosity() != "quiet":
        print(f"gst: {words}", file=sys.stderr)


def bar(*arguments: Any, **options: Any) -> tqdm[Any]:
    """A tqdm bar with the time left, which disappears when the work is done. Where stderr is no terminal, a log gets
    single lines instead, see `LINE_S`."""
    from tqdm import tqdm

    class Lines(tqdm):
        leave: bool | None
        desc: str
        bar_format: str | None
        printed_at, printed_quarter = float("-inf"), 0

        def display(self, msg: str | None = None, pos: int | None = None) -> bool:
            """Print a line if it is time for one."""
            quarter = int(4 * self.n / self.total) if self.total else 0
            wait = LINE_S if quarter > self.printed_quarter else LATEST_LINE_S
            if msg is None and time.monotonic() - self.printed_at >= wait:
                self._print()
                self.printed_at, self.printed_quarter = time.monotonic(), quarter
            return False

        def close(self) -> None:
            if self.leave and not self.disable:
                self._print()
            self.leave = False
            super().close()

        def _print(self) -> None:
            self.desc = self.desc.removesuffix(": ")  # as `set_description` leaves it
            self.bar_format = LINE if self.total else None
            print(str(self).strip(), file=sys.stderr, flush=True)

    level = verbosity()
    shown: dict[str, Any] = {"leave": level == "verbose", "disable": level == "quiet", "dynamic_ncols": True}
    if sys.stderr.isatty():
        return tqdm(*arguments, **(shown | options))
    return Lines(*arguments, **(shown | options))


class Bars:
    """One progress bar at a time: `show` is a `Progress`, and starts a new bar when the number of items changes."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, what: str, done: int, total: int) -> None:
        if self._bar is None or self._bar.total != total or done < self._bar.n:
            self.__exit__()
            self._bar = bar(total=total, desc=what)
        self._bar.set_description(what, refresh=False)
        self._bar.update(done - self._bar.n)
        self._bar.refresh()
