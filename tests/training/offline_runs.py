"""What W&B's client wrote offline, read back: protobuf records in LevelDB's log format, which is blocks of 32 KiB with
records in pieces, each after a checksum, its length and its kind (whole, first, middle, last)."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

FILE_HEADER, PIECE_HEADER, BLOCK = 7, 7, 1 << 15
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class OfflineRun:
    """One run: every value logged under a key, the configuration at the end, its artifacts by type."""

    group: str = ""
    history: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    config: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, Any] = field(default_factory=dict)


def read_runs(directory: Path) -> list[OfflineRun]:
    """All that lie below `directory`, in the order they began."""
    return [_run(path) for path in sorted(directory.glob("**/offline-run-*/*.wandb"))]


def _run(path: Path) -> OfflineRun:
    found = OfflineRun()
    for record in _records(path.read_bytes()):
        for item in record.history.item:
            found.history[item.key or "/".join(item.nested_key)].append(json.loads(item.value_json))
        for update in (*record.run.config.update, *record.config.update):
            found.config[update.key or "/".join(update.nested_key)] = json.loads(update.value_json)
        found.group = record.run.run_group or found.group
        for artifact in (record.artifact, record.request.log_artifact.artifact):
            if artifact.type:
                found.artifacts[artifact.type] = artifact
    return found


def _records(content: bytes) -> Iterator[Record]:
    position, pieces = FILE_HEADER, b""
    while position + PIECE_HEADER <= len(content):
        if (left := BLOCK - position % BLOCK) < PIECE_HEADER:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", content, position + 4)
        position += PIECE_HEADER
        piece = content[position : position + length]
        pieces = piece if kind in (WHOLE, FIRST) else pieces + piece
        position += length
        if kind in (WHOLE, LAST):
            yield Record.FromString(pieces)
