"""`gst bench`: doors to the benchmarks of the repository (`experiments/bench`) that users run on their own machine."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

DOORS = ("step", "memory", "executor", "simulator", "placement")


def add_bench(commands: Any, command: Any, with_benchmarks: bool = True) -> None:
    """Add `bench`, and a subcommand of it for each door, which `command` makes as all of `gst` are.

    Args:
        with_benchmarks: whether to import `experiments` for the subcommands; the help of `gst` does without.
    """
    summary = "measure this machine, and this program on it"
    bench = commands.add_parser(
        "bench",
        help=summary,
        description=summary,
        epilog="examples:\n  gst bench memory\n  gst bench step --json step.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if not with_benchmarks:
        return
    repository = Path(__file__).parents[2]
    if str(repository) not in sys.path:
        sys.path.append(str(repository))
    try:
        benchmarks = import_module("experiments.bench.commands")
    except ImportError:  # an installed package without its repository, or another package of that name before it
        bench.add_argument("what", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
        bench.set_defaults(run=_absent, json=None)
        return
    benchmarks.add_benchmarks(bench.add_subparsers(metavar="WHAT", required=True), command, DOORS)


def _absent(options: Any) -> dict[str, Any]:
    raise ValueError("the benchmarks are in the repository alone, not in the package; run gst bench from a clone of it")
