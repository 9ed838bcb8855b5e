"""Times of compiled groups of operations of programs never seen (23 GraphNet samples): model and controls.

    python -m experiments.reproductions.groups collect --out runs/groups  # a quarter of an hour on two quiet cores
    python -m experiments.reproductions.groups compare --out runs/groups --json experiments/results/groups.json

`--data` is graphnet.tar.xz or a folder unpacked from it; without it, ../shared/data.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.reproductions.commands import parser_of, run

SHARED = Path(__file__).parents[4] / "shared" / "data" / "graphnet.tar.xz"
LOG = "groups.jsonl"
DEVICES = ("cpu:0", "cpu:0-1")  # one thread, and two


def _collect(options: argparse.Namespace) -> None:
    from experiments.reproductions.groups.collect import collect
    from gst.execution.measure import Log
    from gst.machine.devices import discover, select

    names = [name for name in options.names.split(",") if name]
    collect(options.data, names, select(DEVICES, discover()), Log(options.out / LOG))


def _compare(options: argparse.Namespace) -> None:
    from experiments.reproductions.groups.compare import compare
    from gst.execution.measure import Log

    if options.seeds < 1:
        raise ValueError(f"--seeds {options.seeds}: give 1 or more")
    lines = Log(options.out / LOG).read()
    if not lines:
        raise ValueError(f"{options.out / LOG} holds no groups; run collect first")
    for name, each in compare(options.data, lines, options.seeds, options.json)["methods"].items():
        middle, low, high = each["tau"]
        print(f"{name:34} tau {middle:.2f} ({low:.2f} to {high:.2f}), of all rows {each['tau_together']:.2f}")


def _parser() -> argparse.ArgumentParser:
    parser, commands = parser_of("groups", __doc__)
    part = commands.add_parser("collect", help="compile and time groups", description="Compile and time groups.")
    part.set_defaults(run=_collect)
    part.add_argument("--names", default="", help="of samples, separated by commas; default: all")
    other = commands.add_parser("compare", help="the models and their controls (a quarter of an hour)",
                                description="The models and their controls.")  # fmt: skip
    other.set_defaults(run=_compare)
    other.add_argument("--seeds", type=int, default=3, help="of what is learned; default: %(default)s")
    other.add_argument("--json", type=Path, help="write the table here")
    for each in (part, other):
        each.add_argument("--data", type=Path, default=SHARED, help="archive or folder; default: %(default)s")
        each.add_argument("--out", type=Path, default=Path("runs/groups"), help="of the log; default: %(default)s")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command."""
    run(_parser(), arguments)


if __name__ == "__main__":
    main()
