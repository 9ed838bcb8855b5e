"""A command in a session of its own, for a limited time: when it ends, or is ended, nothing that it started works on.

What is timed next has the accelerator and its memory to itself only if that is so.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

from experiments.bench.child import child_environment

END_S = 10.0  # within which killed processes are gone


class Ended(NamedTuple):
    """Outcome of a command.

    Args:
        status: exit status; None if its time was over.
        stdout: that it wrote, also if it was ended.
        stderr: that it wrote.
    """

    status: int | None
    stdout: str
    stderr: str


def run_session(command: Sequence[str], limit_s: float, folder: Path | None = None) -> Ended:
    """Run a command for at most so many seconds.

    Args:
        command: and its arguments.
        limit_s: seconds, after which it is killed.
        folder: in which it runs; that of this process if None.

    Examples:
        >>> run_session(["echo", "done"], 10.0)
        Ended(status=0, stdout='done\\n', stderr='')
    """
    environment = child_environment() | {"PYTHONUNBUFFERED": "1"}
    with TemporaryFile() as out, TemporaryFile() as words:
        child = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=words,
            start_new_session=True,
        )  # fmt: skip
        status: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                status = child.wait(max(limit_s, 0.0))
        finally:
            _end_session(child.pid)
            with suppress(subprocess.TimeoutExpired):  # a driver may hold it for ever
                child.wait(END_S)
        for file in (out, words):
            file.seek(0)
        return Ended(status, *(file.read().decode(errors="replace") for file in (out, words)))


def session_of(leader: int) -> set[int]:
    """Processes of the session of `leader`, and all that descend from them, whatever their sessions; Linux alone."""
    parents, processes = dict[int, int](), set[int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state, parent, _, session, *_ = path.read_text().rpartition(")")[2].split()
            if state != "Z":
                parents[int(path.parent.name)] = int(parent)
                if int(session) == leader:
                    processes.add(int(path.parent.name))
    while new := {each for each, parent in parents.items() if parent in processes} - processes:
        processes |= new
    return processes


def _end_session(leader: int) -> None:
    deadline = time.monotonic() + END_S
    while (processes := session_of(leader)) and time.monotonic() < deadline:
        for each in processes:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.02)
