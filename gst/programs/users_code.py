"""The user's own code: its lines, for messages about what cannot be captured, and its calls of clocks and files."""

from __future__ import annotations

import builtins
import functools
import io
import os
import random
import sys
import sysconfig
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

PACKAGES = Path(torch.__file__).parents[1]
OTHERS = (
    *(str(PACKAGES / name) for name in ("torch", "jaxtyping", "typeguard")),  # the last two check shapes in tests
    *(str(Path(__file__).with_name(f"{name}.py")) for name in ("users_code", "tracing", "step", "optimizers")),
)


def users_line(frames: Iterable[traceback.FrameSummary]) -> str:
    """Return the last line that belongs neither to PyTorch nor to capture, in brackets; empty if there is none."""
    users = [each for each in frames if each.line and not each.filename.startswith(OTHERS)]
    return f" (line {users[-1].lineno} of {Path(users[-1].filename).name}: `{users[-1].line}`)" if users else ""


class FirstOfValues(TorchFunctionMode):
    """Finds the line of the user that first makes a number, or a shape, that depends on values of tensors."""

    line = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.line and is_symbolic(result):
            self.line = users_line(traceback.extract_stack())
        return result


def is_symbolic(value: Any) -> bool:
    """True for a number that depends on values of tensors, or a tensor of such a shape."""
    if isinstance(value, list | tuple):
        return any(map(is_symbolic, value))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) or (
        isinstance(value, Tensor) and not value.is_nested and any(map(is_symbolic, value.shape))
    )


# Calls of functions whose results change from run to run --------------------------------------------------------------


CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
DRAWS = tuple(name for name in random.__all__ if getattr(getattr(random, name), "__self__", None) is not None)
SOURCES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (time, (*CLOCKS, *(f"{name}_ns" for name in CLOCKS), "clock_gettime", "localtime", "gmtime", "strftime", "ctime")),
    (random, ("_urandom", *DRAWS)),
    (os, ("urandom", "getrandom", "open", "stat", "listdir", "scandir", "times", "getpid")),
    (os._Environ, ("__getitem__",)),
    (random.Random, ("seed",)),
    (uuid, ("uuid1",)),
    (builtins, ("open",)),
    (io, ("open",)),
    (np, ("fromfile",)),
    (torch, ("load",)),
)
"""Functions by module or class whose results change from run to run."""
CHECKERS = ("numpy", "jaxtyping", "beartype", "typeguard")  # and wrappers of the user's functions
SILENT = ("importlib", "linecache", "logging", "threading", "traceback", "warnings")  # they do not reach a result

_notes: dict[int, list[list[str]]] = {}  # of the blocks that each thread is in
_lock = threading.Lock()


@functools.cache
def is_own(module: str) -> bool:
    """True for a module of the user: no installed package, and no part of this one."""
    if module.partition(".")[0] in ("torch", "gst", "builtins", "None"):
        return False
    if module not in sys.modules:  # code that was executed from a text
        return True
    file = Path(getattr(sys.modules[module], "__file__", None) or sysconfig.get_path("stdlib")).resolve()
    places = (sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib"))
    installed = [Path(each).resolve() for each in places]  # an environment may be a link
    return module == "__main__" or not any(map(file.is_relative_to, installed))


def _noted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that notes each call by the user's code, also through modules of Python and NumPy."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        thread = threading.get_ident()
        notes = _notes.pop(thread, None)  # nothing is noted meanwhile
        is_given = name == "random.Random.seed" and args[1:] and args[1] is not None
        if notes and not is_given and (frame := _users_frame(sys._getframe(1))):
            line = f"{name} (line {frame.f_lineno} of {Path(frame.f_code.co_filename).name})"
            for each in notes:
                each.append(line)
        if notes is not None:
            _notes[thread] = notes
        return function(*args, **kwargs)

    return call


def _users_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        root = module.partition(".")[0]
        if root in SILENT or root not in (*sys.stdlib_module_names, *CHECKERS):
            return frame if root not in SILENT and is_own(module) else None
        frame = frame.f_back
    return None


def _words_of(owner: Any, name: str) -> str:
    if owner is os._Environ:
        return "os.environ"
    return name if owner in (builtins, io) else f"{getattr(owner, '__module__', '')}.{owner.__name__}.{name}".strip(".")


_originals = [(owner, name, getattr(owner, name)) for owner, names in SOURCES for name in names if hasattr(owner, name)]
_notings = {id(each): _noted(each, _words_of(owner, name)) for owner, name, each in _originals}
_noted_of = {id(_notings[id(each)]): each for _, _, each in _originals}


def noted(function: Any) -> Any:
    """Return the function that notes calls of one of `SOURCES`; None for any other object."""
    return _notings.get(id(function))


def original(function: Any) -> Any:
    """Return the function whose calls another one notes; any other object itself."""
    return _noted_of.get(id(function), function)


@contextmanager
def outside_calls() -> Iterator[list[str]]:
    """Note the calls of `SOURCES` by the user's code on this thread.

    Examples:
        >>> with outside_calls() as calls:
        ...     _ = time.time()
        >>> calls  # by this package
        []
    """
    calls: list[str] = []
    own = _notes.setdefault(threading.get_ident(), [])
    with _lock:
        own.append(calls)
        for owner, name, function in _originals:
            setattr(owner, name, noted(function))
    try:
        yield calls
    finally:
        with _lock:
            own.remove(calls)
            if not any(_notes.values()):
                for owner, name, function in _originals:
                    setattr(owner, name, function)
