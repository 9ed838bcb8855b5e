"""Labels: ANDs and levels of a circuit after each command of a recipe, by berkeley-abc, in a file that grows by lines.

One line of JSON for each circuit and recipe: the digest of the circuit's file, the recipe in letters, and ANDs and
levels before the first command and after each. What stands in the file is not computed again; a line that a kill cut
off does not count. A circuit that takes longer than the time limit has a line without numbers.
"""

from __future__ import annotations

import json
import lzma
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from experiments.reproductions.circuits.cones import write_cones
from experiments.reproductions.circuits.files import CircuitFile, cache, circuit_files
from experiments.reproductions.circuits.recipes import SHIPPED_RECIPES, commands, read_recipes
from gst.util.progress import bar
from gst.util.untrusted import plain
from gst.util.writing import directory_lock

PROGRAM = "berkeley-abc"
TIMEOUT = 600.0  # seconds of one recipe
LABELS = "labels.jsonl"
MOST_UNPACKED = 1 << 28  # bytes of packed labels
_READ = {".bench": "read_bench", ".aig": "read_aiger"}
_COUNTS = re.compile(r"and =\s*(\d+)\s+lev =\s*(\d+)")


class Job(NamedTuple):
    """A recipe to try on a circuit."""

    file: CircuitFile
    recipe: str

    @property
    def key(self) -> tuple[str, str]:
        return self.file.digest, self.recipe


Trajectory = Int64[np.ndarray, "commands_plus_one 2"]
"""ANDs and levels before the first command and after each."""


def synthesise(job: Job, timeout: float = TIMEOUT) -> Trajectory | None:
    """ANDs and levels of a circuit over a recipe, by berkeley-abc; None if it takes longer than `timeout` seconds.

    Raises:
        ValueError: berkeley-abc is not installed, or cannot read the circuit.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise ValueError(f"{PROGRAM} is not installed, and labels come from it: apt-get install {PROGRAM}")
    steps = ["strash", *commands(job.recipe)]
    with tempfile.TemporaryDirectory() as folder:
        # abc parses its commands: a plain name, whatever the file is called
        link = Path(folder, f"circuit{job.file.path.suffix}")
        link.symlink_to(job.file.path.absolute())
        script = "; ".join([f"{_READ[link.suffix]} {link.name}", *(f"{step}; print_stats" for step in steps)])
        try:
            process = subprocess.run(
                [program, "-q", script], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
    output = process.stdout.decode(errors="replace")
    counts = _COUNTS.findall(output)
    if len(counts) != len(steps):
        said = plain(output + process.stderr.decode(errors="replace"))
        raise ValueError(f"{job.file.path}: {PROGRAM} ends after {len(counts)} of {len(steps)} commands ({said})")
    return np.array(counts, np.int64)


def read_labels(path: Path) -> dict[tuple[str, str], Trajectory | None]:
    """Labels by digest of the circuit and recipe; None where time ran out. Empty if there is no such file. A file may
    be packed by xz.

    Raises:
        ValueError: a line other than the last is damaged; the message names file and line.
    """
    labels: dict[tuple[str, str], Trajectory | None] = {}
    if not path.is_file():
        return labels
    lines = _content(path).split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            counts = None if entry["ands"] is None else np.array([entry["ands"], entry["levels"]], np.int64).T
            if counts is not None and counts.shape != (len(commands(entry["recipe"])) + 1, 2):
                raise ValueError(f"{len(counts)} numbers for {len(entry['recipe'])} commands")
            labels[str(entry["circuit"]), entry["recipe"]] = counts
        except (ValueError, LookupError, TypeError, OverflowError) as error:
            if number == len(lines):
                continue  # a killed process left it
            raise ValueError(f"{path}, line {number}: no label ({plain(error)}); remove this line") from None
    return labels


def _content(path: Path) -> str:
    """Of a text file, packed by xz if its name ends so."""
    if path.suffix != ".xz":
        return path.read_text(errors="replace")
    try:
        unpacker = lzma.LZMADecompressor(memlimit=MOST_UNPACKED)
        content = unpacker.decompress(path.read_bytes(), MOST_UNPACKED)
        if not unpacker.eof:
            raise ValueError(f"it is cut off, or more than {MOST_UNPACKED} bytes")
    except (lzma.LZMAError, ValueError, EOFError) as error:
        raise ValueError(f"{path}: not packed by xz ({plain(error)})") from error
    return content.decode(errors="replace")


def planned_jobs(
    data: Path, recipes: Path | None, number: int, seed: int = 0, cones: int = 0, least_ands: int = 0,
    most_ands: int = 10**9,
) -> list[Job]:  # fmt: skip
    """Pair circuits of a size within the limits with recipes of a file, or of this package.

    All circuits get the same `number` of recipes, drawn by `seed`; each cone of a circuit gets its own.
    """
    pool = read_recipes(recipes or SHIPPED_RECIPES)
    # All are read here: abc takes an empty file for an empty circuit.
    files = [file for file in circuit_files(data) if least_ands <= file.read().num_ands <= most_ands]
    if not cones:
        draw = np.random.default_rng(seed).permutation(len(pool))[:number]
        return [Job(file, pool[k]) for file in files for k in draw]
    jobs = []
    for file in write_cones(files, cache() / "cones", cones):
        draw = np.random.default_rng([seed, *file.name.encode()]).permutation(len(pool))[:number]
        jobs += [Job(file, pool[k]) for k in draw]
    return jobs


def label(
    jobs: Sequence[Job], directory: Path, processes: int = 1, timeout: float = TIMEOUT
) -> dict[tuple[str, str], Trajectory | None]:
    """Labels of `jobs`, of which those in `directory` are taken and the others computed and added there.

    Args:
        processes: copies of berkeley-abc at once.
        timeout: seconds that a recipe may take.

    Raises:
        ValueError: berkeley-abc is not installed, cannot read a circuit, or another process writes there.
    """
    path = directory / LABELS
    labels = read_labels(path)
    waiting = [job for job in dict.fromkeys(jobs) if job.key not in labels]
    if waiting:
        with directory_lock(directory):
            _drop_torn_line(path)
            labels = read_labels(path)
            waiting = [job for job in waiting if job.key not in labels]
            with path.open("a") as file, bar(total=len(waiting), desc="labels", unit="recipe") as shown_bar:
                for job, counts in _computed(waiting, processes, timeout):
                    labels[job.key] = counts
                    file.write(_line(job, counts))
                    file.flush()
                    shown_bar.update()
    return {job.key: labels[job.key] for job in jobs}


def _computed(jobs: Iterable[Job], processes: int, timeout: float) -> Iterable[tuple[Job, Trajectory | None]]:
    """In the order in which they end; a circuit whose time ran out once is not tried again."""
    source, slow = iter(jobs), set[str]()
    pending: dict[Future[Trajectory | None], Job] = {}
    with ThreadPoolExecutor(processes) as pool:
        try:
            while True:
                while len(pending) < processes and (job := next(source, None)) is not None:
                    if job.file.digest in slow:
                        yield job, None
                    else:
                        pending[pool.submit(synthesise, job, timeout)] = job
                if not pending:
                    return
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    job = pending.pop(future)
                    counts = future.result()
                    if counts is None:
                        slow.add(job.file.digest)
                    yield job, counts
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _line(job: Job, counts: Trajectory | None) -> str:
    ands, levels = (None, None) if counts is None else counts.T.tolist()
    entry = {"circuit": job.file.digest, "name": job.file.name, "recipe": job.recipe, "ands": ands, "levels": levels}
    return json.dumps(entry) + "\n"


def _drop_torn_line(path: Path) -> None:
    """Cut off what a killed process left of its last line."""
    if path.is_file() and (content := path.read_bytes()) and not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
