"""Read damaged files in child processes that may take little time and little memory."""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.damage import CANARY, damaged
from tests.fuzz.readers import Reader

MOST_SECONDS = 6.0  # of processor time, so that other processes do not count
MOST_BYTES = 500 << 20  # of addresses, beyond those taken before
MOST_WORDS = 600  # characters of a message, beyond the path
PATIENCE_S = 120.0  # before a child that does not answer is ended


@dataclass(frozen=True)
class Finding:
    """A case by its number in which a reader did what none may do: a `crash`, or it is `unbounded`; and why."""

    case: int
    kind: str
    what: str


class TooLong(BaseException):
    """No reader catches this one."""


def genuine(reader: Reader, folder: Path) -> tuple[Path, dict[Path, bytes]]:
    """Write a genuine file; the path to read and the content of each file, both relative to `folder`."""
    folder.mkdir()
    path = reader.write(folder)
    files = {each.relative_to(folder): each.read_bytes() for each in sorted(folder.rglob("*")) if each.is_file()}
    return path.relative_to(folder), files


def write_case(reader: Reader, files: dict[Path, bytes], folder: Path, seed: Sequence[int]) -> None:
    """Write the files into `folder`, one of them, seldom two, damaged."""
    shutil.rmtree(folder, ignore_errors=True)
    random = np.random.default_rng(seed)
    names = [name for name in files if name.name not in reader.untouched]
    chosen = {names[int(place)] for place in random.integers(len(names), size=1 + (random.random() < 0.1))}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(damaged(name.name, content, random) if name in chosen else content)
    if random.random() < 0.02 and len(names) > 1:
        (folder / names[int(random.integers(len(names)))]).unlink()
    if random.random() < 0.8:
        for where in {(folder / name).parent for name in files}:
            reader.seal(where)


def problem(reader: Reader, path: Path, folder: Path) -> tuple[str, str] | None:
    """Return the kind and a line of the problem with reading `path`, if there is one."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES, before[1]))
    handler = signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        reader.read(path)
    except ValueError as error:
        message = str(error)
        if any(isinstance(each, MemoryError) or "allocate" in str(each) for each in _chain(error)):
            return "unbounded", f"refused only as memory ran out: {message[:300]!r}"
        if str(folder) not in message:
            return "crash", f"the message does not name the file: {message[:300]!r}"
        if not message.isprintable() or len(message) > MOST_WORDS + len(str(path)):
            return "crash", f"the message is not one short line: {message[:300]!r}"
    except TooLong:
        return "unbounded", f"more than {MOST_SECONDS} s"
    except MemoryError as error:
        return "unbounded", f"more than {MOST_BYTES >> 20} MiB: {error}"
    except BaseException as error:
        return "crash", f"{type(error).__name__}: {str(error)[:300]!r}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)
    if (folder / CANARY).exists() or Path(CANARY).exists():
        return "crash", "something in the file was executed"
    return None


def _stop(number: int, frame: object) -> None:
    raise TooLong


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def findings(reader: Reader, cases: range, seed: int) -> Iterator[Finding | None]:
    """Yield for each case in turn what was found, None where all is well; the same number and seed are the same case.

    A genuine file is read here first, so that the children have what its reader loads and compiles.
    """
    with tempfile.TemporaryDirectory() as place:
        path, files = genuine(reader, Path(place) / "genuine")
        reader.read(Path(place) / "genuine" / path)
        at = cases.start
        while at < cases.stop:
            for found in _child(reader, path, files, Path(place) / "case", range(at, cases.stop), seed):
                yield found
                at += 1


def _child(
    reader: Reader, path: Path, files: dict[Path, bytes], folder: Path, cases: range, seed: int
) -> Iterator[Finding | None]:
    """As `findings`, up to the first case that ends the process."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _serve(reader, path, files, folder, cases, seed, write_end)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(write_end)
    done = cases.start
    try:
        with os.fdopen(read_end, "rb", buffering=0) as answers:
            while done < cases.stop and select.select([answers], [], [], PATIENCE_S)[0]:
                line = _line(answers)
                if not line:
                    break
                kind, what = json.loads(line)
                yield Finding(done, kind, what) if kind else None
                done += 1
    finally:
        if done < cases.stop:
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    if done < cases.stop:
        hung = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        ended = f"the process ended with status {os.waitstatus_to_exitcode(status)}"
        yield Finding(done, "unbounded" if hung else "crash", ended)


def _line(answers: Any) -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        more = answers.read(1)
        if not more:
            return b""
        found += more
    return found


def _serve(
    reader: Reader, path: Path, files: dict[Path, bytes], folder: Path, cases: range, seed: int, answers: int
) -> None:
    for case in cases:
        write_case(reader, files, folder, (seed, case))
        os.chdir(folder)
        found = problem(reader, folder / path, folder)
        os.write(answers, (json.dumps(found or ("", "")) + "\n").encode())
