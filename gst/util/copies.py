"""Copies on this disk of objects behind addresses: whole files, and arrays of which the parts that are used are copied.

A large object lies here in chunks, files with holes. After the bytes of a chunk come flags, one for each block that is
here. Bytes are written before their flags, so that a killed process leaves no wrong ones. The chunk used longest ago is
removed first; who reads it at that time goes on with the removed file.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import shutil
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from gst.util.addresses import Address, details, download, place, read_ranges
from gst.util.writing import atomic_path, cache_directory

CHUNK, BLOCK = 1 << 26, 64  # bytes
GAP = 4 * BLOCK  # bytes that are read along to save a request, whose own header is as long
MORE = 3 * 4096  # bytes at most that a range takes besides on the disk: pages at its ends, and one of flags
MOST_OPEN = 128  # chunks of a process
SHARE = 10  # of the free disk, one of so many parts is for copies

_open_chunks: dict[str, _Chunk] = {}
_lock = Lock()


def copies_directory() -> Path:
    """Return the folder of all copies."""
    return cache_directory() / "objects"


def local_copy(path: Path | str) -> Path:
    """Return a local path as it is, and for an address that of a copy, which is made unless the cache holds it.

    Raises:
        ValueError: the address holds no such object, or gives no answer.
    """
    found = place(path)
    if not isinstance(found, Address):
        return found
    now = details(found)
    if now is None:
        raise ValueError(f"{found}: there is no such object")
    key = hashlib.sha256(f"{found} {now.tag}".encode()).hexdigest()[:16]
    copy = copies_directory() / key / found.name
    if not (now.tag and copy.is_file() and copy.stat().st_size == now.size):
        with atomic_path(copy) as partial:
            download(found, partial, now.size)
    return copy


def usual_room() -> int:
    """Return the bytes that all copies may take by default: a tenth of the free disk."""
    copies_directory().mkdir(parents=True, exist_ok=True)
    held = sum(size for _, size, _ in _contents())
    return (shutil.disk_usage(copies_directory()).free + held) // SHARE


class RemoteFile(NamedTuple):
    """An object of `size` bytes, the path of its chunks without their number, and the bytes of all copies together."""

    address: Address
    size: int
    chunks: str
    room: int


class _Chunk:
    """Part of an object on the disk."""

    def __init__(self, path: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
        self.file.truncate(CHUNK + CHUNK // BLOCK)
        self.data = np.asarray(np.memmap(self.file, np.uint8, "r"))
        self.used = 0.0
        self._looks: dict[tuple[int, int], float] = {}

    def use(self) -> bool:
        """Note that the chunk is used; False if it was removed."""
        if (now := time.monotonic()) - self.used > 1:
            self.used = now
            os.utime(self.file.fileno())
            return os.fstat(self.file.fileno()).st_nlink > 0
        return True

    def missing(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges of blocks among these bytes that are not here."""
        first = start // BLOCK
        flags = self.data[CHUNK + first : CHUNK + -(-stop // BLOCK)]
        if flags.all():
            return []
        return [(BLOCK * (first + low), BLOCK * (first + high)) for low, high in _runs(np.flatnonzero(flags == 0))]

    def holds(self, start: int, stop: int) -> bool:
        """True if all of these bytes are here; looks once a second until they are."""
        if (at := self._looks.get((start, stop), 0.0)) <= (now := time.monotonic()):
            flags = self.data[CHUNK + start // BLOCK : CHUNK + -(-stop // BLOCK)]
            at = self._looks[start, stop] = math.inf if flags.all() else now + 1
        return at == math.inf

    def write(self, start: int, content: bytes) -> None:
        """Write whole blocks, and the last bytes of the object."""
        for part, offset in ((content, start), (bytes([1]) * -(-len(content) // BLOCK), CHUNK + start // BLOCK)):
            if os.pwrite(self.file.fileno(), part, offset) != len(part):
                raise OSError(errno.ENOSPC, f"no space left on the disk of {copies_directory()}")


Range = tuple[RemoteFile, int, int]


def _read(ranges: Iterable[Range]) -> np.ndarray:
    """Return the bytes of ranges, one after the other."""
    return np.concatenate([np.zeros(0, np.uint8), *(chunk.data[low:high] for chunk, low, high in _fetch(ranges))])


def _fetch(ranges: Iterable[Range]) -> list[tuple[_Chunk, int, int]]:
    """Copy the bytes of ranges that are not here, by requests at the same time; returns their places, in order."""
    places: list[tuple[_Chunk, int, int]] = []
    wanted: dict[tuple[str, int], tuple[RemoteFile, _Chunk, list[tuple[int, int]]]] = {}
    for file, start, stop in ranges:
        for number in range(start // CHUNK, -(-stop // CHUNK) if stop > start else 0):
            low, high = max(start - number * CHUNK, 0), min(stop - number * CHUNK, CHUNK)
            chunk = _chunk(f"{file.chunks}.{number}")
            places.append((chunk, low, high))
            if missing := chunk.missing(low, high):
                wanted.setdefault((file.chunks, number), (file, chunk, []))[2].extend(missing)
    requests = [
        (file, chunk, number * CHUNK, low, min(high, file.size - number * CHUNK))
        for (_, number), (file, chunk, missing) in wanted.items()
        for low, high in _joined(missing)
    ]
    if requests:
        contents = read_ranges([(file.address, begin + low, begin + high) for file, _, begin, low, high in requests])
        for (_, chunk, _, low, _), content in zip(requests, contents, strict=True):
            chunk.write(low, content)
        _make_room(requests[0][0].room, sum(len(content) + MORE for content in contents))
    return places


def _chunk(path: str) -> _Chunk:
    with _lock:
        chunk = _open_chunks.pop(path, None)
        if chunk is None or not chunk.use():
            chunk = _Chunk(path)
            chunk.use()
        _open_chunks[path] = chunk  # the one used last comes last
        if len(_open_chunks) > MOST_OPEN:
            del _open_chunks[next(iter(_open_chunks))]
        return chunk


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low - joined[-1][1] <= GAP:
            low, high = joined[-1][0], max(joined.pop()[1], high)
        joined.append((low, high))
    return joined


def _runs(numbers: np.ndarray) -> list[tuple[int, int]]:
    """Return (first, last + 1) of each run of neighbours among ascending numbers."""
    bounds = [0, *(np.flatnonzero(np.diff(numbers) > 1) + 1).tolist(), len(numbers)]
    return [(int(numbers[low]), int(numbers[high - 1]) + 1) for low, high in pairwise(bounds)]


_written = 0


def _make_room(room: int, written: int) -> None:
    """Remove copies used longest ago if all together take more than `room`; looked up now and then."""
    global _written
    _written += written
    if _written < room // 16:
        return
    _written = 0
    files = sorted(_contents())
    total = sum(size for _, size, _ in files)
    for _, size, path in files:
        if total <= room - room // 16:
            break
        path.unlink(missing_ok=True)
        _open_chunks.pop(str(path), None)
        total -= size


def _contents() -> Iterable[tuple[int, int, Path]]:
    """Yield time of the last use, bytes on the disk and path of each copy."""
    for path in copies_directory().rglob("*"):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if not path.is_dir():
            yield status.st_mtime_ns, status.st_blocks * 512, path


class FarArray(NDArrayOperatorsMixin):
    """Array in an object. A slice of rows, and rows by two arrays of numbers, read these; all else reads the whole.

    Args:
        file: the object; the array begins at byte `offset`.
        axis: the axis of rows, which lie one after the other: 1 for the transpose of a matrix.
    """

    def __init__(self, file: RemoteFile, offset: int, shape: Sequence[int], dtype: np.dtype, axis: int = 0) -> None:
        self.file, self.offset, self.stored, self.dtype, self.axis = file, offset, tuple(shape), dtype, axis
        self.size = math.prod(shape)
        self.nbytes = self.size * dtype.itemsize

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored[::-1] if self.axis else self.stored

    @property
    def T(self) -> FarArray:
        assert len(self.stored) == 2
        return FarArray(self.file, self.offset, self.stored, self.dtype, 1 - self.axis)

    def __len__(self) -> int:
        return self.shape[0]

    def ranges(self, index: Any) -> list[Range]:
        """Return the ranges of bytes that an index reads."""
        return self._ranges(*self._taken(index)[:2]) if self._mapped() is None else []

    def _mapped(self) -> np.ndarray | None:
        """Return the array as it lies on this disk, if all of it is here, in one chunk: as fast as a local store's."""
        number, low = divmod(self.offset, CHUNK)
        high, chunk = low + self.nbytes, _chunk(f"{self.file.chunks}.{number}")
        if high > CHUNK or not chunk.holds(low, high):
            return None
        array = chunk.data[low:high].view(self.dtype).reshape(self.stored)
        return array.T if self.axis else array

    def _ranges(self, runs: list[tuple[int, int]], shape: tuple[int, ...]) -> list[Range]:
        width = math.prod(shape) * self.dtype.itemsize
        return [(self.file, self.offset + low * width, self.offset + high * width) for low, high in runs]

    def __getitem__(self, index: Any) -> np.ndarray:
        if (mapped := self._mapped()) is not None:
            here: np.ndarray = mapped[index]
            return here
        runs, shape, rest = self._taken(index)
        content = _read(self._ranges(runs, shape)).view(self.dtype)
        rows = content.reshape(sum(high - low for low, high in runs), *shape)
        result: np.ndarray = (rows.T if self.axis else rows)[rest]
        return result

    def _taken(self, index: Any) -> tuple[list[tuple[int, int]], tuple[int, ...], Any]:
        """Return runs of rows, the shape of a row, and the index that takes the result from these rows."""
        whole, shape = slice(None), self.stored[1:]
        of_rows = index[1] if self.axis and isinstance(index, tuple) and _is_whole(index[0]) else index
        if isinstance(of_rows, slice) and of_rows.step in (None, 1) and (of_rows is not index or not self.axis):
            start, stop, _ = of_rows.indices(self.stored[0])
            return [(start, max(start, stop))], shape, whole
        if isinstance(index, tuple) and len(index) == 2 and all(map(_are_numbers, index)) and not self.axis:
            for numbers, length in zip(index, self.stored[:2], strict=True):
                if numbers.size and not 0 <= numbers.min() <= numbers.max() < length:
                    raise IndexError(f"{numbers.min()}..{numbers.max()} are asked for of {length} rows")
            numbers = index[0] * self.stored[1] + index[1]
            rows = np.unique(numbers)
            return (_runs(rows) if len(rows) else []), shape[1:], np.searchsorted(rows, numbers)
        return [(0, self.stored[0])], shape, index

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("reading makes a copy")
        return np.asarray(self[:, :] if self.axis else self[:], dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        arrays = [np.asarray(each) if isinstance(each, FarArray) else each for each in inputs]
        return getattr(ufunc, method)(*arrays, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "file" not in vars(self):  # what NumPy and pickle ask for
            raise AttributeError(name)
        return getattr(np.asarray(self), name)


if TYPE_CHECKING:
    Array = np.ndarray
else:
    Array = np.ndarray | FarArray  # of a store behind an address: read where it is indexed, else like the other


def _is_whole(each: Any) -> bool:
    return isinstance(each, slice) and each == slice(None)


def _are_numbers(each: Any) -> bool:
    return isinstance(each, np.ndarray) and each.dtype.kind in "iu"


def read_whole(files: dict[str, RemoteFile]) -> dict[str, np.ndarray]:
    """Return the bytes of files, which are requested at the same time."""
    _fetch((file, 0, file.size) for file in files.values())
    return {name: _read([(file, 0, file.size)]) for name, file in files.items()}


def fetch_together(parts: Iterable[tuple[Any, Any]]) -> None:
    """Copy what indexing arrays will take, (array, index) each, by requests at the same time; others are not far."""
    _fetch(each for array, index in parts if isinstance(array, FarArray) for each in array.ranges(index))
