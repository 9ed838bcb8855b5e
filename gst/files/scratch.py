"""Arrays as large as a graph: in memory, or in files of a directory, whose pages the system can take back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

CHUNK = 1 << 18  # entries handled at once: anonymous memory is proportional to it, not to a graph


def empty(directory: Path | None, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An array to be filled, in memory if `directory` is None, else memory-mapped from the new file `name` in it.

    Raises:
        OSError: the disk is full. Its blocks are taken now: a write to memory could not tell, it would end the process.
    """
    if directory is None:
        return np.empty(shape, dtype)
    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    try:
        with (directory / name).open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, num_bytes))
    except OSError as error:
        message = f"no room for {num_bytes} bytes in {directory}: {error.strerror}; make room or give another place"
        raise OSError(error.errno, message) from error
    return np.memmap(directory / name, dtype, "r+", shape=shape)


def chunks(length: int, size: int = CHUNK) -> Iterator[slice]:
    """Slices that cover 0..length, each of at most `size` entries."""
    return (slice(start, min(start + size, length)) for start in range(0, length, size))
