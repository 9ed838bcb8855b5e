"""The examples of docstrings (`>>>`) run and print what they say."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMPT = re.compile(r"^\s*>>> ", re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

# Their examples compile or search for seconds; what they show has tests of its own.
COSTLY = [Path("gst", f"{name}.py") for name in (
    "execution/executor", "placement/baselines/bounds", "placement/baselines/portfolio", "kernels/state",
    "kernels/inductor", "cost/model", "placement/planning",
)]  # fmt: skip


def files_with_examples(*packages: str) -> list[Path]:
    """Return the modules of packages that have examples, by their paths in the repository."""
    files = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    return [path.relative_to(ROOT) for path in files if PROMPT.search(path.read_text())]


@pytest.mark.parametrize("path", [
    pytest.param(path, marks=pytest.mark.slow) if path in COSTLY else path
    for path in files_with_examples("gst", "partitioners", "embedding_cache")
], ids=str)  # fmt: skip
def test_the_examples_of_a_module_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_examples(path)


def check_examples(path: Path) -> None:
    """Run the examples of a module in the current directory; AssertionError if one prints something else."""
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"{name} needs {error.name}, which is not installed")
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner.run(test, out=said.append)
    assert runner.failures == 0, "".join(said)
    assert runner.tries == len(PROMPT.findall((ROOT / path).read_text())), "an example that doctest does not find"
