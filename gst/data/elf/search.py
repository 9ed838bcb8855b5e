"""Find the binaries below a folder."""

from __future__ import annotations

import filecmp
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from gst.data.elf.binary import open_binary

COPY = "a copy of another file"


def large_files(root: Path, min_bytes: int, skipped: dict[Path, str]) -> Iterator[Path]:
    """Regular files of at least `min_bytes` bytes, by path; a file with several names (hard links) comes once.

    Args:
        skipped: receives the folders that cannot be read, and why.
    """

    def note(error: OSError) -> None:
        skipped[Path(os.fsdecode(error.filename))] = reason(error)

    seen: set[tuple[int, int]] = set()
    for folder, folders, names in os.walk(root, onerror=note):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            try:
                status = path.lstat()
            except OSError as error:
                skipped[path] = reason(error)
                continue
            inode = (status.st_dev, status.st_ino)
            if stat.S_ISREG(status.st_mode) and status.st_size >= min_bytes and inode not in seen:
                seen.add(inode)
                yield path


def binaries(paths: Iterable[Path], skipped: dict[Path, str]) -> list[Path]:
    """Those of `paths` that `open_binary` can read, each content once.

    Args:
        skipped: receives the others, and why they were left out.
    """
    kept: list[Path] = []
    of_size: dict[int, list[Path]] = {}
    for path in paths:
        try:
            open_binary(path)
            twins = of_size.setdefault(path.stat().st_size, [])
            if any(filecmp.cmp(path, twin, shallow=False) for twin in twins):
                skipped[path] = COPY
                continue
        except (ValueError, OSError) as error:
            skipped[path] = reason(error)
            continue
        twins.append(path)
        kept.append(path)
    return kept


def reason(error: Exception) -> str:
    """What went wrong, without the name of the file."""
    return (error.strerror or "unreadable") if isinstance(error, OSError) else str(error)
