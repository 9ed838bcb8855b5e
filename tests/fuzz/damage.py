"""Ways to damage a file: blindly, byte by byte, and with knowledge of its format."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

Random = np.random.Generator
NUMBERS = (-1, 0, 1, 127, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)
WIDTHS = ("<B", "<H", "<I", "<Q", ">I", ">Q")
VALUES: tuple[Any, ...] = (
    None, True, -1, -(2**70), 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "x" * 5000,
    "../../../etc/passwd", "/etc/hosts", "a\x1b[2Jb\nc", "\ud800", [], {}, [[]], [None], {"": {}}, [0] * 10_000,
)  # fmt: skip
DTYPES = ("<f4", "<f8", "<i8", "|i1", "|u1", "<u8", "<c16", "|b1", "<U3", "|S2", "<M8[s]", "<i4,<f4", "|V0", "<f2")
CANARY = "executed"  # the folder that a file makes if something in it is executed


class Bomb:
    """Unpickled, it makes the folder `CANARY`."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (CANARY,)


def damaged(name: str, content: bytes, random: Random) -> bytes:
    """A damaged copy of the file, by its ending half of the time, else blindly. The same generator, the same damage."""
    by_ending = {
        ".json": _json, ".jsonl": _json_lines, ".npz": _archive, ".pt": _tensors, ".ckpt": _tensors,
    }.get(Path(name).suffix, _lines)  # fmt: skip
    chance = random.random()
    if chance < 0.02:
        return pickle.dumps(Bomb())
    if chance < 0.5 or not content:
        return _bytes(content, random)
    return by_ending(content, random)


def _bytes(content: bytes, random: Random) -> bytes:
    for _ in range(int(random.integers(1, 4))):
        content = _one_of(BLIND, random)(content, random)
    return content


def _one_of(choices: Any, random: Random) -> Any:
    return choices[int(random.integers(len(choices)))]


def _span(content: bytes, random: Random) -> tuple[int, int]:
    start = int(random.integers(len(content) + 1))
    length = int(random.integers(1, 1 + min(len(content) + 1, int(_one_of((2, 16, 256, 4096), random)))))
    return start, min(start + length, len(content))


def _truncate(content: bytes, random: Random) -> bytes:
    return content[: int(random.integers(len(content) + 1))]


def _flip(content: bytes, random: Random) -> bytes:
    flipped = bytearray(content or b"\0")
    for place in random.integers(len(flipped), size=int(random.integers(1, 9))):
        flipped[place] ^= 1 << int(random.integers(8))
    return bytes(flipped)


def _insert(content: bytes, random: Random) -> bytes:
    start, end = _span(content, random)
    return content[:start] + random.bytes(max(1, end - start)) + content[start:]


def _delete(content: bytes, random: Random) -> bytes:
    start, end = _span(content, random)
    return content[:start] + content[end:]


def _duplicate(content: bytes, random: Random) -> bytes:
    start, end = _span(content, random)
    return content[:end] + content[start:end] * int(random.integers(1, 9)) + content[end:]


def _swap(content: bytes, random: Random) -> bytes:
    start, middle, end = sorted(int(place) for place in random.integers(len(content) + 1, size=3))
    return content[:start] + content[middle:end] + content[start:middle] + content[end:]


def _number(content: bytes, random: Random) -> bytes:
    width = _one_of(WIDTHS, random)
    size = struct.calcsize(width)
    start = int(random.integers(max(1, len(content) - size + 1)))
    packed = struct.pack(width, _one_of(NUMBERS, random) % (1 << 8 * size))
    return content[:start] + packed + content[start + size :]


def _clear(content: bytes, random: Random) -> bytes:
    start, end = _span(content, random)
    return content[:start] + _one_of((b"\0", b"\xff"), random) * (end - start) + content[end:]


BLIND = (_truncate, _flip, _flip, _insert, _delete, _duplicate, _swap, _number, _number, _clear)


def _lines(content: bytes, random: Random) -> bytes:
    """Lines repeated, left out and put elsewhere; words replaced by other words and by numbers."""
    lines = content.split(b"\n")
    for _ in range(int(random.integers(1, 4))):
        at, other = (int(place) for place in random.integers(len(lines), size=2))
        what = int(random.integers(4))
        if what == 0:
            lines.insert(at, lines[other])
        elif what == 1 and len(lines) > 1:
            del lines[at]
        elif what == 2:
            lines[at], lines[other] = lines[other], lines[at]
        elif words := lines[at].split(b" "):
            found = lines[other].split(b" ")
            word = _one_of([*found, *(str(number).encode() for number in NUMBERS)], random)
            words[int(random.integers(len(words)))] = word
            lines[at] = b" ".join(words)
    return b"\n".join(lines)


def _json_lines(content: bytes, random: Random) -> bytes:
    lines = content.split(b"\n")
    at = int(random.integers(len(lines)))
    lines[at] = _json(lines[at], random)
    return b"\n".join(lines)


def _json(content: bytes, random: Random) -> bytes:
    try:
        document = json.loads(content)
    except ValueError:
        return _bytes(content, random)
    for _ in range(int(random.integers(1, 3))):
        document = _changed(document, document, random)
    text = json.dumps(document)
    if random.random() < 0.03:
        depth = int(_one_of((50, 2000, 200_000), random))
        text = text.replace(_one_of(("0", "1", '""', "null"), random), "[" * depth + "]" * depth, 1)
    return text.encode()


def _changed(value: Any, document: Any, random: Random) -> Any:
    """The value with one place in it changed, deeper places more often."""
    if isinstance(value, dict | list) and value and random.random() < 0.85:
        copy = dict(value) if isinstance(value, dict) else list(value)
        key = _one_of(list(copy) if isinstance(copy, dict) else range(len(copy)), random)
        chance = random.random()
        if chance < 0.1:
            del copy[key]
        elif chance < 0.15 and isinstance(copy, list):
            copy.append(copy[key])
        elif chance < 0.2 and isinstance(copy, dict):
            copy[str(_one_of(VALUES, random))] = copy.pop(key)
        else:
            copy[key] = _changed(copy[key], document, random)
        return copy
    if random.random() < 0.3:
        return _elsewhere(document, random)
    if isinstance(value, int | float) and random.random() < 0.3:
        return _one_of((value + 1, -value, value * 1000, float(value), str(value)), random)
    return _one_of(VALUES, random)


def _elsewhere(value: Any, random: Random) -> Any:
    while isinstance(value, dict | list) and value and random.random() < 0.8:
        value = _one_of(list(value.values()) if isinstance(value, dict) else value, random)
    return value


def _archive(content: bytes, random: Random) -> bytes:
    """Members damaged under checksums that are right, left out, twice there, named otherwise, or compressed."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()}
    except zipfile.BadZipFile:
        return _bytes(content, random)
    name = _one_of(list(members), random)
    renamed, what = name, random.random()
    if what < 0.05:
        del members[name]
    elif what < 0.1:
        renamed = str(_one_of(("../../escaped", "/escaped", "x" * 300, *members), random))
        members[renamed] = members.pop(name)
    elif what < 0.15:
        members[name] = bytes(1 << 20) + members[name]
    elif name.endswith(".npy") and what < 0.7:
        members[name] = _array(members[name], random)
    else:
        members[name] = _bytes(members[name], random)
    stored = zipfile.ZIP_STORED if random.random() < 0.8 and what >= 0.15 else zipfile.ZIP_DEFLATED
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", stored) as archive:
        for each, data in members.items():
            archive.writestr(zipfile.ZipInfo(each), data, stored)  # without the time of day
    return written.getvalue()


def _tensors(content: bytes, random: Random) -> bytes:
    """Settings and tensors replaced as in JSON, or the archive damaged."""
    if random.random() < 0.5:
        return _archive(content, random)
    document = torch.load(io.BytesIO(content), weights_only=True)
    for _ in range(int(random.integers(1, 3))):
        document = _changed(document, document, random)
    written = io.BytesIO()
    torch.save(document, written)
    return written.getvalue()


def _array(content: bytes, random: Random) -> bytes:
    """Another array in place of the one that an npy file holds, or one with a header that lies."""
    array = np.load(io.BytesIO(content))
    what = int(random.integers(8))
    if what == 0:
        array = np.array([Bomb()], object)
    elif what == 1:
        array = np.zeros(array.shape, _one_of(DTYPES, random))
    elif what == 2:
        array = _one_of((array[..., None], array.reshape(-1), array.T, array[:0], array[:1]), random)
    elif what == 3:
        array = np.concatenate([array, array]) if array.ndim else np.zeros(3)
    elif what == 4:
        return _header(array, random) + array.tobytes()
    elif array.size:
        array = array.copy()
        with np.errstate(all="ignore"):
            value = np.array(_one_of((*NUMBERS, np.nan, np.inf, -1e300), random), object)
            array.flat[int(random.integers(array.size))] = _fitted(value, array.dtype)
    written = io.BytesIO()
    np.save(written, array, allow_pickle=True)
    return written.getvalue()


def _fitted(value: np.ndarray, dtype: np.dtype) -> Any:
    """The number as that type has it: cut off, if it must be."""
    try:
        return np.array(value.item(), np.float64).astype(dtype) if dtype.kind in "fc" else int(value.item()) % 128
    except (ValueError, OverflowError):
        return 0


def _header(array: np.ndarray, random: Random) -> bytes:
    written = io.BytesIO()
    shape = list(array.shape) or [1]
    shape[int(random.integers(len(shape)))] = int(_one_of((-1, 2**33, 2**62, 2**70, 10**18, 0), random))
    header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(written, header)
    return written.getvalue()
