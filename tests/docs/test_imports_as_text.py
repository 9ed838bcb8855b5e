"""The product does not import experiments, also where the name of the module is a string."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path for name in ("gst", "partitioners", "embedding_cache") for path in (ROOT / name).rglob("*.py"))
MODULE = re.compile(r"experiments([.:]\w+)*")
IMPORTS = ("import_module", "__import__", "find_spec", "resolve_name")


def names_of_experiments(source: str) -> Iterator[str]:
    """Strings that are the name of a module of experiments, and those at the start of a name that is imported."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE.fullmatch(node.value):
            yield node.value
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in IMPORTS and node.args:
            text = ast.unparse(node.args[0]).lstrip("f'\"")
            if re.match(r"experiments\b", text):
                yield text


@pytest.mark.parametrize(
    ("source", "is_import"),
    [
        ("import_module('experiments.bench.commands')", True),
        ("importlib.import_module(f'experiments.bench.{name}')", True),
        ("HOME = {'bench': 'experiments.bench'}", True),
        ("find_spec('experiments/bench')", True),
        ("print('python -m experiments.bench step')", False),
        ("import_module('gst.placement')", False),
    ],
)
def test_names_are_found(source: str, is_import: bool) -> None:
    assert bool(list(names_of_experiments(source))) == is_import


def test_no_file_of_the_product_names_a_module_of_experiments() -> None:
    assert len(FILES) > 100
    found = {str(path.relative_to(ROOT)): list(names_of_experiments(path.read_text())) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}
