"""The examples of docstrings (`>>>`) run and print what they say."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMPT = re.compile(r"^\s*>>> ", re.MULTILINE)
FILES = [
    path.relative_to(ROOT)
    for package in ("gst", "partitioners", "embedding_cache")
    for path in sorted((ROOT / package).rglob("*.py"))
    if PROMPT.search(path.read_text())
]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("path", FILES, ids=str)
def test_the_examples_of_a_module_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
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
