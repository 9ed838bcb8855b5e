"""Sizes of the bundled workloads at which a test takes milliseconds."""

from functools import cache
from typing import Any

from gst.programs import WORKLOADS, Program, capture
from tests.checks import without_checks

SMALL: dict[str, dict[str, Any]] = {
    "rnnlm": {"layers": 2, "hidden": 16, "steps": 3, "batch": 4, "vocabulary": 30},
    "gnmt": {"layers": 3, "hidden": 16, "steps": 2, "batch": 4, "vocabulary": 30},
    "transformer_xl": {"layers": 1, "width": 16, "heads": 2, "length": 4, "segments": 2, "batch": 2, "vocabulary": 30},
    "wavenet": {"stacks": 1, "layers": 3, "width": 8, "length": 16},
    "inception": {"modules": 1, "width": 8, "size": 6, "batch": 4},
    "inception_v3": {"depth": 1, "width": 1, "size": 75, "batch": 4},
    "nasnet": {"stages": 2, "cells": 1, "width": 4, "size": 8, "batch": 4},
    "gpt": {"layers": 1, "width": 16, "heads": 2, "length": 6, "batch": 2, "vocabulary": 30},
    "moe": {"layers": 1, "width": 16, "experts": 3, "heads": 2, "length": 6, "batch": 2, "vocabulary": 30},
}


@cache
def small_program(name: str) -> Program:
    """The workload of that name at its small size, captured once for all tests of this process."""
    with without_checks():  # other tests capture with them
        return capture(WORKLOADS[name](**SMALL[name]))
