"""Kill commands at random moments, again and again: does each resume, and end as if nothing had happened?

    python -m experiments.bench chaos --kills 50 --json experiments/results/chaos.json
    python -m experiments.bench chaos --kills 2 --small

Each command runs once undisturbed. Then it is started in a directory of its own, killed with SIGKILL at a random moment
(three in five uniform over the undisturbed duration, one just after the start, one near the end), resumed, killed again
up to three times, and resumed to its end. Every other kill takes the whole session, the others the command alone: its
children must then end by themselves. After each kill every file is opened by its reader. A trial is written down when
it is over; `--resume` goes on with the next one.

Commands are forked from this process, which has loaded the libraries: all of a run is work that a kill can hit.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded: a process with threads is not to be forked

import hashlib
import json
import multiprocessing
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import gst.placement.api.command
import gst.placement.api.measuring
import gst.training.cli  # noqa: F401 (they are loaded before the first fork)
from experiments.bench.chaos_commands import Command, every_command, lost, rows, unreadable
from gst.cli import main as run_command
from gst.util.untrusted import read_object
from gst.util.writing import write_json

tqdm.monitor_interval = 0  # no thread that could hold the lock at a fork
MOST_KILLS = 3  # of one trial
LONGEST_S = 300.0  # for a command to end
ALONE_S = 20.0  # for children to notice that the command was killed
NOTHING = {"kills": 0, "trials": 0, "failed_resumes": 0, "lost_rows": 0, "unreadable": 0, "differing": 0, "orphans": 0}


def start(arguments: list[str], directory: Path) -> BaseProcess:
    """`gst` with these arguments, in `directory`, as the leader of a session."""
    process = multiprocessing.get_context("fork").Process(target=_command, args=(arguments, directory))
    process.start()
    return process


def _command(arguments: list[str], directory: Path) -> None:
    os.setsid()
    os.chdir(directory)
    with Path("words.txt").open("ab") as words:
        os.dup2(words.fileno(), 1)
        os.dup2(words.fileno(), 2)
    sys.exit(run_command(arguments))


def ended(process: BaseProcess, limit_s: float) -> int | None:
    """The status of a process that ends within so many seconds; None if it does not."""
    process.join(limit_s)
    return process.exitcode


def kill(process: BaseProcess, group: bool) -> int:
    """Send SIGKILL to the whole session, or to its leader alone; return the number of its surviving processes."""
    assert process.pid is not None
    targets = [*members(process.pid), process.pid] if group else [process.pid]
    for pid in targets:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.join()
    deadline = time.monotonic() + ALONE_S
    while (left := members(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return len(left)


def members(session: int) -> list[int]:
    """Living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, _group, its_session = path.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_session) == session and state != "Z":
            found.append(int(path.parent.name))
    return found


def moment(generator: np.random.Generator, undisturbed_s: float) -> float:
    """Seconds after the start."""
    low, high = [(0.0, 1.0), (0.0, 1.0), (0.0, 1.0), (0.0, 0.1), (0.85, 1.0)][generator.integers(5)]
    return float(generator.uniform(low, high)) * undisturbed_s


def undisturbed(command: Command, directory: Path, times: int) -> dict[str, Any]:
    """Seconds that it takes the last of several times, and what comes out of it. The first fills caches of the user."""
    seconds = 0.0
    for _ in range(times):
        _fresh(command, directory)
        started = time.monotonic()
        status = ended(start(list(command.arguments), directory), LONGEST_S)
        seconds = time.monotonic() - started
        if status != 0:
            raise ValueError(f"undisturbed it ends with status {status}: {directory / 'words.txt'}")
    return {"undisturbed_s": round(seconds, 2), "outcome": outcome(command, directory)}


def outcome(command: Command, directory: Path) -> str:
    """A digest of what came out of a command."""
    return hashlib.sha256(json.dumps(command.outcome(directory), sort_keys=True).encode()).hexdigest()[:16]


def trial(
    command: Command, directory: Path, known: dict[str, Any], most_kills: int, generator: np.random.Generator
) -> dict[str, int]:
    """Kill and resume until it ends; returns what is counted of it. The directory is kept if anything is wrong."""
    _fresh(command, directory)
    found = dict(NOTHING) | {"trials": 1}
    wrong: list[str] = []
    before: dict[str, list[str]] = {}
    arguments = list(command.arguments)
    for _ in range(int(generator.integers(1, most_kills + 1))):
        process = start(arguments, directory)
        arguments = [*command.arguments, *command.resume]
        if ended(process, moment(generator, known["undisturbed_s"])) is not None:
            break
        found["orphans"] += kill(process, group=bool(generator.integers(2)))
        found["kills"] += 1
        wrong += unreadable(directory)
        found["lost_rows"] += lost(before, rows(directory))
        before = rows(directory)
    process = start([*command.arguments, *command.resume], directory)
    if (status := ended(process, LONGEST_S)) != 0:
        kill(process, group=True)
        found["failed_resumes"] += 1
        wrong.append(f"a resumed command ended with status {status}")
    wrong += unreadable(directory)
    found["unreadable"] = len(wrong) - found["failed_resumes"]
    found["lost_rows"] += lost(before, rows(directory))
    if status == 0:
        found["differing"] = int(outcome(command, directory) != known["outcome"])
    if any(found[key] for key in found.keys() - {"kills", "trials"}):
        (directory / "wrong.txt").write_text("\n".join([json.dumps(found), *wrong]) + "\n")
    else:
        shutil.rmtree(directory)
    return found


HELP = {
    "kills": "of each command, at least", "commands": "to kill; there is giant, too", "small": "the smallest inputs",
    "work": "where they run",
}  # fmt: skip


def _fresh(command: Command, directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    command.inputs(directory)


def run(
    kills: int = 50,
    commands: tuple[str, ...] = ("prepare", "fit", "measure", "place"),
    small: bool = False,
    seed: int = 0,
    work: Path = Path("runs/chaos"),
    resume: bool = False,
    json: Path = Path("experiments/results/chaos.json"),
) -> dict[str, Any]:
    """Kill each command so often as asked, and write each trial to `json`."""
    work = work.resolve()
    known: dict[str, Any] = read_object(json)["commands"] if json.exists() else {}
    if not resume:
        known = {name: counts for name, counts in known.items() if name not in commands}
    tqdm.set_lock(threading.RLock())  # the usual one is shared with forked processes, and lost with one that dies in it
    bar = tqdm(total=kills * len(commands), unit=" kills", desc="undisturbed")
    every = every_command(small)
    for name in commands:
        command = every[name]
        if name not in known:
            known[name] = NOTHING | undisturbed(command, work / name / "undisturbed", 1 if small else 2)
        found = known[name]
        bar.set_description(name)
        bar.update(min(found["kills"], kills))
        while (left := kills - found["kills"]) > 0:
            generator = np.random.default_rng([seed, list(every).index(name), found["trials"]])
            directory = work / name / f"trial-{found['trials']}"
            more = trial(command, directory, found, min(left, MOST_KILLS), generator)
            found |= {key: found[key] + more[key] for key in NOTHING}
            _write(json, known)
            bar.update(more["kills"])
    bar.close()
    result = _write(json, known)
    totals = {key: result[key] for key in NOTHING}
    return result | {"exit_status": int(any(totals[key] for key in totals.keys() - {"kills", "trials"}))}


def _write(path: Path, known: dict[str, Any]) -> dict[str, Any]:
    """Write and return what is counted of each command, and the sums over commands."""
    totals = {key: sum(found[key] for found in known.values()) for key in NOTHING}
    result = {"command": "python -m experiments.bench chaos", **totals, "commands": known}
    write_json(path, result)
    return result
