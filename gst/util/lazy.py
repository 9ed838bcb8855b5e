"""Names of a package that are imported when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


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
