"""The program in the README runs as it stands, and learns."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.mark.slow
def test_the_first_program_learns_a_property_of_whole_graphs() -> None:
    program = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert program is not None
    done = subprocess.run([sys.executable, "-c", program[1]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    error, spread = map(float, re.findall(r"\d+\.\d+", done.stdout))
    assert error < 0.2 * spread


@pytest.mark.slow
def test_the_second_program_places_a_model(tmp_path: Path) -> None:
    program = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[1]
    assert program.count("\n") <= 5
    quick = program.replace("budget=20", "budget=0")
    done = subprocess.run([sys.executable, "-c", quick], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "encoder" in done.stdout and "no plan can take less than" in done.stdout
