"""Checks of types and shapes while tests run: those of the first calls of each function in each test."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jaxtyping
from beartype import beartype

CALLS = 6  # of one function in one test: a training of a thousand steps repeats the shapes of its first
_resets: list[Callable[[], None]] = []


def first_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """The type checker of jaxtyping's import hook: beartype, for the first `CALLS` calls of `function` in each test.
    A function inside another one is not checked: it is made anew, and would be compiled anew, at every call of that."""
    wrapped = sys._getframe(3).f_locals["fn"]  # of jaxtyped: `function` has its signature alone
    if "<locals>" in function.__qualname__:
        wrapped.__no_type_check__ = True
        return function
    checked, calls = beartype(function), 0

    def reset() -> None:
        nonlocal calls
        calls, wrapped.__no_type_check__ = 0, False

    @functools.wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        if not calls:
            _resets.append(reset)
        calls += 1
        wrapped.__no_type_check__ = calls >= CALLS
        return checked(*arguments, **named)

    return counted


def check_again() -> None:
    """The next `CALLS` calls of every function are checked: a new test begins."""
    for reset in _resets:
        reset()
    _resets.clear()


@contextmanager
def without_checks() -> Iterator[None]:
    """Types and shapes are not checked, as in production: the code's own errors are seen."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
