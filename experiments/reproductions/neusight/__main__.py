"""Times of transformers on a GPU that was never measured (NeuSight, Lee et al., ASPLOS 2025): a model and its controls.

    python -m experiments.reproductions.neusight compare --json experiments/results/neusight.json

`--data` is neusight.tar.xz or a folder unpacked from it; without it, ../shared/data.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.reproductions.commands import parser_of, run

SHARED = Path(__file__).parents[4] / "shared" / "data" / "neusight.tar.xz"


def _compare(options: argparse.Namespace) -> None:
    from experiments.reproductions.neusight.compare import compare
    from experiments.reproductions.neusight.dataset import read_neusight

    if options.seeds < 1:
        raise ValueError(f"--seeds {options.seeds}: give 1 or more")
    compare(read_neusight(options.data), options.seeds, json_path=options.json)


def _parser() -> argparse.ArgumentParser:
    parser, commands = parser_of("neusight", __doc__)
    part = commands.add_parser(
        "compare", help="choose settings without the H100, judge them on it", description="Model against its controls."
    )
    part.set_defaults(run=_compare)
    part.add_argument("--data", type=Path, default=SHARED, help="archive or folder; default: %(default)s")
    part.add_argument("--seeds", type=int, default=3, help="trainings of the random controls; default: %(default)s")
    part.add_argument("--json", type=Path, help="write the table here")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command."""
    run(_parser(), arguments)


if __name__ == "__main__":
    main()
