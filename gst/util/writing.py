"""Output files and directories: atomic writes, and a lock for each directory of results."""

from __future__ import annotations

import fcntl
import json
import math
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from gst.util.addresses import refuse_address

LOCK = ".lock"


def cache_directory() -> Path:
    """Return `$XDG_CACHE_HOME/gst`, or `~/.cache/gst`: the folder of compiled code and of copies of objects."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gst"


@contextmanager
def atomic_write(path: Path) -> Iterator[TextIO]:
    """Open a new text file that replaces `path` once all of it is on the disk; missing folders are made.

    Raises:
        OSError: it cannot be written; the message names `path`, which stays as it was.

    Examples:
        >>> path = Path("results/plan.json")
        >>> with atomic_write(path) as file:
        ...     _ = file.write("{}")
        >>> path.read_text()
        '{}'
    """
    with atomic_path(path) as partial, partial.open("w", newline="") as file:
        yield file


def write_json(path: Path, result: Any) -> None:
    """Write a result as JSON, completely or not at all, with null for NaN and infinity."""
    with atomic_write(path) as file:
        file.write(json.dumps(_finite(result), indent=1, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield the name of a new file that replaces `path`, for a writer that takes a file name (`atomic_write`)."""
    refuse_address(path)
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
        with suppress(OSError):  # the folder of `path` may be one that cannot exist
            partial.unlink()


@contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Make `directory` and lock it for this process (flock(2)). Directories made here are removed if they stay empty.

    Raises:
        ValueError: another process holds the lock; the message names that process.
        OSError: nothing can be written there.

    Examples:
        >>> directory = Path("runs")
        >>> with directory_lock(directory):
        ...     sorted(path.name for path in directory.iterdir())
        ['.lock']
    """
    refuse_address(directory)
    new = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = locked_file(directory / LOCK)
    except OSError as error:
        raise OSError(error.errno, f"cannot write to {directory}: {error.strerror}; give another directory") from error
    try:
        yield
    finally:
        (directory / LOCK).unlink(missing_ok=True)
        file.close()
        with suppress(OSError):  # the directory holds results
            for each in new:
                each.rmdir()


def locked_file(path: Path) -> BinaryIO:
    """Return the locked file at `path`, which holds the number of this process.

    Raises:
        ValueError: another process holds the lock; the message names it.
        OSError: nothing can be written there, or the file system has no locks.
    """
    while True:
        file = path.open("ab+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().decode(errors="replace").strip() or "another process"
            file.close()
            raise ValueError(
                f"{owner} is writing to {path.parent}; wait until it has ended, or give another directory"
            ) from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                try:
                    file.truncate(0)
                    file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
                    file.flush()
                except OSError:  # the disk is full
                    path.unlink()
                    raise
                return file
        file.close()  # its owner removed the file just before it released the lock
