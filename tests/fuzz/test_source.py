"""Forbidden calls in the source: loading pickles from files, running strings, listening to the network."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("gst", "partitioners", "embedding_cache", "experiments")
PICKLES = {
    "load": ("pickle", "cPickle", "dill", "joblib", "cloudpickle", "marshal", "shelve"),
    "loads": ("pickle", "cPickle", "dill", "cloudpickle", "marshal"),
    "Unpickler": ("pickle", "dill"),
    "read_pickle": ("pd", "pandas"),
    "unsafe_load": ("yaml", "torch"),
    "full_load": ("yaml",),
    "open": ("shelve",),
}
STRINGS = ("system", "popen", "getoutput", "getstatusoutput")
ALLOWED = {
    ("gst/lowering/calls.py", "eval"): "a line made of numbers, names made there and arguments of registered "
    "operators, which saving.py checks when a program is read",
    ("gst/lowering/calls.py", "compile"): "the same line",
}


def offences(source: str) -> Iterator[tuple[str, int]]:
    """List the forbidden calls in the text of a module, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in ("0.0.0.0", "[::]"):
            yield "listens on every address", node.lineno
        if not isinstance(node, ast.Call):
            continue
        owner, name = _called(node.func)
        given = {each.arg: each.value for each in node.keywords}
        if (owner, name) == ("torch", "load") and not _is(given.get("weights_only"), True):
            yield "torch.load without weights_only=True", node.lineno
        if owner in ("np", "numpy") and name == "load" and not _is(given.get("allow_pickle"), False):
            yield "numpy.load without allow_pickle=False", node.lineno
        if name == "load_from_checkpoint" and not _is(given.get("weights_only"), True):
            yield "load_from_checkpoint without weights_only=True", node.lineno
        if owner in PICKLES.get(name, ()) or (owner, name) == ("yaml", "load"):
            yield f"{owner}.{name}", node.lineno
        if "shell" in given and not _is(given["shell"], False):
            yield "shell=True", node.lineno
        if (owner == "os" and name in STRINGS) or (owner == "subprocess" and name in STRINGS):
            yield f"{owner}.{name}", node.lineno
        if owner == "" and name in ("eval", "exec", "compile", "__import__"):
            yield name, node.lineno


def _called(function: ast.expr) -> tuple[str, str]:
    if isinstance(function, ast.Name):
        return "", function.id
    if isinstance(function, ast.Attribute):
        return (function.value.id if isinstance(function.value, ast.Name) else "?"), function.attr
    return "?", "?"


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_offends(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for what, line in offences(path.read_text())
        if (str(path.relative_to(ROOT)), what) not in ALLOWED
    ]
    assert found == []


def test_what_is_allowed_is_still_there() -> None:
    for name, what in ALLOWED:
        assert what in {each for each, _ in offences((ROOT / name).read_text())}


OFFENCES = (
    "torch.load(path)", "torch.load(path, weights_only=False)", "np.load(path)", "np.load(path, allow_pickle=True)",
    "pickle.load(file)", "pickle.loads(content)", "yaml.load(text, yaml.Loader)", "os.system(command)",
    "subprocess.run(command, shell=True)", "eval(text)", "exec(text)", "__import__(name)", "joblib.load(path)",
    "server.bind(('0.0.0.0', 80))", "Module.load_from_checkpoint(path)", "subprocess.getoutput(command)",
)  # fmt: skip
HARMLESS = (
    "torch.load(path, map_location='cpu', weights_only=True)", "np.load(path, allow_pickle=False)", "json.load(file)",
    "subprocess.run(['ls'])", "model.eval()", "re.compile(pattern)", "yaml.safe_load(text)", "Program.load(path)",
)  # fmt: skip


def test_offences_are_seen_and_nothing_else() -> None:
    assert [line for line in OFFENCES if len(list(offences(line))) != 1] == []
    assert [line for line in HARMLESS if list(offences(line))] == []
