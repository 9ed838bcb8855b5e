"""Measurements on disk: one JSON object a line, only ever appended, readable after a crash at any moment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Log:
    """An append-only file of JSON lines, written by one process at a time.

    Args:
        path: created, with its folders, by the first `append`.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record and wait until the disk has it; what a crash left of a line is cut off first.

        Raises:
            ValueError: the record holds NaN, infinity or something else that is not JSON.
        """
        try:
            line = json.dumps(dict(record), allow_nan=False) + "\n"
        except (TypeError, ValueError) as error:
            raise ValueError(f"cannot write a record to {self.path}: {error}") from error
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._cut_unfinished_line()
        with self.path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> list[dict[str, Any]]:
        """All records in the order of writing, none if there is no file; an unfinished last line is left out.

        Raises:
            ValueError: another line is damaged; the message names file and line.
        """
        if not self.path.exists():
            return []
        records = []
        *lines, _unfinished = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{self.path}:{number}: not JSON ({error}); remove the line to go on") from error
            if not isinstance(record, dict):
                raise ValueError(f"{self.path}:{number}: {type(record).__name__} instead of an object")
            records.append(record)
        return records

    def _cut_unfinished_line(self) -> None:
        if not self.path.exists() or not self.path.stat().st_size:
            return
        with self.path.open("rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
