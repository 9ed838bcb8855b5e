"""Label circuits with ANDs and levels after synthesis recipes, by berkeley-abc, where labels are missing.

    python -m experiments.reproductions.circuits --number 20 --most-ands 6000
    python -m experiments.reproductions.circuits --cones 10 --number 6

`--data` is a folder with .bench and .aig files, an archive of such, or one file; without it, the circuits of OpenABC-D
and EPFL in ../shared/data. Labels are kept while they are made: the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.reproductions.circuits.files import SHARED, cache
from experiments.reproductions.circuits.labels import label, planned_jobs


def _label(options: argparse.Namespace) -> None:
    sizes = options.least_ands, options.most_ands
    jobs = planned_jobs(options.data, options.recipes, options.number, options.seed, options.cones, *sizes)
    labels = label(jobs, options.out, options.processes, options.timeout)
    late = sum(counts is None for counts in labels.values())
    print(f"{len(labels) - late} labels of {len({job.file.name for job in jobs})} circuits in {options.out}")
    if late:
        print(f"{late} more took longer than {options.timeout:.0f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Label circuits; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.reproductions.circuits", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--data", type=Path, default=SHARED, help="circuits; default: %(default)s")
    add("--recipes", type=Path, help="text file with a recipe in letters in each line; default: those of OpenABC-D")
    add("--number", type=int, default=20, help="recipes of each circuit; default: %(default)s")
    add("--seed", type=int, default=0, help="of the choice of recipes")
    add("--processes", type=int, default=1, help="copies of berkeley-abc at once")
    add("--timeout", type=float, default=600.0, help="seconds that a recipe may take")
    add("--cones", type=int, default=0, help="label so many output cones of each circuit, not the circuit")
    add("--least-ands", type=int, default=0, help="leave out smaller circuits")
    add("--most-ands", type=int, default=10**9, help="leave out larger circuits")
    add("--out", type=Path, default=cache() / "labels", help="default: %(default)s")
    try:
        _label(parser.parse_args(arguments))
    except (ValueError, OSError) as error:
        print(f"circuits: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("circuits: stopped; labels are kept, and the same command goes on from there", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
