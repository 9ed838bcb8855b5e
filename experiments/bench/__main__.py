"""Run a benchmark: `python -m experiments.bench NAME`.

python -m experiments.bench table --json experiments/results/table.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from experiments.bench.commands import STUDIES, add_benchmarks
from gst.cli import command_line as cli


def parser(chosen: str | None) -> argparse.ArgumentParser:
    """Return the parser with a subcommand for each benchmark, with the options of the chosen one alone."""
    every = argparse.ArgumentParser(prog="python -m experiments.bench", description=str(__doc__).splitlines()[0])
    add_benchmarks(every.add_subparsers(metavar="NAME", required=True), cli.add_command, chosen)
    return every


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark; returns its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    chosen = next((each for each in arguments if each in STUDIES), None)
    return cli.main(arguments, partial(parser, chosen))


if __name__ == "__main__":
    sys.exit(main())
