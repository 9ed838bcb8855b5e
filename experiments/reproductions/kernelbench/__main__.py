"""Eager or compiled (KernelBench's timings on two H100): a prediction from kernels, compared with model-free rules.

    git clone https://github.com/ScalingIntelligence/KernelBench
    python -m experiments.reproductions.kernelbench compare --programs KernelBench --json FILE

`--data` is kernelbench_timing.tar.xz or a folder unpacked from it; without it, ../shared/data. The programs of the
checkout are imported and constructed without memory: give one that you trust.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.reproductions.commands import parser_of, run

SHARED = Path(__file__).parents[4] / "shared" / "data" / "kernelbench_timing.tar.xz"


def _compare(options: argparse.Namespace) -> None:
    from experiments.reproductions.kernelbench.compare import compare
    from experiments.reproductions.kernelbench.programs import read_programs
    from experiments.reproductions.kernelbench.timings import read_timings

    if options.seeds < 1:
        raise ValueError(f"--seeds {options.seeds}: give 1 or more")
    timings = read_timings(options.data)
    programs, missing = read_programs(options.programs, sorted({each.program for each in timings}))
    for name, reason in missing.items():
        print(f"left out: {name} ({reason[:120]})", file=sys.stderr)
    if not programs:
        raise ValueError(f"{options.programs}: none of its programs can be captured; see the lines above")
    result = compare(timings, programs, options.seeds, options.json)
    for name, hosts in result["methods"].items():
        for host, each in hosts.items():
            print(f"{name:44} {host:22} right {each['right']:5.1f} %, {each['longer']:5.1f} % longer than the faster")


def _parser() -> argparse.ArgumentParser:
    parser, commands = parser_of("kernelbench", __doc__)
    part = commands.add_parser("compare", help="the prediction and its controls (two minutes)",
                               description="The prediction and its controls.")  # fmt: skip
    part.set_defaults(run=_compare)
    part.add_argument("--data", type=Path, default=SHARED, help="archive or folder; default: %(default)s")
    part.add_argument("--programs", type=Path, required=True, help="a checkout of KernelBench; its code is run")
    part.add_argument("--seeds", type=int, default=3, help="of folds and trees; default: %(default)s")
    part.add_argument("--json", type=Path, help="write the table here")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command."""
    run(_parser(), arguments)


if __name__ == "__main__":
    main()
