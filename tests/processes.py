"""What has become of a process."""

from __future__ import annotations

from pathlib import Path


def is_running(process: int) -> bool:
    """Not so if it has ended, also if nobody asked how yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
