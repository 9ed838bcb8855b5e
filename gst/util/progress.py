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

Progress = Callable[[str, int, int], None]
"""Called with a description of the work, the number of finished items and the number of all items."""


def no_progress(what: str, done: int, total: int) -> None:
    """Show no progress."""


Verbosity = Literal["quiet", "normal", "verbose"]
EVERY = 30.0  # seconds between lines of a log
VARIABLE = "GST_VERBOSITY"  # read by child processes as well


def verbosity() -> str:
    """Return the verbosity: `quiet` prints results and errors only, `verbose` leaves finished bars in place."""
    return os.environ.get(VARIABLE, "normal")


@contextmanager
def saying(level: Verbosity) -> Iterator[None]:
    """Set the verbosity within the context; `normal` leaves it as it is.

    Examples:
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


class LogLines:
    """Stream for progress bars if stderr is no terminal: prints a line every `EVERY` seconds, and the last line of a
    bar."""

    _printed = time.monotonic()  # by any bar of the process, since each may be short
    _line = ""

    def write(self, text: str) -> None:
        self._line = text.strip() or self._line
        if text == "\n" or (text.strip() and time.monotonic() - LogLines._printed >= EVERY):
            LogLines._printed = time.monotonic()
            print(self._line, file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Do nothing: no text waits."""


def bar(*arguments: Any, **options: Any) -> tqdm[Any]:
    """Return a tqdm bar with the time left, which disappears when the work is done; a log gets a line every `EVERY`
    seconds."""
    from tqdm import tqdm

    level = verbosity()
    shown: dict[str, Any] = {"leave": level == "verbose", "disable": level == "quiet", "dynamic_ncols": True}
    shown["bar_format"] = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"
    if not sys.stderr.isatty():
        shown |= {"file": LogLines(), "dynamic_ncols": False, "delay": 1e-9}  # no line for a bar that just began
    return tqdm(*arguments, **(shown | options))


class Bars:
    """Shows one progress bar at a time: `show` is a `Progress`, and starts a new bar when the number of items changes.
    A log gets the description of work of a single item when it begins."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._work = ""

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None

    def show(self, what: str, done: int, total: int) -> None:
        work = what.partition(",")[0]
        is_other = total == 1 and work != self._work
        if self._bar is None or self._bar.total != total or done < self._bar.n or is_other:
            self.__exit__()
            self._bar = bar(total=total, initial=done)
            if total == 1 and done == 0 and not sys.stderr.isatty():
                notice(what)
        self._work = work
        self._bar.set_description(what, refresh=False)
        self._bar.update(done - self._bar.n)
        self._bar.refresh()
