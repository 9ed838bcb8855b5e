"""Measurements on disk: one JSON object a line, only ever appended, readable after a crash at any moment."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from gst.files.untrusted import parse_json, plain, shown

SCHEMA = 1
"""Of the lines; one without a number has this one."""


class Log:
    """An append-only file of JSON lines. Processes that append at once wait for each other (flock(2)).

    Args:
        path: created, with its folders, by the first `append`.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record and wait until the disk has it; what a crash left of a line is cut off first.

        Raises:
            ValueError: the record holds NaN, infinity or something else that is not JSON.
            OSError: the disk is full, or the file cannot be written; it then ends with the record before.
        """
        try:
            line = json.dumps({"schema": SCHEMA, **record}, allow_nan=False) + "\n"
        except (TypeError, ValueError) as error:
            raise ValueError(f"cannot write a record to {self.path}: {error}") from error
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _cut_unfinished_line(file)
            _write_whole(file, line.encode())

    def read(self) -> list[dict[str, Any]]:
        """All records in the order of writing, none if there is no file; an unfinished last line is left out.

        Raises:
            ValueError: another line is damaged or of another schema; the message names file and line.
        """
        if not self.path.exists():
            return []
        records = []
        *lines, _unfinished = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                record = parse_json(line)
            except ValueError as error:
                raise ValueError(
                    f"{self.path}:{number}: not JSON ({plain(error)}); remove the line to go on"
                ) from error
            if not isinstance(record, dict):
                raise ValueError(f"{self.path}:{number}: {type(record).__name__} instead of an object")
            if (schema := record.pop("schema", SCHEMA)) != SCHEMA:
                raise ValueError(
                    f"{self.path}:{number}: schema {shown(schema)}, this version reads {SCHEMA}; go on with the "
                    "version that wrote it, or give another directory"
                )
            records.append(record)
        return records


def _cut_unfinished_line(file: FileIO) -> None:
    size = file.seek(0, os.SEEK_END)
    if not size:
        return
    file.seek(-1, os.SEEK_END)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def _write_whole(file: FileIO, line: bytes) -> None:
    """At the end of the file and onto the disk; nothing of it where that cannot be."""
    start = file.seek(0, os.SEEK_END)
    try:
        written = 0
        while written < len(line):
            written += file.write(line[written:])
        os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            file.truncate(start)
        message = f"cannot write to {file.name}: {error.strerror}; what was written before is kept; make room and go on"
        raise OSError(error.errno, message) from error
