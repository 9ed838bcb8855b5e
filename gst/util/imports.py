"""Imports: names that load when first used, classes of the user, torchmetrics without the libraries unused here."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

UNUSED = ("PIL", "matplotlib", "scienceplots", "scipy", "transformers")
"""Libraries of metrics of text, sound and images, which take longer to import than all else that a training needs."""


def lazy_names(package: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for `package` that imports a submodule, or a name that the package imports for type
    checkers alone, in a block `if TYPE_CHECKING:`.

    Examples:
        >>> import gst.cost
        >>> lazy_names("gst.cost")("METRICS")["tau"].words
        "Kendall's tau"
    """

    @cache
    def homes() -> dict[str, str]:
        tree = ast.parse(Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8"))
        statements = [each for block in tree.body if isinstance(block, ast.If) for each in block.body]
        imports = [each for each in statements if isinstance(each, ast.ImportFrom) and each.module != package]
        return {name.name: str(each.module) for each in imports for name in each.names}

    def find(name: str) -> Any:
        if name in homes():
            return getattr(import_module(homes()[name]), name)
        module = None
        with suppress(ModuleNotFoundError):  # where `package` is a module
            module = None if name.startswith("_") else find_spec(f"{package}.{name}")
        if module is not None:
            return import_module(module.name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(homes())}")

    return find


def import_from_here() -> None:
    """Append the current directory to the path of modules, so that classes which a command names are found there."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def imported(name: str, of: str = "") -> ModuleType:
    """Import a module that a command names, also from the current directory.

    Args:
        of: what the command names it for, in the message; such as "the method 'mine:hill'".

    Raises:
        ValueError: it cannot be imported.
    """
    import_from_here()
    try:
        return import_module(name)
    except ImportError as error:
        named = f"{name!r} of {of}" if of else repr(name)
        raise ValueError(f"cannot import {named} ({error}); run gst where that module is, or set PYTHONPATH") from error


def import_torchmetrics() -> None:
    """Import torchmetrics, which Lightning imports, without the libraries of `UNUSED`: to it they are not installed.

    A program that imports torchmetrics first keeps all of its metrics.
    """
    if "torchmetrics" in sys.modules:
        return
    from lightning_utilities.core import imports

    class Requirement(imports.RequirementCache):
        def __bool__(self) -> bool:
            return not str(self.requirement).startswith(UNUSED) and super().__bool__()

    before = imports.RequirementCache, imports.package_available
    imports.RequirementCache = Requirement  # type: ignore[misc]
    imports.package_available = lambda name: name not in UNUSED and before[1](name)  # type: ignore[assignment]
    try:
        import torchmetrics  # noqa: F401
    finally:
        imports.RequirementCache, imports.package_available = before  # type: ignore[misc]
