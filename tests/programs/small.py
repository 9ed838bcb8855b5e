"""Small sizes of the bundled workloads, captured once for all tests of a checkout."""

import hashlib
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from gst.programs import WORKLOADS, Program, capture
from tests.checks import without_checks

SMALL: dict[str, dict[str, Any]] = {
    "rnnlm": {"layers": 2, "hidden": 16, "steps": 3, "batch": 4, "vocabulary": 30},
    "gnmt": {"layers": 3, "hidden": 16, "steps": 2, "batch": 4, "vocabulary": 30},
    "transformer_xl": {"layers": 1, "width": 16, "heads": 2, "length": 4, "segments": 2, "batch": 2, "vocabulary": 30},
    "wavenet": {"stacks": 1, "layers": 3, "width": 8, "length": 16},
    "inception": {"modules": 1, "width": 8, "size": 6, "batch": 4},
    "gpt": {"layers": 1, "width": 16, "heads": 2, "length": 6, "batch": 2, "vocabulary": 30},
    "moe": {"layers": 1, "width": 16, "experts": 3, "heads": 2, "length": 6, "batch": 2, "vocabulary": 30},
}

# Of each structure the smallest program: branches side by side, a recurrence, a mixture of experts with attention.
STRUCTURES = ("inception", "moe", "rnnlm")
ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / ".pytest_cache" / "programs"


@cache
def small_program(name: str, kind: str = "cpu") -> Program:
    """The workload of that name at its small size, captured once for all processes until a source changes. What is
    loaded is what was captured: `test_saving.py`."""
    directory = PROGRAMS / f"{name}-{kind}-{_digest(name)}"
    with without_checks():  # other tests capture with them
        with suppress(ValueError):
            return Program.load(directory)
        if kind == "cuda" and torch.backends.cuda.is_built() and not torch.cuda.is_available():
            # its capture needs a process in which gradients have no threads yet
            code = f"from tests.programs.small import small_program; small_program({name!r}, {kind!r})"
            subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
            return Program.load(directory)
        program = capture(WORKLOADS[name](**SMALL[name]), kind)
        with suppress(ValueError):  # another process was quicker
            program.save(directory)
        return program


def _digest(name: str) -> str:
    """Of the sizes, of torch, and of the sources that a capture runs through."""
    content = hashlib.sha256(f"{SMALL[name]} {torch.__version__}".encode())
    for folder in ("graphs", "programs", "util"):
        for path in sorted((ROOT / "gst" / folder).rglob("*.py")):
            content.update(path.read_bytes())
    return content.hexdigest()[:16]
