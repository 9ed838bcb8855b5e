"""How OpenMP's threads wait for their next loop, where several devices share the cores."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

WAITING = {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "1000"}
"""Not for milliseconds, as PyTorch's own: that takes the core from the next operation there. Not asleep at once either:
operations on several cores that follow each other would wake their helpers each time, and take twice as long. GNU's
OpenMP shortens the wait to nothing in a process with more threads than cores, unless ACTIVE."""


def wait_briefly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what is not set yet. OpenMP reads it when torch is loaded, so call this before."""
    for name, value in WAITING.items():
        environment.setdefault(name, value)
