"""Libraries that the start of Python programs and of commands imports."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys

import gst
from gst.cli import main

for words in ("--help", "demo --help", "rank --help", "place --help"):
    try:
        main(words.split())
    except SystemExit:
        pass
print(*sys.modules, file=sys.stderr)

import torch

for name in gst.__all__:
    getattr(gst, name)
print(*sys.modules, file=sys.stderr)

from gst.util.imports import import_torchmetrics

import_torchmetrics()
import gst.training.cli
print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.slow
def test_a_start_imports_what_it_uses() -> None:
    child = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert child.stdout.count("usage: gst") == 4 and child.stdout.count("examples:") == 3
    package, library, fit = (set(line.split()) for line in child.stderr.splitlines()[-3:])
    assert not package & {"lightning", "wandb", "numba", "scipy", "torch"}
    assert not library & {"lightning", "wandb", "torchmetrics", "scipy.signal", "jsonargparse", "matplotlib"}
    assert {"lightning", "torchmetrics"} <= fit
    assert not fit & {"wandb", "transformers", "scipy.signal", "matplotlib", "PIL"}


SETTINGS = """
import os, sys
from gst.cli import main
try: main(sys.argv[1:])
except SystemExit: pass
print(os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT"), "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("command", "given", "policy"),
    [
        ("fit", {}, "PASSIVE None"),
        ("rank", {}, "PASSIVE None"),
        ("place", {}, "ACTIVE 1000"),
        ("demo", {}, "ACTIVE 1000"),
        ("fit", {"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE None"),
        ("place", {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "7"}, "PASSIVE 7"),
        ("doctor", {}, "None None"),
    ],
)
def test_commands_say_how_threads_wait_before_torch_reads_it(command: str, given: dict[str, str], policy: str) -> None:
    """`--import` names a module that may import torch; a module that is missing ends the command before."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    words = [command, "--import", "no_such_module"]
    child = subprocess.run(
        [sys.executable, "-c", SETTINGS, *words], env=environment | given, capture_output=True, text=True, check=True
    )
    assert child.stdout.split("\n")[-2] == f"{policy} False", child.stderr
