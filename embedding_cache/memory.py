"""Where rows of the host lie: in its memory, in memory that an accelerator reads directly, or in a file.

Each is a way to grow: rows and a larger number of rows -> a tensor that begins with those rows. What follows them is
not initialised, except that a file holds zeros.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

Grow = Callable[[Tensor, int], Tensor]
HUGE_PAGE = 2 << 20  # bytes


def ordinary(rows: Tensor, num_rows: int) -> Tensor:
    """In huge pages where they pay: random rows of a large table miss the processor's list of small ones, and a
    gather then takes up to twice the time."""
    length = num_rows * rows.shape[1] * rows.element_size()
    if length < 2 * HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        larger = rows.new_empty(num_rows, rows.shape[1])
    else:
        region = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without them
            region.madvise(mmap.MADV_HUGEPAGE)
        larger = torch.frombuffer(region, dtype=rows.dtype).view(num_rows, -1)
    larger[: len(rows)] = rows
    return larger


def pinned(rows: Tensor, num_rows: int) -> Tensor:
    """Never moved by the system, so that copies to and from the accelerator run beside everything else."""
    larger = torch.empty(num_rows, rows.shape[1], dtype=rows.dtype, pin_memory=True)
    larger[: len(rows)] = rows
    return larger


class MappedFile:
    """A file without a name in `directory`, mapped into memory. The system keeps in memory what is used and frees
    the room on the disk with the last tensor over it, even if the process is killed.

    Raises:
        OSError: the directory cannot be made or written, or there is no room on its disk (asked for as rows grow,
            so that writing a row cannot fail).
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 (open as long as the rows)

    def __call__(self, rows: Tensor, num_rows: int) -> Tensor:
        length = num_rows * rows.shape[1] * rows.element_size()
        try:
            os.posix_fallocate(self._file.fileno(), 0, length)
        except OSError as error:
            os.ftruncate(self._file.fileno(), rows.nbytes)  # what there was room for is given back
            raise OSError(
                error.errno,
                f"no room for {num_rows} rows ({length / 2**20:.0f} MiB) in {self._directory} ({error.strerror}); "
                "free some, pass another path=, or bound the rows by capacity=",
            ) from error
        region = mmap.mmap(self._file.fileno(), length)
        region.madvise(mmap.MADV_RANDOM)  # reading ahead of a random row reads what nobody wants
        return torch.frombuffer(region, dtype=rows.dtype).view(num_rows, -1)
