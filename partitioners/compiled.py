"""Decorator that compiles a loop by numba and keeps the machine code for later processes, as long as it is current."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numba
import numpy as np
from numba.core.dispatcher import Dispatcher

SETTINGS: Any = numba.config
FROZEN = (bool, int, float, str, tuple, np.generic, np.ndarray)  # values that numba compiles into the code of a kernel


def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `kernel` on its first call and keep the machine code for later processes.

    There is a folder of machine code for each version of the kernel's file, and of the kernels of other files and the
    constants that are compiled into it. numba would compile again when the kernel's own file changes, but reads the old
    index first, which fails where it names a module that is gone.

    Write `@no_type_check` under this decorator: numba must see the bare function, not a wrapper of the tests' shape
    checker. Without a folder that can be written (RuntimeError) each process compiles anew.
    """
    file, home = kernel.__code__.co_filename, SETTINGS.CACHE_DIR
    if Path(file).is_file():
        parts = sorted({_digest(file), *_compiled_in(kernel, file)})
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
        home = str(Path(home or Path(file).parent / "__pycache__") / f"kernels-{digest}")
    try:
        with patch.object(SETTINGS, "CACHE_DIR", home):
            return numba.njit(cache=True, nogil=True)(kernel)
    except RuntimeError:
        return numba.njit(nogil=True)(kernel)


def _compiled_in(kernel: Callable[..., Any], own_file: str) -> Iterator[str]:
    """Yield a text for each constant that a kernel reads and each other file whose kernels it calls, also by others."""
    for name in kernel.__code__.co_names:
        value = kernel.__globals__.get(name)
        if isinstance(value, FROZEN):
            yield f"{name}={value.tobytes().hex() if isinstance(value, np.ndarray) else repr(value)}"
        elif isinstance(value, Dispatcher) and value.py_func is not kernel:
            file = value.py_func.__code__.co_filename
            if file != own_file:
                yield _digest(file)
            yield from _compiled_in(value.py_func, own_file)


@cache
def _digest(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()
