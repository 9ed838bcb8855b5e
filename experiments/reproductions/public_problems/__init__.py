"""Placement problems that others published (MSR, DOPPLER, Moirai, PipeDream, Piper, WfFormat).

A file of one of these formats goes in; a plan, a lower bound and proofs come out. `formats.py` reads the files,
`problem.py` puts them on a machine, `placing.py` places them. `gst place --graph FILE --format
experiments.reproductions.public_problems:PublicProblem` reads them too.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Return a reader for `gst place --format`, and import its module."""
    if name not in ("MsrGraph", "PublicProblem"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.readers"), name)
