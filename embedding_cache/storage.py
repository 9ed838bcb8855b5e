"""Numbered rows on an accelerator, in memory of the host or in a file. Row 0 belongs to no key and stays zero."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int32
from torch import Tensor

from embedding_cache import kernels

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


Tier = Literal["device", "pinned", "disk"]

STREAMED_BYTES = 8 << 20  # from here on it pays, even for whoever reads the result next
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


@runtime_checkable
class Rows(Protocol):
    """What a table needs of its rows. Slots are positions of rows, on the host."""

    @property
    def num_rows(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def gather(self, slots: Int32[np.ndarray, " slots"], out: Tensor | None = None) -> Float[Tensor, "slots channels"]:
        """Copies of the rows, on the table's device: in `out` where it is given."""

    def copied(self, slots: Int32[np.ndarray, " slots"]) -> Float[Tensor, "slots channels"]:
        """`gather` of a large part of all rows, once, into the memory of the host."""

    def scatter(self, slots: Int32[np.ndarray, " slots"], rows: Float[Tensor, "slots channels"]) -> None:
        """Overwrite distinct rows with `rows`, of any dtype and device."""

    def grow(self, num_rows: int) -> None:
        """Make room; rows keep their slots."""


def rows_for(tier: Tier, channels: int, dtype: torch.dtype, device: torch.device, path: Path | None) -> Rows:
    """One row of zeros, in `tier`. Pinned memory needs an accelerator; without one it is ordinary."""
    if tier == "device" and device.type != "cpu":
        return AcceleratorRows(channels, dtype, device)
    if tier == "disk":
        assert path is not None
        return HostRows(channels, dtype, device, MappedFile(path))
    pins = tier == "pinned" and torch.cuda.is_available()
    return HostRows(channels, dtype, device, pinned if pins else ordinary)


class AcceleratorRows:
    """Rows in the accelerator's own memory. Born in inference mode they could never be written outside it."""

    @torch.inference_mode(False)
    def __init__(self, channels: int, dtype: torch.dtype, device: torch.device) -> None:
        self._rows = torch.zeros(1, channels, dtype=dtype, device=device)

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes

    def gather(self, slots: Int32[np.ndarray, " slots"], out: Tensor | None = None) -> Float[Tensor, "slots channels"]:
        return torch.index_select(self._rows, 0, self._sent(slots), out=out)

    def copied(self, slots: Int32[np.ndarray, " slots"]) -> Float[Tensor, "slots channels"]:
        return self.gather(slots).cpu()

    def scatter(self, slots: Int32[np.ndarray, " slots"], rows: Float[Tensor, "slots channels"]) -> None:
        self._rows.index_copy_(0, self._sent(slots).long(), rows.detach().to(self._rows))

    @torch.inference_mode(False)
    def grow(self, num_rows: int) -> None:
        larger = self._rows.new_empty(num_rows, self._rows.shape[1])
        larger[: len(self._rows)] = self._rows
        self._rows = larger

    def _sent(self, slots: Int32[np.ndarray, " slots"]) -> Tensor:
        """On the device, which the host does not wait for."""
        numbers = torch.from_numpy(slots)
        return (numbers.pin_memory() if self._rows.is_cuda else numbers).to(self._rows.device, non_blocking=True)


class HostRows:
    """Rows in the host's memory, wherever `grow_rows` takes it from, for a table whose results go to `device`.

    One thread copies: on the machines measured a second one waited for the same memory.
    """

    def __init__(self, channels: int, dtype: torch.dtype, device: torch.device, grow_rows: Grow) -> None:
        row_bytes = channels * dtype.itemsize
        self._word = next(word for word in _WORDS if row_bytes % word.itemsize == 0)
        self._in_lines = row_bytes % kernels.LINE == 0
        self._device, self._grow_rows = device, grow_rows
        self._keep(grow_rows(torch.zeros(1, channels, dtype=dtype), 1))

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes

    def gather(self, slots: Int32[np.ndarray, " slots"], out: Tensor | None = None) -> Float[Tensor, "slots channels"]:
        direct = out is not None and self._reachable(out)
        host = out if out is not None and direct else self._staging(len(slots))
        streams = self._in_lines and host.nbytes >= STREAMED_BYTES and host.data_ptr() % kernels.LINE == 0
        kernel = kernels.gather_streaming if streams else kernels.gather
        kernel(self._words, slots, host.view(self._word).numpy())
        if direct:
            return host
        return host.to(self._device, non_blocking=True) if out is None else out.copy_(host, non_blocking=True)

    def copied(self, slots: Int32[np.ndarray, " slots"]) -> Float[Tensor, "slots channels"]:
        """Into huge pages, which the system hands over faster than as many small ones."""
        return self.gather(slots, ordinary(self._rows[:0], len(slots)))

    def scatter(self, slots: Int32[np.ndarray, " slots"], rows: Float[Tensor, "slots channels"]) -> None:
        streams = self._in_lines and self._rows.data_ptr() % kernels.LINE == 0
        kernel = kernels.scatter_streaming if streams else kernels.scatter
        kernel(self._words, slots, self._on_host(rows.detach()).view(self._word).numpy())

    def grow(self, num_rows: int) -> None:
        self._keep(self._grow_rows(self._rows, num_rows))

    def _keep(self, rows: Tensor) -> None:
        self._rows, self._words = rows, rows.view(self._word).numpy()

    def _staging(self, num_rows: int) -> Tensor:
        pins = self._device.type == "cuda"
        return torch.empty(num_rows, self._rows.shape[1], dtype=self._rows.dtype, pin_memory=pins)

    def _on_host(self, rows: Tensor) -> Tensor:
        rows = rows.to(self._rows.dtype)
        if rows.is_cuda:
            staging = self._staging(len(rows)).copy_(rows, non_blocking=True)
            torch.cuda.current_stream(rows.device).synchronize()  # the kernel reads what has arrived
            return staging
        rows = rows.cpu().contiguous()
        return rows if self._reachable(rows) else rows.clone()

    def _reachable(self, rows: Tensor) -> bool:
        """Whether the kernels can read or write it, word by word, as it lies."""
        if rows.device.type != "cpu" or not rows.is_contiguous():
            return False
        offset = rows.storage_offset() * rows.element_size()
        return offset % self._word.itemsize == 0 and rows.data_ptr() % self._word.itemsize == 0
