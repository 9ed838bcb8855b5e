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
