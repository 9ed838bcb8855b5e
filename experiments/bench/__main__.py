"""Run a benchmark: `python -m experiments.bench NAME`.

python -m experiments.bench table --json experiments/results/table.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from experiments.bench.commands import add_benchmarks
from gst.cli import command_line as cli


def parser() -> argparse.ArgumentParser:
    """A subcommand for each benchmark."""
    every = argparse.ArgumentParser(prog="python -m experiments.bench", description=str(__doc__).splitlines()[0])
    add_benchmarks(every.add_subparsers(metavar="NAME", required=True), cli.add_command)
    return every


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark; returns its exit status."""
    return cli.main(arguments, parser)


if __name__ == "__main__":
    sys.exit(main())
