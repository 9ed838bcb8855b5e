"""Arrays of many graphs on disk: one file per field, the arrays of one graph after those of another.

Layout features of TpuGraphs (Phothilimthana et al. 2023, arXiv 2308.13490) are dimension numbers 0 .. 5, padded with
-1. Three bits hold eight symbols, so 18 symbols are packed into 8 bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from mmap import ALLOCATIONGRANULARITY
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from jaxtyping import Int8, Shaped, UInt
from numpy.typing import DTypeLike

from gst.util.copies import Array, FarArray, RemoteFile
from gst.util.untrusted import shown

ALIGNMENT = 64
JOURNAL = "journal.jsonl"
ROWS_UNPACKED = 256  # at once

_FILE = re.compile(r"\w+\.bin", re.ASCII)  # without folders: no store leads out of its own

Entry = dict[str, Any]
"""Place of an array in its file: `offset` in bytes, `shape`, `dtype`, `checksum`, and `symbols`, the length of a packed
last axis."""

Record = dict[str, Any]
"""Properties of a graph; `arrays` holds the entry of each field."""


class ArrayWriter:
    """Writes graph after graph into a directory, as a context manager. A journal lists the finished graphs, so that a
    later writer continues after the last one.

    Args:
        directory: empty, or left by another writer: `finished` then holds the records of its graphs.
        fields: names of the arrays of every graph. A graph may have others, too.
    """

    def __init__(self, directory: Path, fields: Iterable[str]) -> None:
        self.directory, self.fields = directory, tuple(fields)
        self.finished = [record for record in _journalled(directory / JOURNAL) if self._holds(record)]

    def __enter__(self) -> ArrayWriter:
        self._files: dict[str, BinaryIO] = {}
        self._journal = (self.directory / JOURNAL).open("ab")
        self.keep(len(self.finished))
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        for file in (*self._files.values(), self._journal):
            with suppress(OSError) if kind is not None else nullcontext():  # a full disk was reported already
                file.close()

    def keep(self, count: int) -> None:
        """Drop all arrays after the first `count` graphs."""
        del self.finished[count:]
        written = (name for record in self.finished for name in record["arrays"])
        for name in dict.fromkeys((*self.fields, *written, *self._files)):
            self._truncate(self._file(name), name)
        self._journal.truncate(0)
        self._journal.write(b"".join(_line(record) for record in self.finished))
        self._journal.flush()

    def write(self, pieces: Iterable[tuple[str, np.ndarray]]) -> dict[str, Entry]:
        """Append the arrays of a graph; the pieces of each are laid end to end."""
        growing: dict[str, _Growing] = {}
        for name, piece in pieces:
            if name not in growing:
                growing[name] = _Growing(self._file(name), piece)
            growing[name].append(piece)
        assert growing.keys() >= set(self.fields)
        return {name: each.entry() for name, each in growing.items()}

    def write_part(self, part: Path, entries: dict[str, Entry]) -> dict[str, Entry]:
        """Append the files of a writer of one graph, whose arrays have these `entries`."""
        places: dict[str, Entry] = {}
        for name, entry in entries.items():
            file = self._file(name)
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            places[name] = entry | {"offset": file.tell() + entry["offset"]}
            with (part / self._path(name).name).open("rb") as own:
                shutil.copyfileobj(own, file)
        return places

    def finish(self, record: Record) -> None:
        """Note that the graph of `record` is written."""
        for file in self._files.values():
            file.flush()
        self._journal.write(_line(record))
        self._journal.flush()
        self.finished.append(record)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file, by file name."""
        return {self._path(name).name: file.tell() for name, file in self._files.items()}

    def _file(self, name: str) -> BinaryIO:
        if name not in self._files:
            self._files[name] = self._path(name).open("ab")
            self._truncate(self._files[name], name)
        return self._files[name]

    def _truncate(self, file: BinaryIO, name: str) -> None:
        ends = (_end(record["arrays"][name]) for record in reversed(self.finished) if name in record["arrays"])
        file.truncate(next(ends, 0))
        file.seek(0, os.SEEK_END)

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.bin"

    def _holds(self, record: Record) -> bool:
        return all(
            self._path(name).exists() and self._path(name).stat().st_size >= _end(entry)
            for name, entry in record["arrays"].items()
        )


class _Growing:
    """Array that is being written. It is packed until a piece comes that cannot be packed."""

    def __init__(self, file: BinaryIO, piece: np.ndarray) -> None:
        self.file = file
        self.symbols = piece.shape[-1] if piece.ndim > 1 and worth_packing(piece.dtype, piece.shape[-1]) else 0
        self._start(_stored(piece[:0], self.symbols))

    def append(self, piece: np.ndarray) -> None:
        if self.symbols and not packable(piece):
            self._unpack()
        stored = _stored(piece, self.symbols)
        assert (stored.shape[1:], stored.dtype.str) == self.kind
        self.file.write(as_bytes(stored))
        self.checksum.update(as_bytes(stored))
        self.rows += len(stored)

    def entry(self) -> Entry:
        entry = {"offset": self.offset, "shape": [self.rows, *self.kind[0]], "dtype": self.kind[1]}
        return entry | {"checksum": shortened(self.checksum)} | ({"symbols": self.symbols} if self.symbols else {})

    def _start(self, empty: np.ndarray) -> None:
        self.file.write(b"\0" * (-self.file.tell() % ALIGNMENT))
        self.offset, self.checksum = self.file.tell(), hashlib.sha256()
        self.rows, self.kind = 0, (empty.shape[1:], empty.dtype.str)

    def _unpack(self) -> None:
        """Write the packed part again, unpacked, behind it; the packed bytes stay unused."""
        self.file.flush()
        before, symbols, self.symbols = self.entry(), self.symbols, 0
        words = view(np.memmap(self.file.name, np.uint8, "r"), before) if self.rows else None
        self._start(unpacked(np.empty((0, *self.kind[0]), self.kind[1]), symbols))
        if words is not None:
            for start in range(0, len(words), ROWS_UNPACKED):
                self.append(unpacked(words[start : start + ROWS_UNPACKED], symbols))


def _stored(piece: np.ndarray, symbols: int) -> np.ndarray:
    return packed(piece) if symbols else piece


def check_names(directory: Path | str, names: Iterable[str]) -> None:
    """Raise ValueError for a name that a store gives none of its files."""
    for name in names:
        if not _FILE.fullmatch(name):
            raise ValueError(f"{directory}: {name[:60]!r} is no file of a store; delete the store and prepare it again")


def map_files(directory: Path, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Return the files of a finished writer by field, memory-mapped and read-only.

    They are plain arrays: each slice of a `numpy.memmap` takes microseconds more.

    Raises:
        ValueError: a file is missing, or does not hold as many bytes as were written.
    """
    found: dict[str, np.ndarray] = {}
    check_names(directory, sizes)
    for name, size in sizes.items():
        path = directory / name
        actual = path.stat().st_size if path.is_file() else "no"
        if actual != size:
            raise ValueError(
                f"{path} holds {actual} bytes, want {shown(size)}; delete {directory} and prepare it again"
            )
        found[path.stem] = np.asarray(np.memmap(path, np.uint8, "r")) if size else np.zeros(0, np.uint8)
    return found


def view(data: np.ndarray | RemoteFile, entry: Entry) -> Array:
    """Return the array of `entry` in its file."""
    dtype, end = np.dtype(entry["dtype"]), _end(entry)
    if dtype.hasobject:
        raise ValueError("a store holds numbers only; this one asks for objects")
    if not 0 <= entry["offset"] <= end <= data.size:
        raise ValueError(f"an array is said to lie at bytes {entry['offset']}..{end} of {data.size}")
    if isinstance(data, RemoteFile):
        return FarArray(data, entry["offset"], entry["shape"], dtype)  # type: ignore[return-value]
    return data[entry["offset"] : end].view(dtype).reshape(entry["shape"])


def decoded(data: np.ndarray | RemoteFile, entry: Entry) -> Array | PackedArray:
    """Return the array of `entry` as it was written; a packed one is unpacked where it is indexed."""
    return PackedArray(view(data, entry), entry["symbols"]) if "symbols" in entry else view(data, entry)


def as_bytes(array: np.ndarray) -> memoryview | bytes:
    """Return the bytes of an array in row-major order."""
    return np.ascontiguousarray(array).data.cast("B") if array.size else b""


def shortened(checksum: Any) -> str:
    """Return the first 16 hexadecimal digits of a checksum."""
    return str(checksum.hexdigest())[:16]


def _end(entry: Entry) -> int:
    num_bytes = math.prod(entry["shape"]) * np.dtype(entry["dtype"]).itemsize
    return int(entry["offset"]) + num_bytes


def _line(record: Record) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _journalled(path: Path) -> list[Record]:
    """Return the records of a journal, without an unfinished last line."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


# Symbols of three bits --------------------------------------------------------------------------------------------

BITS, LOWEST = 3, -1
HIGHEST = LOWEST + (1 << BITS) - 1
MOST_SYMBOLS = 64 // BITS
WORDS = tuple(map(np.dtype, ("<u1", "<u2", "<u4", "<u8")))
AT_ONCE = 4  # symbols that one look into the table unpacks


def word_for(num_symbols: int) -> np.dtype:
    """Return the smallest unsigned integer that holds so many symbols; at most 21 of them fit."""
    if not 0 <= num_symbols <= MOST_SYMBOLS:
        raise ValueError(f"{num_symbols} symbols do not fit into 64 bits; at most {MOST_SYMBOLS} do")
    return next(word for word in WORDS if num_symbols * BITS <= word.itemsize * 8)


def worth_packing(dtype: DTypeLike, num_symbols: int) -> bool:
    """True if symbols of this type take less space packed."""
    return np.dtype(dtype) == np.int8 and num_symbols <= MOST_SYMBOLS and word_for(num_symbols).itemsize < num_symbols


def packable(values: Shaped[np.ndarray, "*rows symbols"]) -> bool:
    """True if all values are among the eight that three bits tell apart, -1 .. 6."""
    return not values.size or bool(values.min() >= LOWEST and values.max() <= HIGHEST)


def packed(values: Int8[np.ndarray, "*rows symbols"]) -> UInt[np.ndarray, "*rows"]:
    """Return words with symbol k of a row, plus one, in the bits 3k .. 3k + 2; values are `packable`."""
    word = word_for(values.shape[-1])
    words = np.zeros(values.shape[:-1], word)
    for k in range(values.shape[-1]):
        words |= (values[..., k] - LOWEST).astype(word) << word.type(BITS * k)
    return words


def unpacked(words: UInt[np.ndarray, "*rows"], num_symbols: int) -> Int8[np.ndarray, "*rows symbols"]:
    """Return the symbols of `packed`, four at a time from a table of all numbers of twelve bits."""
    looks = -(-num_symbols // AT_ONCE)
    found = np.empty((*words.shape, looks), FOUR_SYMBOLS.dtype)
    mask = min(len(FOUR_SYMBOLS) - 1, np.iinfo(words.dtype).max)
    for look in range(looks):
        place = (words >> words.dtype.type(look * AT_ONCE * BITS)) & words.dtype.type(mask)
        found[..., look] = FOUR_SYMBOLS[place]
    return found.view(np.int8)[..., :num_symbols]


_CODES = np.arange(1 << (AT_ONCE * BITS))[:, None] >> BITS * np.arange(AT_ONCE) & (HIGHEST - LOWEST)
FOUR_SYMBOLS = (_CODES + LOWEST).astype(np.int8).view(np.uint32).ravel()
"""For each number of twelve bits its four symbols, an int8 each, as one integer of 32 bits."""


@dataclass(frozen=True, eq=False)
class PackedArray:
    """An int8 array with a packed last axis, in memory or memory-mapped: only indexed rows are unpacked.

    Args:
        words: a word for each row of symbols.
        num_symbols: the length of the last axis.
    """

    words: UInt[Array, "*rows"]
    num_symbols: int

    def __post_init__(self) -> None:
        if not isinstance(self.num_symbols, int) or word_for(self.num_symbols) != self.words.dtype:
            raise ValueError(f"{self.num_symbols} symbols are not packed in {self.words.dtype}")

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.words.shape, self.num_symbols)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.int8)

    @property
    def nbytes(self) -> int:
        return self.words.nbytes

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: Any) -> np.ndarray:
        """Index as numpy does; the last axis comes whole, so `index` may not reach it.

        Raises:
            IndexError: it has an ellipsis, which would stand for the axes of the words.
        """
        if any(part is Ellipsis for part in (index if isinstance(index, tuple) else (index,))):
            raise IndexError("the symbols of a packed array come whole; index the axes before them, with no ellipsis")
        return unpacked(np.asarray(self.words[index]), self.num_symbols)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("unpacking makes a copy")
        return unpacked(np.asarray(self.words), self.num_symbols).astype(dtype or np.int8, copy=False)


class Mapped(NamedTuple):
    """Place of a memory-mapped array in a file, which is pickled instead of the array.

    Args:
        offset: bytes of the file before the first element.
        strides: bytes between elements along each axis.
        num_symbols: of a `PackedArray`, else 0.
    """

    path: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    num_symbols: int = 0

    @staticmethod
    def of(array: object) -> Mapped | None:
        """Return the place of an array; None unless it is mapped read-only."""
        words = array.words if isinstance(array, PackedArray) else array
        if not isinstance(words, np.ndarray) or not words.size:
            return None
        file: Any = words
        while file is not None and not isinstance(file, np.memmap):
            file = getattr(file, "base", None)
        if file is None or file.mode != "r":
            return None
        begin = np.frombuffer(file._mmap, np.uint8).ctypes.data  # type: ignore[attr-defined]
        offset = file.offset - file.offset % ALLOCATIONGRANULARITY + words.ctypes.data - begin
        num_symbols = array.num_symbols if isinstance(array, PackedArray) else 0
        return Mapped(str(file.filename), offset, words.shape, words.strides, words.dtype.str, num_symbols)

    def open(self) -> np.ndarray | PackedArray:
        """Map the array again.

        Raises:
            OSError: the file is gone.
        """
        data = _mapped_files.get(self.path)
        if data is None:
            data = _mapped_files[self.path] = np.memmap(self.path, np.uint8, "r")
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        dtype = np.dtype(self.dtype)
        flat = np.asarray(data)[self.offset : self.offset + last + dtype.itemsize].view(dtype)
        words = np.lib.stride_tricks.as_strided(flat, self.shape, self.strides, writeable=False)
        return PackedArray(words, self.num_symbols) if self.num_symbols else words


_mapped_files: WeakValueDictionary[str, np.memmap] = WeakValueDictionary()
