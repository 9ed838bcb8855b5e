"""Checks of types and shapes while tests run: those of the first calls of each function in each test."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jaxtyping

CALLS = 6  # of one function in one test: a training of a thousand steps repeats the shapes of its first
Function = Callable[..., Any]
_calls: Counter[tuple[Function, Function]] = Counter()


def first_calls(signature: Function) -> Function:
    """The type checker of jaxtyping's import hook: beartype, for the first `CALLS` calls of a function in each test.
    A function inside another one is not checked: it is made anew, and would be compiled anew, at every call of that.

    Args:
        signature: one of two functions by which jaxtyping checks each function, before and after a call.
    """
    from beartype import beartype  # tests of a GPU may run where it is missing, without these checks

    function = sys._getframe(3).f_locals["fn"]  # of jaxtyped, which passes the signatures alone
    if "<locals>" in signature.__qualname__:
        function.__no_type_check__ = True
        return signature
    checked = beartype(signature)

    @functools.wraps(signature)
    def counted(*arguments: Any, **named: Any) -> Any:
        _calls[function, signature] += 1
        function.__no_type_check__ = _calls[function, signature] >= CALLS
        return checked(*arguments, **named)

    return counted


def check_again() -> None:
    """The next `CALLS` calls of every function are checked: a new test begins."""
    for function, _ in _calls:
        function.__no_type_check__ = False
    _calls.clear()


@contextmanager
def without_checks() -> Iterator[None]:
    """Types and shapes are not checked, as in production: the code's own errors are seen."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
