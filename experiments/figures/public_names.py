"""The public names of each package, with the first sentence of their docstrings: docs/reference/public_names.md."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType

from experiments.figures.documents import ROOT, table

PAGE = ROOT / "docs" / "reference" / "public_names.md"
MODULES = (
    "gst", "gst.nn", "gst.cost", "gst.data", "gst.programs", "gst.placement", "gst.training",
    "partitioners", "embedding_cache",
)  # fmt: skip
VALUES = {
    "gst.cost.LOSSES": "Losses by name; a new one is registered here",
    "gst.cost.METRICS": "Metrics by name; a new one is registered here, and then logged and reported",
    "gst.nn.ENCODERS": "Encoders by name; a new one is registered here",
    "gst.__version__": "Version of the installed distribution",
    "gst.programs.FEATURE_NAMES": "Names of the node features of a captured program, in order",
    "gst.programs.NUM_OPCODES": "Number of kinds of operations in node features",
    "gst.programs.WORKLOADS": "Bundled programs by name",
    "partitioners.METHODS": "Partitioning methods by name; a new one is registered here",
}
"""Sentences for values, which have no docstring of their own."""


def public_names(module: str) -> dict[str, str]:
    """Return the first sentence about each public name of `module` (`__all__`, sorted)."""
    loaded = import_module(module)
    return {name: _sentence(f"{module}.{name}", getattr(loaded, name)) for name in sorted(_all(loaded))}


def _all(module: ModuleType) -> list[str]:
    return list(getattr(module, "__all__", []))


def _sentence(path: str, value: object) -> str:
    if path in VALUES:
        return VALUES[path]
    own = inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)
    text = (inspect.getdoc(value) or "") if own else ""
    return " ".join(text.split("\n\n")[0].split()).partition(". ")[0].rstrip(".").replace("|", "\\|")


def _table(module: str) -> str:
    return table(("name", "meaning"), [(f"`{name}`", what) for name, what in public_names(module).items()])


TABLES: dict[str, Callable[[], str]] = {f"public names of {module}": partial(_table, module) for module in MODULES}
