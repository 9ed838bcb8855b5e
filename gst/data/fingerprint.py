"""What tells that a dataset of files may have changed, without reading them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def of_files(paths: Iterable[Path], reader: str) -> str:
    """Path, size and time of the last change of every file, as `make` looks at them.

    Args:
        reader: name, version and settings of what makes graphs of the files; another one makes other graphs.
    """
    lines = [reader]
    for path in paths:
        status = path.stat()
        lines.append(f"{path.absolute()} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(lines)
