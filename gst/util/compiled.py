"""How a loop over nodes or edges becomes machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `kernel` on its first call and keep the machine code for later processes, disk permitting.

    Write `@no_type_check` under this decorator: numba must see the bare function, not one wrapped by the
    shape checker that the tests install. numba raises RuntimeError when neither the package's folder nor
    the user's cache folder can be written (a read-only container); the kernel is then compiled once per
    process. What it keeps is out of date once a kernel changes that this one calls from another file: delete
    the `__pycache__` folders then.
    """
    try:
        return numba.njit(cache=True, nogil=True)(kernel)
    except RuntimeError:
        return numba.njit(nogil=True)(kernel)
