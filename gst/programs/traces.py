"""Programs by name: bundled workloads, Hugging Face models and the user's functions, traced once and cached on disk."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from gst.programs.program import Program
from gst.programs.step import Step
from gst.programs.tracing import capture
from gst.programs.workloads import WORKLOADS
from gst.util.imports import import_from_here, imported
from gst.util.process import DISTRIBUTION, version_of

TRACES = Path("runs/traces")
PIN = "#"  # between the name of a step and the key of its program
LEFT_S = 3600.0  # nobody writes that long


def resolve(name: str) -> Step:
    """Return the step of a name: a bundled workload (`rnnlm`, `rnnlm:layers=8,hidden=512`), or the result of a function
    without arguments (`module:function`).

    Raises:
        ValueError: no such program, argument, model, module or function, or it does not return a `Step`.

    Examples:
        >>> resolve("rnnlm:layers=1,steps=2").name
        'rnnlm-1'
    """
    name = name.partition(PIN)[0]
    head, _, rest = name.partition(":")
    if head in WORKLOADS:
        return _built(name, WORKLOADS[head], _arguments(name, rest))
    if not head or not rest:
        if name.endswith(".py"):
            raise ValueError(f"{name!r} names a file; write {name[:-3].replace('/', '.')}:FUNCTION")
        raise ValueError(f"there is no program {name!r}; want MODULE:FUNCTION or one of {', '.join(sorted(WORKLOADS))}")
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
    parameters = inspect.signature(factory).parameters
    for key, value in arguments.items():
        if key not in parameters:
            raise ValueError(f"{name!r} has no argument {key!r}; there are {', '.join(parameters)}")
        if type(value) is not type(parameters[key].default):
            raise ValueError(f"{name!r}: {key} is {value!r}, want a {type(parameters[key].default).__name__}")
    return factory(**arguments)


def _from_function(name: str, module_name: str, function_name: str) -> Step:
    if module_name.endswith(".py"):
        raise ValueError(f"{name!r} names a file; write {module_name[:-3]}:{function_name}")
    factory = getattr(imported(module_name, repr(name)), function_name, None)
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
    """Return the program of a step by its name (`resolve`), for a kind of device.

    Bundled workloads are read from `cache` if these versions traced them before. A user's function is called and traced
    anew, since its step may depend on anything: the environment, a checkpoint, a file of settings. Its trace is kept
    for processes that ask for it by `pinned` names.

    Args:
        name: of the step, or one that `pinned` made: then the program has the key in it.
        cache: directory of traces, shared by processes.
        kind: of `gst.programs.operation.KINDS`.

    Raises:
        ValueError: as `resolve` and `capture`, or the program is not the pinned one. A damaged trace is made again.

    Examples:
        >>> program = traced("rnnlm:layers=1,steps=2", Path("traces"))
        >>> traced("rnnlm:layers=1,steps=2", Path("traces")).key == program.key  # read from disk
        True
    """
    name, _, key = name.partition(PIN)
    directory = trace_path(name, cache, kind)
    if key or _head(name) in WORKLOADS:
        with suppress(ValueError, OSError):
            program = Program.load(directory)
            if key in ("", program.key):
                return program
    program = capture(resolve(name), kind)
    if key not in ("", program.key):
        raise ValueError(f"program {name!r} is another one each time it is traced; draw its constants from a seed")
    _keep(program, directory)
    return program


def pinned(name: str, program: Program) -> str:
    """Return a name by which other processes `resolve` the same step and get the same program from `traced`."""
    return f"{name.partition(PIN)[0]}{PIN}{program.key}"


def trace_path(name: str, cache: Path = TRACES, kind: str = "cpu") -> Path:
    """Return the directory of the program of that name in the cache of `traced`, for these versions of Python, torch
    and the source files of `gst.programs`.

    Examples:
        >>> trace_path("rnnlm:layers=1", Path("traces")).name[:14]
        'rnnlm-layers-1'
    """
    versions = [kind, _sources(), version_of(DISTRIBUTION), torch.__version__, *sys.version_info[:2]]
    head = _head(name)
    if head not in WORKLOADS:
        import_from_here()
        with suppress(ImportError, ValueError, AttributeError):
            spec = find_spec(head)
            versions.append(spec and spec.origin)
    digest = hashlib.sha256(json.dumps([name, versions]).encode()).hexdigest()[:16]
    return cache / f"{re.sub(r'[^A-Za-z0-9_]+', '-', name)[:60]}-{digest}"


def _head(name: str) -> str:
    return name.partition(":")[0]


@lru_cache(maxsize=1)
def _sources() -> str:
    """Return a digest of the source files that decide traces."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _keep(program: Program, directory: Path) -> None:
    """Replace an earlier trace, and remove the leftovers of killed processes."""
    for left in directory.parent.glob(f".partial-{directory.name}-*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFT_S:
                shutil.rmtree(left, ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)
    try:
        program.save(directory)
    except (ValueError, OSError):
        if not directory.exists():  # else another process traced the same, and was quicker
            raise
