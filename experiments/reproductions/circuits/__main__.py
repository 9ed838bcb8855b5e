"""How small and shallow circuits become under synthesis recipes: labels by berkeley-abc, a model, and its scores.

    python -m experiments.reproductions.circuits label --number 20 --most-ands 6000
    python -m experiments.reproductions.circuits label --cones 10 --number 6
    python -m experiments.reproductions.circuits train --checkpoint runs/circuits.pt
    python -m experiments.reproductions.circuits evaluate --data DIR --json scores.json
    python -m experiments.reproductions.circuits compare --json experiments/results/circuits.json

`--data` is a folder with .bench and .aig files, an archive of such, or one file; without it, the circuits of OpenABC-D
and EPFL in ../shared/data.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.reproductions.circuits.files import SHARED, cache


def _label(options: argparse.Namespace) -> None:
    from experiments.reproductions.circuits.labels import label, planned_jobs

    jobs = planned_jobs(
        options.data, options.recipes, options.number, options.seed, options.cones, options.least_ands,
        options.most_ands,
    )  # fmt: skip
    labels = label(jobs, options.out, options.processes, options.timeout)
    late = sum(counts is None for counts in labels.values())
    print(f"{len(labels) - late} labels of {len({job.file.name for job in jobs})} circuits in {options.out}")
    if late:
        print(f"{late} more took longer than {options.timeout:.0f} s")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.reproductions.circuits", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: object, help: str) -> argparse.ArgumentParser:
        part = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        part.set_defaults(run=run)
        part.add_argument("--data", type=Path, default=SHARED, help="circuits; default: %(default)s")
        return part

    def labelling(part: argparse.ArgumentParser, number: int) -> None:
        part.add_argument(
            "--recipes", type=Path, help="referenceScripts.zip, or a text file with a recipe in each line"
        )
        part.add_argument("--number", type=int, default=number, help="recipes of each circuit; default: %(default)s")
        part.add_argument("--seed", type=int, default=0, help="of the choice of recipes")
        part.add_argument("--processes", type=int, default=1, help="copies of berkeley-abc at once")
        part.add_argument("--timeout", type=float, default=600.0, help="seconds that a recipe may take")

    label = command("label", _label, "label circuits with ANDs and levels after recipes, where labels are missing")
    labelling(label, 20)
    label.add_argument(
        "--cones", type=int, default=0, help="label so many output cones of each circuit, not the circuit"
    )
    label.add_argument("--least-ands", type=int, default=0, help="leave out smaller circuits")
    label.add_argument("--most-ands", type=int, default=10**9, help="leave out larger circuits")
    label.add_argument("--out", type=Path, default=cache() / "labels", help="default: %(default)s")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (ValueError, OSError) as error:
        print(f"circuits: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("circuits: stopped; labels are kept, and the same command goes on from there", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
