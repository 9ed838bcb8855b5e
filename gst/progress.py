"""Progress of what takes more than a few seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Progress = Callable[[str, int, int], None]
"""Told what is going on, how much of it is done, and how much there is."""


class Bars:
    """A progress bar with the time left; a new one where the number of things to do is another."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, what: str, done: int, total: int) -> None:
        from tqdm import tqdm

        if self._bar is None or self._bar.total != total or done < self._bar.n:
            self.__exit__()
            self._bar = tqdm(total=total, leave=False, dynamic_ncols=True)
        self._bar.set_description(what, refresh=False)
        self._bar.update(done - self._bar.n)
        self._bar.refresh()
