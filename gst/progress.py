"""Progress of what takes more than a few seconds."""

from __future__ import annotations

from typing import Any


class Bars:
    """One progress bar with time left for each thing that is going on, the last one on top of the others."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, what: str, done: int, total: int) -> None:
        from tqdm import tqdm

        if self._bar is None or self._bar.desc != f"{what}: ":
            self.__exit__()
            self._bar = tqdm(total=total, desc=what, leave=False, dynamic_ncols=True)
        self._bar.total = total
        self._bar.update(done - self._bar.n)
