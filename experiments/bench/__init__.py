"""Benchmarks: each module has one `run`, whose result is written as JSON."""

import os
import sys
from pathlib import Path


def child_environment() -> dict[str, str]:
    """The environment of a benchmark's child process, in which it finds this package wherever the command was given."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)}
