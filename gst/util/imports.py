"""Imports: names that load when first used, classes of the user, torchmetrics without the libraries unused here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

UNUSED = ("PIL", "matplotlib", "scienceplots", "scipy", "transformers")
"""Libraries of metrics of text, sound and images, which take longer to import than all else that a training needs."""


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for `package` that imports the module in which a name is defined.

    Args:
        homes: the module of each name; an empty one stands for a submodule of that name.

    Examples:
        >>> lazy_names("gst", {"segment": "gst.graphs.segments"})("segment").__name__
        'segment'
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(homes)}")
        return getattr(import_module(homes[name]), name) if homes[name] else import_module(f"{package}.{name}")

    return find


def import_from_here() -> None:
    """Append the current directory to the path of modules, so that classes which a command names are found there."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


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
