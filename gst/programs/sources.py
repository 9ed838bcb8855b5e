"""Which source files a Python module is made of, and whether they changed."""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType


def own_sources(modules: Iterable[str]) -> list[Path]:
    """Source files of imported modules and of all that their import statements reach and that was imported, sorted;
    without the standard library and installed packages.
    """
    waiting, seen, files = list(modules), set[str](), set[Path]()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in sys.modules:
            continue
        seen.add(name)
        path = source_of(name)
        if path is not None:
            files.add(path)
            waiting += _imports(path, sys.modules[name])
        if "." in name:
            waiting.append(name.rpartition(".")[0])  # a package is run before what is in it
    return sorted(files)


def source_of(module: str) -> Path | None:
    """Source file of an imported module; None if it has none, or is of the standard library or an installed package."""
    name = getattr(sys.modules[module], "__file__", None)
    if not name or not name.endswith(".py"):
        return None
    path = Path(name).resolve()
    return None if any(path.is_relative_to(place) for place in _INSTALLED) else path


def digests(files: Iterable[Path]) -> dict[str, str]:
    """Path -> SHA-256 of the content; '' for a file that is not there."""
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "" for path in files}


def _imports(path: Path, module: ModuleType) -> Iterator[str]:
    """Names of modules that the statements of a source file may import, also inside functions."""
    package = module.__package__ or ""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


_INSTALLED = [
    Path(place).resolve()
    for key, place in sysconfig.get_paths().items()
    if key in ("stdlib", "platstdlib", "purelib", "platlib")
]
