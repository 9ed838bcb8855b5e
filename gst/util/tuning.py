"""Settings of glibc and OpenMP that make training steps quicker: freed memory is reused, idle threads wait briefly."""

from __future__ import annotations

import ctypes
import os
from collections.abc import MutableMapping

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h

WAITING = {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "1000"}
"""How long threads of OpenMP spin before they sleep, where several devices share the cores. PyTorch's default of some
milliseconds takes the core from the next operation there. Without spinning, operations on several cores that follow
each other wake their threads each time and take twice as long. GNU's OpenMP does not spin at all in a process with more
threads than cores, unless the policy is ACTIVE."""


def wait_briefly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables of `WAITING` that are not set yet. OpenMP reads them when torch is loaded: call this before.

    Examples:
        >>> environment = {"OMP_WAIT_POLICY": "PASSIVE"}
        >>> wait_briefly(environment)
        >>> environment
        {'OMP_WAIT_POLICY': 'PASSIVE', 'GOMP_SPINCOUNT': '1000'}
    """
    for name, value in WAITING.items():
        environment.setdefault(name, value)


def keep_freed_memory(largest_mib: int = 128, most_mib: int = 512) -> bool:
    """Make glibc reuse the memory of freed tensors instead of returning it to the system, which zeroes every page anew.

    By default glibc returns every block over 32 MiB, and whatever lies free at the end of the heap, at once. Steps then
    spend their time in page faults.

    Args:
        largest_mib: blocks up to this size, in MiB, are reused.
        most_mib: at most so many MiB stay free at the end of the heap.

    Returns:
        Whether the C library accepted the settings (glibc does; others may not).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = ((M_MMAP_THRESHOLD, largest_mib), (M_TRIM_THRESHOLD, most_mib))
    return all(mallopt(setting, min(mib << 20, 2**31 - 1)) == 1 for setting, mib in settings)
