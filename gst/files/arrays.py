"""Arrays of many graphs on disk: one file per field, the arrays of one graph behind those of another. Small symbols
are packed (`gst.files.packing`) where that is smaller: layouts take 8 bytes per configuration and node, not 18."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from gst.files.packing import PackedArray, packable, packed, unpacked, worth_packing
from gst.files.untrusted import shown
from gst.files.writing import chunks

ALIGNMENT = 64
JOURNAL = "journal.jsonl"
ROWS_UNPACKED = 256  # at once

_FILE = re.compile(r"[a-z_]+\.bin")  # without folders: no store leads out of its own

Entry = dict[str, Any]
"""Where an array is in its file: `offset` in bytes, `shape`, `dtype`, and the `checksum` of its bytes. `symbols`, if it
is packed, is the length of the axis that is not in `shape`."""

Record = dict[str, Any]
"""What is known of a graph; `arrays` holds the entry of each field."""


class ArrayWriter:
    """Writes graph after graph into a directory. What is finished is noted in a journal, so that whoever comes after a
    killed writer goes on behind the last finished graph. A context manager.

    Args:
        directory: an empty one, or one that another writer left: `finished` then holds the records of its graphs.
        fields: names of the arrays of every graph.
    """

    def __init__(self, directory: Path, fields: Iterable[str]) -> None:
        self.directory, self.fields = directory, tuple(fields)
        self.finished = [record for record in _journalled(directory / JOURNAL) if self._holds(record)]

    def __enter__(self) -> ArrayWriter:
        self._files = {name: self._path(name).open("ab") for name in self.fields}
        self._journal = (self.directory / JOURNAL).open("ab")
        self.keep(len(self.finished))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (*self._files.values(), self._journal):
            with suppress(OSError) if error is not None else nullcontext():  # a full disk was reported already
                file.close()

    def keep(self, count: int) -> None:
        """Drop what was written after the first `count` graphs."""
        del self.finished[count:]
        for name, file in self._files.items():
            file.truncate(_end(self.finished[-1]["arrays"][name]) if self.finished else 0)
            file.seek(0, os.SEEK_END)
        self._journal.truncate(0)
        self._journal.write(b"".join(_line(record) for record in self.finished))
        self._journal.flush()

    def write(self, pieces: Iterable[tuple[str, np.ndarray]]) -> dict[str, Entry]:
        """Append the arrays of a graph, each of them what its pieces are when laid end to end."""
        growing: dict[str, _Growing] = {}
        for name, piece in pieces:
            if name not in growing:
                growing[name] = _Growing(self._files[name], piece)
            growing[name].append(piece)
        return {name: growing[name].entry() for name in self.fields}

    def finish(self, record: Record) -> None:
        """Note that the graph of `record` is written."""
        for file in self._files.values():
            file.flush()
        self._journal.write(_line(record))
        self._journal.flush()
        self.finished.append(record)

    def sizes(self) -> dict[str, int]:
        """Bytes of each file, by file name."""
        return {self._path(name).name: file.tell() for name, file in self._files.items()}

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.bin"

    def _holds(self, record: Record) -> bool:
        return all(
            self._path(name).exists() and self._path(name).stat().st_size >= _end(record["arrays"][name])
            for name in self.fields
        )


class _Growing:
    """An array of which only the first part is written. It is packed until a piece comes that cannot be."""

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
        """Write again what was packed, behind it. Its room is lost: few arrays hold a large symbol, and a late one."""
        self.file.flush()
        before, symbols, self.symbols = self.entry(), self.symbols, 0
        words = view(np.memmap(self.file.name, np.uint8, "r"), before) if self.rows else None
        self._start(unpacked(np.empty((0, *self.kind[0]), self.kind[1]), symbols))
        if words is not None:
            for part in chunks(len(words), ROWS_UNPACKED):
                self.append(unpacked(words[part], symbols))


def _stored(piece: np.ndarray, symbols: int) -> np.ndarray:
    return packed(piece) if symbols else piece


def map_files(directory: Path, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """The files of a finished writer by field, memory-mapped and read-only.

    Raises:
        ValueError: a file is missing, or does not hold as many bytes as were written.
    """
    found: dict[str, np.ndarray] = {}
    for name, size in sizes.items():
        if not _FILE.fullmatch(name):
            raise ValueError(f"{directory}: {name[:60]!r} is no file of a store; delete the store and prepare it again")
        path = directory / name
        actual = path.stat().st_size if path.is_file() else "no"
        if actual != size:
            raise ValueError(
                f"{path} holds {actual} bytes, want {shown(size)}; delete {directory} and prepare it again"
            )
        found[path.stem] = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)
    return found


def view(data: np.ndarray, entry: Entry) -> np.ndarray:
    """The array of `entry` in its file."""
    dtype, end = np.dtype(entry["dtype"]), _end(entry)
    if dtype.hasobject:
        raise ValueError("a store holds numbers only; this one asks for objects")
    if not 0 <= entry["offset"] <= end <= len(data):
        raise ValueError(f"an array is said to lie at bytes {entry['offset']}..{end} of {len(data)}")
    return data[entry["offset"] : end].view(dtype).reshape(entry["shape"])


def decoded(data: np.ndarray, entry: Entry) -> np.ndarray | PackedArray:
    """The array of `entry` as it was written; one that is packed is unpacked where it is indexed."""
    return PackedArray(view(data, entry), entry["symbols"]) if "symbols" in entry else view(data, entry)


def as_bytes(array: np.ndarray) -> memoryview | bytes:
    return np.ascontiguousarray(array).data.cast("B") if array.size else b""


def shortened(checksum: Any) -> str:
    """16 hexadecimal digits: a store of thousands of graphs holds one for each of their arrays."""
    return str(checksum.hexdigest())[:16]


def _end(entry: Entry) -> int:
    num_bytes = int(np.prod(entry["shape"], dtype=np.int64)) * np.dtype(entry["dtype"]).itemsize
    return int(entry["offset"]) + num_bytes


def _line(record: Record) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _journalled(path: Path) -> list[Record]:
    """The records of a journal; a last line that was cut off is none."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]
