"""Commands that `experiments.bench.chaos` kills: inputs, the command that resumes, and the result it must give."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gst.execution.measure import Log
from gst.graphs.store import verify
from gst.placement.measured_plans import read_measured
from gst.placement.search.neighbourhoods import random_plans
from gst.placement.task import Task
from gst.programs import Program, traced

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
CONFIG = ROOT / "experiments" / "configs" / "giant_synthetic.yaml"
PROGRAM = "rnnlm:layers=1,hidden=8,steps=2,batch=2,vocabulary=10"
UNFINISHED = (".partial", ".lock")
"""In the name of what nobody takes for a whole file."""


@dataclass(frozen=True)
class Command:
    """A command that may be killed at any moment.

    Args:
        arguments: of `gst`, in a directory of its own.
        resume: what is added to go on.
        outcome: of a directory where it has ended; the same after any kills as after none.
        inputs: writes what the command reads into its directory.
    """

    arguments: tuple[str, ...]
    resume: tuple[str, ...]
    outcome: Callable[[Path], Any]
    inputs: Callable[[Path], None] = lambda directory: None


def every_command(small: bool) -> dict[str, Command]:
    """By name. The small ones take a second, the others several."""
    return {
        "prepare": Command(
            ("prepare", "files/*.npz", "--max-nodes", "32", "--method", "auto"), (), _stores,
            lambda directory: _files(directory / "files", 6 if small else 60),
        ),
        "giant": Command(
            ("prepare", "synthetic:1200000", "--max-nodes", "4000", "--method", "contiguous"), (), _stores
        ),
        "fit": Command(
            (
                "fit", "--config", str(CONFIG), "--data.source.init_args.num_nodes=3000", "--data.max_nodes=500",
                "--data.source.init_args.num_configs=96", f"--trainer.max_epochs={4 if small else 10}",
                "--trainer.logger=false", "--trainer.enable_progress_bar=false",
                "--trainer.enable_model_summary=false",
            ),
            ("--ckpt_path", "last"), _weights,
        ),
        "measure": Command(
            (
                "measure", PROGRAM, "--devices", "cpu:0", "--patience", "0", "--random", "8" if small else "32",
                "--repetitions", "20", "--out", "out",
            ),
            ("--resume",), _plans,
        ),
        "place": Command(
            (
                "place", PROGRAM, "--machine", "gpus:2", "--runtime", "simulated", "--evaluations",
                "100" if small else "400", "--methods", "annealing,go", "--out", "out",
                "--json", "result.json",
            ),
            ("--resume",), _placed,
        ),
    }  # fmt: skip


def rows(directory: Path) -> dict[str, list[str]]:
    """The records of every log below `directory`, as they are read."""
    return {
        str(path.relative_to(directory)): [json.dumps(record) for record in Log(path).read()]
        for path in sorted(directory.rglob("*.jsonl"))
        if path.name != "journal.jsonl"  # of a preparation, in the place of unfinished stores
    }


def lost(before: dict[str, list[str]], after: dict[str, list[str]]) -> int:
    """Return the number of rows of `before` that moved or vanished."""
    kept = [row == then for name in before for row, then in zip(before[name], after.get(name, []), strict=False)]
    return sum(map(len, before.values())) - sum(kept)


def unreadable(directory: Path) -> list[str]:
    """Files below `directory` that their own readers refuse, with the reason; unfinished ones are nobody's."""
    found = []
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory)
        if path.is_file() and not any(mark in str(name) for mark in UNFINISHED):
            try:
                _READERS.get(path.name, _READERS.get(path.suffix, Path.read_bytes))(path)
            except Exception as error:  # whatever a reader raises
                found.append(f"{name}: {type(error).__name__}: {error}")
    return found


def _report(path: Path) -> None:
    if not path.read_text().rstrip().endswith("</html>"):
        raise ValueError("the page does not end")


def _arrays(path: Path) -> None:
    with np.load(path, allow_pickle=False) as archive:
        dict(archive)


_READERS: dict[str, Callable[[Path], Any]] = {
    "meta.json": lambda path: verify(path.parent),
    "program.json": lambda path: Program.load(path.parent),
    ".json": lambda path: json.loads(path.read_text()),
    ".jsonl": lambda path: Log(path).read(),
    ".ckpt": lambda path: torch.load(path, map_location="cpu", weights_only=True),
    ".npz": _arrays,
    ".html": _report,
}


def _files(directory: Path, count: int) -> None:
    """Graphs of several sizes."""
    directory.mkdir(parents=True)
    published = [FIXTURES / "alexnet_small.npz", *sorted((FIXTURES / "tile").glob("*.npz"))]
    for number in range(count):
        source = published[number % len(published)]
        shutil.copy(source, directory / f"{number:02}-{source.name}")


def _stores(directory: Path) -> dict[str, str]:
    """A digest of each file of each finished store."""
    stores = [path.parent for path in sorted(directory.glob("runs/stores/*/meta.json"))]
    files = [file for store in stores if not store.name.startswith(".") for file in sorted(store.iterdir())]
    return {str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _weights(directory: Path) -> dict[str, str]:
    """A digest of weights, table and optimizer in each checkpoint."""
    found = {}
    for path in sorted(directory.glob("runs/*/checkpoints/*.ckpt")):
        content = torch.load(path, map_location="cpu", weights_only=True)
        digest = hashlib.sha256()
        _add(digest, {key: content[key] for key in ("epoch", "global_step", "state_dict", "optimizer_states")})
        found[path.name] = digest.hexdigest()
    return found


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    elif isinstance(value, dict):
        for key in value:
            digest.update(str(key).encode())
            _add(digest, value[key])
    elif isinstance(value, list | tuple):
        for entry in value:
            _add(digest, entry)
    else:
        digest.update(repr(value).encode())


def _plans(directory: Path) -> dict[str, Any]:
    """Check that the plans are those drawn with the profile of the log, in that order, and count their outcomes. A
    profile is measured, and so another one each time that a command begins."""
    found = read_measured(directory / "out")
    program = traced(PROGRAM, directory / "runs" / "traces")
    task = Task.of_profile(program, found.profiled.devices, found.profiled.times_us)
    drawn = [plan.key for _, plan in islice(random_plans(task, found.header["seed"]), len(found.plans))]
    return {
        "as_drawn": [plan.key for plan in found.plans] == drawn,
        "outcomes": [measurement.outcome for measurement in found.measurements],
    }


def _placed(directory: Path) -> Any:
    """The result and the plan, without seconds."""
    result = json.loads((directory / "result.json").read_text())
    return _without_seconds({**result, "plan": json.loads((directory / "out" / "plan.json").read_text())})


def _without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if "seconds" not in key and key != "command"}
        return {key: _without_seconds(each) for key, each in kept.items()}
    return [_without_seconds(each) for each in value] if isinstance(value, list) else value
