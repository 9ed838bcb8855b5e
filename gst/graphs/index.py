"""Index of a store: `meta.json` with columns of all graphs, and `records.bin` with a line for each graph.

A line has the properties of a graph and the entries of its arrays. It is read when the graph is used, so that a store
of many graphs opens at once. `meta.json` has the settings, the size of each file, and for each graph its name, its
digest and the end of its line.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from gst.util.addresses import Address
from gst.util.arrays import JOURNAL, Record, as_bytes, shortened
from gst.util.copies import local_copy
from gst.util.untrusted import plain, read_object, shown

SCHEMA = 4
INDEX, RECORDS = "meta.json", "records.bin"


def checksum_of(meta: dict[str, Any]) -> str:
    """Return the checksum of everything else in meta.json."""
    content = {key: value for key, value in meta.items() if key != "checksum"}
    return shortened(hashlib.sha256(json.dumps(content, sort_keys=True).encode()))


def write_index(directory: Path, settings: dict[str, Any], records: list[Record], sizes: dict[str, int]) -> None:
    """Complete a store whose arrays are written. The journal of its writer becomes `records.bin`.

    Args:
        sizes: bytes of each file of arrays.
    """
    lines = (directory / JOURNAL).read_bytes()
    graphs = {
        "names": [record["name"] for record in records],
        "digests": [record["digest"] for record in records],
        "ends": (np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n")) + 1).tolist(),
    }
    meta: dict[str, Any] = {
        "schema": SCHEMA, "settings": settings, "files": sizes | {RECORDS: len(lines)}, "graphs": graphs,
        "records": shortened(hashlib.sha256(lines)),
    }  # fmt: skip
    (directory / JOURNAL).rename(directory / RECORDS)
    (directory / INDEX).write_text(json.dumps(meta | {"checksum": checksum_of(meta)}))


def read_index(directory: Path | Address) -> dict[str, Any]:
    """Return `meta.json`.

    Raises:
        ValueError: there is none, or one of another version.
    """
    meta = read_object(local_copy(directory / INDEX))
    if meta["schema"] != SCHEMA:
        schema = shown(meta["schema"])
        raise ValueError(f"{directory} has schema {schema}, this version reads {SCHEMA}; prepare it again")
    return meta


def contents(meta: dict[str, Any]) -> list[str]:
    """Return name and digest of each graph."""
    return [f"{name} {digest}" for name, digest in zip(meta["graphs"]["names"], meta["graphs"]["digests"], strict=True)]


def check_records(meta: dict[str, Any], lines: np.ndarray) -> None:
    """Raise ValueError if the lines of `records.bin` are not those that were written."""
    if shortened(hashlib.sha256(as_bytes(lines))) != meta["records"]:
        raise ValueError(f"{RECORDS} was changed since it was written (checksums differ)")


def record_of(meta: dict[str, Any], lines: np.ndarray | bytes, number: int) -> Record:
    """Return the record of a graph.

    Raises:
        ValueError: its line is damaged, or that of another graph.
    """
    graphs = meta["graphs"]
    line = bytes(lines[graphs["ends"][number - 1] if number else 0 : graphs["ends"][number]])
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number + 1} of {RECORDS} is damaged ({plain(error)})") from error
    if not isinstance(record, dict) or record.get("name") != graphs["names"][number]:
        raise ValueError(f"line {number + 1} of {RECORDS} is not that of graph {shown(graphs['names'][number])}")
    return record
