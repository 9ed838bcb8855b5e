"""Programs by name: bundled workloads, Hugging Face models and the user's functions, traced once and cached on disk."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import json
import re
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import torch

from gst.programs.program import Program
from gst.programs.step import Step
from gst.programs.tracing import capture
from gst.programs.workloads import WORKLOADS
from gst.programs.workloads.hugging_face import PREFIX, hugging_face
from gst.util.process import DISTRIBUTION, import_from_here, version_of

KINDS = f"{PREFIX}:MODEL, MODULE:FUNCTION"
TRACES = Path("runs/traces")
SOURCES = "sources.json"
LEFT_S = 3600.0  # nobody writes that long
STARTED = time.time()  # of this process, nearly


def resolve(name: str) -> Step:
    """Return the step of a name: a bundled workload (`rnnlm`, `rnnlm:layers=8,hidden=512`), a model of the transformers
    library (`transformers:gpt2:n_layer=2`), or the result of a function without arguments (`module:function`).

    Raises:
        ValueError: no such program, argument, model, module or function, or it does not return a `Step`.

    Examples:
        >>> resolve("rnnlm:layers=1,steps=2").name
        'rnnlm-1'
    """
    head, _, rest = name.partition(":")
    if head in WORKLOADS:
        return _built(name, WORKLOADS[head], _arguments(name, rest))
    if head == PREFIX:
        model, _, rest = rest.partition(":")
        return hugging_face(model, _arguments(name, rest))
    if not head or not rest:
        if name.endswith(".py"):
            raise ValueError(f"{name!r} names a file; write {name[:-3].replace('/', '.')}:FUNCTION")
        known = ", ".join(sorted(WORKLOADS))
        raise ValueError(f"there is no program {name!r}; want {KINDS} or one of {known}")
    return _from_function(name, head, rest)


def _arguments(name: str, text: str) -> dict[str, Any]:
    """Return `layers=8,optimizer=adam` as a dictionary; numbers are whole and, except for the seed, at least 1."""
    arguments: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key or not value:
            raise ValueError(f"{name!r}: {part!r} is no argument; write name=value,name=value")
        number = int(value) if value.isdecimal() else None
        if number == 0 and key != "seed":
            raise ValueError(f"{name!r}: {key} is 0, want at least 1")
        arguments[key] = value if number is None else number
    return arguments


def _built(name: str, factory: Callable[..., Step], arguments: dict[str, Any]) -> Step:
    known = inspect.signature(factory).parameters
    for key, value in arguments.items():
        if key not in known:
            raise ValueError(f"{name!r} has no argument {key!r}; there are {', '.join(known)}")
        if type(value) is not type(known[key].default):
            raise ValueError(f"{name!r}: {key} is {value!r}, want a {type(known[key].default).__name__}")
    return factory(**arguments)


def _from_function(name: str, module_name: str, function_name: str) -> Step:
    import_from_here()
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        if module_name.endswith(".py"):
            raise ValueError(f"{name!r} names a file; write {module_name[:-3]}:{function_name}") from error
        raise ValueError(f"cannot import {module_name!r} of {name!r}: {error}; is it here or on PYTHONPATH?") from error
    factory = getattr(module, function_name, None)
    if not callable(factory):
        raise ValueError(f"module {module_name!r} has no function {function_name!r}")
    try:
        step = factory()
    except TypeError as error:
        raise ValueError(f"calling {name!r} without arguments failed: {error}") from error
    if not isinstance(step, Step):
        raise ValueError(f"{name!r} returned a {type(step).__name__}, want a gst.programs.TrainingStep or Step")
    return step


# Traces on disk ------------------------------------------------------------------------------------------------------


def traced(name: str, cache: Path = TRACES, kind: str = "cpu") -> Program:
    """Return the program of a step by its name (`resolve`), for a kind of device, from `cache` if it was traced before.

    It is traced again after a change of a source file of the step (found by import statements, outside of installed
    packages), and by another version of torch, of this package or of transformers.

    Raises:
        ValueError: as `resolve` and `capture`; a damaged trace is made again instead.

    Examples:
        >>> program = traced("rnnlm:layers=1,steps=2", Path("traces"))
        >>> traced("rnnlm:layers=1,steps=2", Path("traces")).key == program.key  # read from disk
        True
    """
    directory = trace_path(name, cache, kind)
    with suppress(ValueError, OSError):
        if _is_current(directory):
            return Program.load(directory / "program")
    before = set(sys.modules)
    program = capture(resolve(name), kind)
    imported_now = set(sys.modules) - before
    sources = own_sources({_module(name), "gst.programs.tracing", *imported_now})
    if not _changed_since_import(set(sources) - set(filter(None, map(source_of, imported_now)))):
        _keep(program, directory, sources)
    return program


def trace_path(name: str, cache: Path = TRACES, kind: str = "cpu") -> Path:
    """Return the directory of the program of that name in the cache of `traced`, for these versions.

    Examples:
        >>> trace_path("rnnlm:layers=1", Path("traces")).name[:14]
        'rnnlm-layers-1'
    """
    head = name.partition(":")[0]
    versions = [version_of(DISTRIBUTION), torch.__version__, *sys.version_info[:2]]
    if head == PREFIX:
        versions.append(version_of(PREFIX))
    elif head not in WORKLOADS:
        import_from_here()
        with suppress(ImportError, ValueError, AttributeError):
            spec = find_spec(head)
            versions.append(spec and spec.origin)
    versions += [] if kind == "cpu" else [kind]
    digest = hashlib.sha256(json.dumps([name, versions]).encode()).hexdigest()[:16]
    return cache / f"{re.sub(r'[^A-Za-z0-9_]+', '-', name)[:60]}-{digest}"


def _module(name: str) -> str:
    head = name.partition(":")[0]
    if head in WORKLOADS:
        return WORKLOADS[head].__module__
    return "gst.programs.workloads.hugging_face" if head == PREFIX else head


def _is_current(directory: Path) -> bool:
    recorded = json.loads((directory / SOURCES).read_text())
    return bool(recorded == digests(map(Path, recorded)))


def _changed_since_import(files: Iterable[Path]) -> bool:
    """True if this process may run older code than these files hold."""
    return any(path.stat().st_mtime > STARTED for path in files)


def _keep(program: Program, directory: Path, sources: Iterable[Path]) -> None:
    """Replace an earlier trace at once, and remove the leftovers of killed processes."""
    for left in directory.parent.glob(f".partial-{directory.name}-*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFT_S:
                shutil.rmtree(left, ignore_errors=True)
    partial = directory.with_name(f".partial-{directory.name}-{uuid4().hex}")
    try:
        program.save(partial / "program")
        (partial / SOURCES).write_text(json.dumps(digests(sources)))
        shutil.rmtree(directory, ignore_errors=True)
        with suppress(OSError):  # another process traced the same, and was quicker
            partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


# Source files -------------------------------------------------------------------------------------------------------


def own_sources(modules: Iterable[str]) -> list[Path]:
    """Return source files of imported modules and of all that their import statements reach, sorted; without the
    standard library and installed packages."""
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
    """Return the source file of an imported module; None in the standard library or an installed package."""
    name = getattr(sys.modules[module], "__file__", None)
    if not name or not name.endswith(".py"):
        return None
    path = Path(name).resolve()
    return None if any(path.is_relative_to(place) for place in _INSTALLED) else path


def digests(files: Iterable[Path]) -> dict[str, str]:
    """Return path -> SHA-256 of the content; '' for a file that is not there."""
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "" for path in files}


def _imports(path: Path, module: ModuleType) -> Iterator[str]:
    """Yield names of modules that a source file may import, also inside functions."""
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
