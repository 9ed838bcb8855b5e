"""Parameters of tests: a few run in `make test`, all of them in `make e2e`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def rest_in_e2e(values: Iterable[Any], usual: Collection[Any]) -> list[Any]:
    """Return the values as parameters, a tuple as several; those that are not `usual` have the marker `e2e`."""
    return [
        each if each in usual else pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=pytest.mark.e2e)
        for each in values
    ]
