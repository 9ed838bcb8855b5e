"""Place published problems, train the policy for them, and make the tables of these studies anew.

python -m experiments.reproductions.public_problems place chain_mm_112nodes.txt --machine gpus:4 --seconds 10
python -m experiments.reproductions.public_problems place bert24_inference.json      # by the published latency
python -m experiments.reproductions.public_problems train-policy --out runs/policy
python -m experiments.reproductions.public_problems table --json experiments/results/public_graphs.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from gst.cli import command_line as cli

NAME = "experiments.reproductions.public_problems"
STUDIES = {
    "table": "human experts and our search on MSR's layer graphs", "policy": "the constructive policy and its controls",
    "all_problems": "every problem of shared/data", "giant": "generated problems of 10,000 operations and more",
    "doppler": "DOPPLER's graphs under the rules of its simulator", "certificates": "bounds compared with optima",
}  # fmt: skip
"""Modules of this package with a `main` of their own."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the commands; studies have parsers of their own."""
    from experiments.reproductions.public_problems.placing import add_place
    from experiments.reproductions.public_problems.train_policy import add_train_policy

    every = argparse.ArgumentParser(prog=f"python -m {NAME}", description=str(__doc__).splitlines()[0])
    commands = every.add_subparsers(metavar="COMMAND", required=True)
    for add in (add_place, add_train_policy):
        add(commands, cli.add_command)
    for name, summary in STUDIES.items():
        commands.add_parser(name, help=summary, add_help=False)
    return every


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in STUDIES:
        import_module(f"{NAME}.{arguments[0]}").main(arguments[1:])
        return 0
    return cli.main(arguments, parser)


if __name__ == "__main__":
    sys.exit(main())
