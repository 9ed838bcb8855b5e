"""Files that appear whole, in place of what was there, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO


@contextmanager
def replaced(path: Path) -> Iterator[TextIO]:
    """A new text file that takes the place of `path`, in folders made for it, once all of it is on the disk. If
    anything fails, and if the process is killed, `path` is as it was.

    Raises:
        OSError: it cannot be written; the message names `path`.
    """
    with replaced_file(path) as partial, partial.open("w", newline="") as file:
        yield file


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """As `replaced`, for who writes by a name: the name of a new file that is to take the place of `path`."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise OSError(error.errno, f"cannot write {path}: {error.strerror}; make room or give another place") from error
    finally:
        with suppress(OSError):  # its folder may be one that cannot be
            partial.unlink()
