"""One process at a time writes to a directory of results."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

LOCK = ".lock"


@contextmanager
def owned(directory: Path) -> Iterator[None]:
    """Hold `directory`, which is made if it is not there, for this process. It is free again at the end, also of a
    process that is killed, since the system releases the lock (flock(2)). Where nothing was written, nothing is left.

    Raises:
        ValueError: another process holds it; the message names that process.
        OSError: nothing can be written there.
    """
    new = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = _locked(directory / LOCK)
    except OSError as error:
        raise OSError(error.errno, f"cannot write to {directory}: {error.strerror}; give another directory") from error
    try:
        yield
    finally:
        (directory / LOCK).unlink(missing_ok=True)
        file.close()
        with suppress(OSError):  # there are results
            for each in new:
                each.rmdir()


def _locked(path: Path) -> BinaryIO:
    """The file at `path`, locked, with this process's number in it."""
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
        if _is_at(file, path):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
            file.flush()
            return file
        file.close()  # its owner removed it just before it let go


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
