"""Parameters of tests: a few run in `make test`, all of them in `make rest`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def with_rest(values: Iterable[Any], usual: Collection[Any]) -> list[Any]:
    """Return the values as parameters, a tuple as several; those that are not `usual` have the marker `rest`."""
    return [
        each if each in usual else pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=pytest.mark.rest)
        for each in values
    ]
