"""Libraries that the start of Python programs and of commands imports."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gst.cli import main

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


@pytest.mark.parametrize(
    ("words", "given", "policy"),
    [
        ("fit", {}, ("PASSIVE", None)),
        ("rank", {}, ("PASSIVE", None)),
        ("place", {}, ("ACTIVE", "1000")),
        ("demo", {}, ("ACTIVE", "1000")),
        ("fit", {"OMP_WAIT_POLICY": "ACTIVE"}, ("ACTIVE", None)),
        ("place", {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "7"}, ("PASSIVE", "7")),
        ("doctor", {}, (None, None)),
    ],
)
def test_commands_set_how_threads_wait_before_any_module_of_the_user_is_imported(
    words: str, given: dict[str, str], policy: tuple[str | None, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert main([words, "--import", "no_such_module"]) == 2
    assert (os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT")) == policy
