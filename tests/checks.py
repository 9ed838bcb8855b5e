"""Checks of types and shapes while tests run, left off where they take too long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping


@contextmanager
def without_checks() -> Iterator[None]:
    """Types and shapes are not checked, as in production. Checks take half of the time of tests that learn or that draw
    thousands of times; other tests of the same functions leave them on."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
