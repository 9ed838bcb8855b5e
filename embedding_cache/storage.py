"""Memory of the rows of a table, and values on their way from an accelerator to the host."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Bool, Float, Int32
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor


def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `kernel` on its first call and keep the machine code for later processes.

    Write `@no_type_check` under this decorator: numba must see the bare function, not a wrapper of the tests' shape
    checker. Without a folder that can be written (RuntimeError) each process compiles anew.
    """
    try:
        return numba.njit(cache=True, nogil=True)(kernel)
    except RuntimeError:
        return numba.njit(nogil=True)(kernel)


# Compiled copies ---------------------------------------------------------------------------------------------------
#
# A row is an array of whole words (integers of the widest size that divides it), whatever its dtype. Random rows of a
# large table miss every cache, and the processor cannot guess which comes next; so each kernel asks for the row `AHEAD`
# turns later before it copies the present one. `slots` may repeat in a gather, not in a scatter.

LINE = 64  # bytes of a cache line
AHEAD = 16  # rows; fewer and memory is not ready, many more and the first are pushed out again


@intrinsic
@no_type_check
def _prefetch(context: Any, rows: Any, row: Any, word: Any) -> Any:
    """Ask for the line of `rows[row, word]` into the second-level cache: the first can wait for too few at a time."""

    @no_type_check
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        byte, integer = ir.PointerType(ir.IntType(8)), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, integer, integer, integer])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        address = builder.bitcast(_address(target, builder, signature.args, values), byte)
        builder.call(function, [address, integer(0), integer(2), integer(1)])  # to read, second level, data
        return target.get_dummy_value()

    return types.void(rows, row, word), generate


@intrinsic
@no_type_check
def _stream_line(context: Any, source: Any, source_row: Any, word: Any, sink: Any, sink_row: Any) -> Any:
    """Copy the line at `source[source_row, word]` to `sink[sink_row, word]`, aligned, past the caches."""

    @no_type_check
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        line, kinds = ir.PointerType(ir.VectorType(ir.IntType(64), LINE // 8)), signature.args
        loaded = builder.load(builder.bitcast(_address(target, builder, kinds[:3], values[:3]), line), align=8)
        place = _address(target, builder, (kinds[3], kinds[4], kinds[2]), (values[3], values[4], values[2]))
        store = builder.store(loaded, builder.bitcast(place, line), align=LINE)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
        return target.get_dummy_value()

    return types.void(source, source_row, word, sink, sink_row), generate


@intrinsic
@no_type_check
def _fence(context: Any) -> Any:
    """Let other threads see what was streamed before anything that follows."""

    @no_type_check
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.fence("seq_cst")
        return target.get_dummy_value()

    return types.void(), generate


@no_type_check
def _address(target: Any, builder: Any, kinds: Any, values: Any) -> Any:
    """Of `values[0][values[1], values[2]]`."""
    array = target.make_array(kinds[0])(target, builder, values[0])
    where = [target.cast(builder, values[axis], kinds[axis], types.int64) for axis in (1, 2)]
    return cgutils.get_item_pointer(target, builder, kinds[0], array, where, wraparound=False)


@compiled
@no_type_check
def gather(rows, slots, out):
    """out[i] = rows[slots[i]]."""
    words, per_line = rows.shape[1], LINE // rows.itemsize
    if words == 1:  # the processor looks far enough ahead by itself
        for i in range(len(slots)):
            out[i, 0] = rows[slots[i], 0]
        return
    for i in range(len(slots)):
        later = slots[min(i + AHEAD, len(slots) - 1)]
        for word in range(0, words, per_line):
            _prefetch(rows, later, word)
        slot = slots[i]
        for word in range(words):
            out[i, word] = rows[slot, word]


@compiled
@no_type_check
def gather_streaming(rows, slots, out):
    """Gather rows of whole lines into an aligned `out` larger than the caches: past them it is not read first."""
    words, per_line = rows.shape[1], LINE // rows.itemsize
    for i in range(len(slots)):
        later = slots[min(i + AHEAD, len(slots) - 1)]
        for word in range(0, words, per_line):
            _prefetch(rows, later, word)
        slot = slots[i]
        for word in range(0, words, per_line):
            _stream_line(rows, slot, word, out, i)
    _fence()


@compiled
@no_type_check
def scatter(rows, slots, given):
    """rows[slots[i]] = given[i]."""
    words, per_line = rows.shape[1], LINE // rows.itemsize
    for i in range(len(slots)):
        later = slots[min(i + AHEAD, len(slots) - 1)]
        for word in range(0, words, per_line):
            _prefetch(rows, later, word)
        slot = slots[i]
        for word in range(words):
            rows[slot, word] = given[i, word]


@compiled
@no_type_check
def scatter_streaming(rows, slots, given):
    """`scatter` of rows of whole lines, which need not be read before they are overwritten."""
    words, per_line = rows.shape[1], LINE // rows.itemsize
    for i in range(len(slots)):
        slot = slots[i]
        for word in range(0, words, per_line):
            _stream_line(given, i, word, rows, slot)
    _fence()


@compiled
@no_type_check
def _mark_finite(words, unsigned, infinity, finite):
    """finite[i] = all(words[i] & unsigned < infinity), of the bits of floating-point numbers."""
    for i in range(len(words)):
        largest = words[i, 0] & unsigned
        for word in range(words.shape[1]):
            largest = max(largest, words[i, word] & unsigned)
        finite[i] = largest < infinity


def finite_rows(rows: Float[Tensor, "rows channels"]) -> Bool[Tensor, " rows"]:
    """Mark rows without infinities and NaN. On the host one thread looks: OpenMP's barriers spin on busy cores."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(rows.element_size())
    if integers is None or rows.device.type != "cpu" or not rows.is_contiguous():
        return rows.isfinite().all(1)
    words, finite = rows.view(integers).numpy(), torch.empty(len(rows), dtype=torch.bool)
    infinity = torch.tensor(torch.inf, dtype=rows.dtype).view(integers).numpy()[()]
    _mark_finite(words, words.dtype.type(torch.iinfo(integers).max), infinity, finite.numpy())
    return finite


# Places ------------------------------------------------------------------------------------------------------------

Grow = Callable[[Tensor, int], Tensor]
HUGE_PAGE = 2 << 20  # bytes


def ordinary(rows: Tensor, num_rows: int) -> Tensor:
    """Allocate in huge pages if they pay: a gather from a large table of small ones takes up to twice the time."""
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
    """A file without a name in `directory`, mapped into memory. The system keeps used pages in memory, and frees the
    disk with the last tensor over it, even if the process is killed.

    Raises:
        OSError: the directory cannot be written, or its disk is full (checked as rows grow, not as they are written).
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


def rows_for(
    tier: Tier, channels: int, dtype: torch.dtype, device: torch.device, path: Path | None
) -> AcceleratorRows | HostRows:
    """One row of zeros, in `tier`. Pinned memory needs an accelerator; without one it is ordinary."""
    if tier == "device" and device.type != "cpu":
        return AcceleratorRows(channels, dtype, device)
    if tier == "disk":
        assert path is not None
        return HostRows(channels, dtype, device, MappedFile(path))
    pins = tier == "pinned" and torch.cuda.is_available()
    return HostRows(channels, dtype, device, pinned if pins else ordinary)


class AcceleratorRows:
    """Rows in the accelerator's own memory. Slots, positions of rows, are on the host."""

    @torch.inference_mode(False)  # rows made in inference mode could never be written outside it
    def __init__(self, channels: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = torch.zeros(1, channels, dtype=dtype, device=device)

    def gather(self, slots: Int32[np.ndarray, " slots"], out: Tensor | None = None) -> Float[Tensor, "slots channels"]:
        return torch.index_select(self.rows, 0, self._sent(slots), out=out)

    def copied(self, slots: Int32[np.ndarray, " slots"]) -> Float[Tensor, "slots channels"]:
        return self.gather(slots).cpu()

    def scatter(self, slots: Int32[np.ndarray, " slots"], rows: Float[Tensor, "slots channels"]) -> None:
        self.rows.index_copy_(0, self._sent(slots).long(), rows.detach().to(self.rows))

    @torch.inference_mode(False)
    def grow(self, num_rows: int) -> None:
        larger = self.rows.new_empty(num_rows, self.rows.shape[1])
        larger[: len(self.rows)] = self.rows
        self.rows = larger

    def _sent(self, slots: Int32[np.ndarray, " slots"]) -> Tensor:
        """On the device, without a wait of the host."""
        numbers = torch.from_numpy(slots)
        return (numbers.pin_memory() if self.rows.is_cuda else numbers).to(self.rows.device, non_blocking=True)


class HostRows:
    """Rows in the host's memory, allocated by `grow_rows`, for a table whose results go to `device`.

    One thread copies: on the machines measured a second one waited for the same memory.
    """

    def __init__(self, channels: int, dtype: torch.dtype, device: torch.device, grow_rows: Grow) -> None:
        row_bytes = channels * dtype.itemsize
        self._word = next(word for word in _WORDS if row_bytes % word.itemsize == 0)
        self._in_lines = row_bytes % LINE == 0
        self._device, self._grow_rows = device, grow_rows
        self._process = os.getpid() if isinstance(grow_rows, MappedFile) else None
        self._keep(grow_rows(torch.zeros(1, channels, dtype=dtype), 1))

    def gather(self, slots: Int32[np.ndarray, " slots"], out: Tensor | None = None) -> Float[Tensor, "slots channels"]:
        """Copies of the rows, on the table's device: in `out` if it is not None."""
        direct = out is not None and self._reachable(out)
        host = out if out is not None and direct else self._staging(len(slots))
        streams = self._in_lines and host.nbytes >= STREAMED_BYTES and host.data_ptr() % LINE == 0
        copy_rows = gather_streaming if streams else gather
        copy_rows(self._words, slots, self._in_words(host))
        if direct:
            return host
        return host.to(self._device, non_blocking=True) if out is None else out.copy_(host, non_blocking=True)

    def copied(self, slots: Int32[np.ndarray, " slots"]) -> Float[Tensor, "slots channels"]:
        """Gather a large part of all rows, once, into huge pages of the host."""
        return self.gather(slots, ordinary(self.rows[:0], len(slots)))

    def scatter(self, slots: Int32[np.ndarray, " slots"], rows: Float[Tensor, "slots channels"]) -> None:
        """Overwrite distinct rows with `rows`, of any dtype and device."""
        streams = self._in_lines and self.rows.data_ptr() % LINE == 0
        copy_rows = scatter_streaming if streams else scatter
        copy_rows(self._words, slots, self._in_words(self._on_host(rows.detach())))

    @torch.inference_mode(False)
    def grow(self, num_rows: int) -> None:
        """Make room; rows keep their slots."""
        self._keep(self._grow_rows(self.rows, num_rows))

    def check_process(self) -> None:
        """Raise ValueError in a process forked from the one that maps the file: both would write the same memory."""
        if self._process not in (None, os.getpid()):
            raise ValueError(
                f"the rows of this table are in a file of process {self._process}, and this is its fork "
                f"{os.getpid()}; clear() the table here, make one in each process, or keep rows in tier 'device'"
            )

    def _keep(self, rows: Tensor) -> None:
        self.rows, self._words = rows, rows.view(self._word).numpy()

    def _in_words(self, rows: Tensor) -> np.ndarray:
        """View contiguous rows as words; the strides of an axis of length 0 or 1 may be anything."""
        return rows.flatten().view(self._word).numpy().reshape(len(rows), self._words.shape[1])

    def _staging(self, num_rows: int) -> Tensor:
        pins = self._device.type == "cuda"
        return torch.empty(num_rows, self.rows.shape[1], dtype=self.rows.dtype, pin_memory=pins)

    def _on_host(self, rows: Tensor) -> Tensor:
        rows = rows.to(self.rows.dtype)
        if rows.is_cuda:
            staging = self._staging(len(rows)).copy_(rows, non_blocking=True)
            torch.cuda.current_stream(rows.device).synchronize()  # the kernel reads what has arrived
            return staging
        rows = rows.cpu().contiguous()
        return rows if self._reachable(rows) else rows.clone()

    def _reachable(self, rows: Tensor) -> bool:
        """True if the kernels can read or write it in place, word by word."""
        if rows.device.type != "cpu" or not rows.is_contiguous():
            return False
        offset = rows.storage_offset() * rows.element_size()
        return offset % self._word.itemsize == 0 and rows.data_ptr() % self._word.itemsize == 0


About = TypeVar("About")
MOST_AHEAD = 4  # values on their way: the host prepares so many steps before the device has computed them


class OnHost:
    """The value of a tensor on its way to the host, which does not wait for the accelerator before it is needed."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._arrived = tensor, None
        if tensor.is_cuda:
            self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(
                tensor, non_blocking=True
            )
            self._arrived = torch.cuda.current_stream(tensor.device).record_event()

    def value(self) -> Tensor:
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._tensor

    def has_arrived(self) -> bool:
        return self._arrived is None or self._arrived.query()


class Arrivals(Generic[About]):
    """Values of one step after another, each with what it is about.

    Examples:
        >>> arrivals = Arrivals[str]()
        >>> arrivals.add(torch.tensor(0.5), "the first step")
        >>> list(arrivals.here())
        [(tensor(0.5000), 'the first step')]
    """

    def __init__(self) -> None:
        self._underway = deque[tuple[OnHost, About]]()

    def add(self, value: Tensor, about: About) -> None:
        self._underway.append((OnHost(value), about))

    def here(self, waits: bool = False) -> Iterator[tuple[Tensor, About]]:
        """Take the values that have arrived, in order; all of them if the host `waits`, as it does for the oldest if
        more than `MOST_AHEAD` are on their way."""
        while self._underway and (waits or len(self._underway) > MOST_AHEAD or self._underway[0][0].has_arrived()):
            value, about = self._underway.popleft()
            yield value.value(), about
