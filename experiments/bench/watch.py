"""The memory of another process, seen from outside."""

from __future__ import annotations

import json
import selectors
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INTERVAL = 0.002  # seconds between samples


@dataclass
class Memory:
    """The most a process held, in MiB.

    Args:
        anonymous: its own memory, which it cannot give back while it is used.
        mapped: pages of files, its program's among them, which the system takes back whenever it likes.
        workers: own memory of all processes it started, together.
        start: its own memory when watching began.
    """

    anonymous: float = 0.0
    mapped: float = 0.0
    workers: float = 0.0
    start: float = 0.0

    def sample(self, pid: int) -> None:
        self.anonymous = max(self.anonymous, resident(pid, "RssAnon"))
        self.mapped = max(self.mapped, resident(pid, "RssFile"))
        self.workers = max(self.workers, sum(resident(child, "RssAnon") for child in _children(pid)))


def watch(command: Sequence[str]) -> tuple[dict[str, Any], Memory]:
    """Run a command that prints JSON objects, one a line: the first when it is ready, the last when it is done.

    Returns:
        The last one, and the memory from the first on, sampled every two milliseconds.

    Raises:
        ChildProcessError: it ended with another status than 0, or without the two.
    """
    memory = Memory()
    said: list[dict[str, Any]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child, selectors.DefaultSelector() as selector:
        assert child.stdout is not None
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            memory.sample(child.pid)
            if selector.select(INTERVAL):
                line = child.stdout.readline()
                if not line:
                    break
                if not said:
                    memory = Memory(start=resident(child.pid, "RssAnon"))
                said.append(json.loads(line))
    if child.returncode or len(said) < 2:
        raise ChildProcessError(f"{' '.join(command)} ended with status {child.returncode}; see its words above")
    return said[-1], memory


def resident(pid: int, entry: str) -> float:
    """`RssAnon` or `RssFile` of a process in MiB; 0 if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return int(status.split(f"{entry}:")[1].split()[0]) / 1024 if f"{entry}:" in status else 0.0


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:
            continue
    return found
