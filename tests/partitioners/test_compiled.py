"""Machine code that is kept for later processes is that of the sources as they are now."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CALLEE = "from partitioners.compiled import compiled\n\n@compiled\ndef inner(x):\n    return x + {added}\n"
CONSTANTS = "FACTOR = {factor}\n"
CALLER = """
from callee import inner
from constants import FACTOR
from partitioners.compiled import compiled

@compiled
def middle(x):
    return inner(x)

@compiled
def outer(x):
    return middle(x) * FACTOR

print(outer(1), sum(outer.stats.cache_hits.values()))
"""


@pytest.mark.e2e
def test_a_kernel_is_compiled_again_after_a_change_of_what_is_compiled_into_it(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)])}

    def run(added: int, factor: int) -> list[int]:
        for name, text in (("callee", CALLEE.format(added=added)), ("constants", CONSTANTS.format(factor=factor))):
            if not (path := tmp_path / f"{name}.py").exists() or path.read_text() != text:
                path.write_text(text)
        command = [sys.executable, "-B", str(tmp_path / "caller.py")]
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        return [int(each) for each in output.split()]

    assert run(added=1, factor=2) == [4, 0]
    assert run(added=1, factor=2) == [4, 1]  # read from disk
    assert run(added=2, factor=2) == [6, 0]
    assert run(added=2, factor=5) == [15, 0]
    assert run(added=1, factor=2)[0] == 4
