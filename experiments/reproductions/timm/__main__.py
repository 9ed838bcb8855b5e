"""Step times of image models on machines (timm's benchmark tables, GraphNet's FX sources): a model and its controls,
and estimates of other programs by it.

    python -m experiments.reproductions.timm train --checkpoint runs/timm/model.pt
    python -m experiments.reproductions.timm evaluate --data DIR --json scores.json
    python -m experiments.reproductions.timm compare --json experiments/results/timm.json
    python -m experiments.reproductions.timm estimate inception --on rtx4090,h100

`--data` is a folder that holds tables `benchmark-*.csv` and samples of GraphNet at any depth, or the archives
`timm.tar.xz` and `graphnet_timm.tar.xz`; without it, ../shared/data.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.reproductions.commands import parser_of, run
from experiments.reproductions.timm import step_time
from experiments.reproductions.timm.estimate import add_estimate
from gst.cli import command_line as cli
from gst.util.writing import write_json

CHECKPOINT = Path(step_time.__file__).with_name("weights.pt")
SHARED = Path(__file__).parents[4] / "shared" / "data"
CACHE = Path("runs/timm/rows.npz")


def _rows(options: argparse.Namespace):  # type: ignore[no-untyped-def]
    from experiments.reproductions.timm.programs import load_rows

    rows, missing = load_rows(options.data, options.cache)
    for reason, count in missing.items():
        if count:
            print(f"left out: {count} ({reason[:160]})", file=sys.stderr)
    return rows if options.mode == "all" else rows.where(rows.is_mode(options.mode))


def _train(options: argparse.Namespace) -> None:
    from experiments.reproductions.timm.model import Settings, save, train

    rows = _rows(options)
    model = train(rows, Settings(), options.seed)
    options.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    save(model, options.checkpoint)
    print(f"{len(model.settings)} tables and {len(model.boosted)} sets of trees, trained on {len(rows)} measurements, "
          f"in {options.checkpoint}")  # fmt: skip


def _evaluate(options: argparse.Namespace) -> None:
    from experiments.reproductions.timm.model import predict, scores
    from experiments.reproductions.timm.step_time.model import load

    model = load(options.checkpoint)
    rows = _rows(options)
    result = scores(rows, *predict(model, rows))
    if options.json:
        write_json(options.json, result)
    for name, each in (*result["machines"].items(), ("all", result)):
        print(f"{name:18} median error {each['median_error']:5.1f} %, 90th percentile {each['p90_error']:5.1f} %, "
              f"coverage {100 * each['coverage']:3.0f} %, {each['measurements']} measurements")  # fmt: skip


def _compare(options: argparse.Namespace) -> None:
    from experiments.reproductions.timm.compare import compare

    compare(_rows(options), options.splits.split(","), options.seeds, options.json)


def _parser() -> argparse.ArgumentParser:
    parser, commands = parser_of("timm", __doc__)

    def command(name: str, run: object, help: str, mode: str) -> argparse.ArgumentParser:
        part = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        part.set_defaults(run=run)
        part.add_argument("--data", type=Path, default=SHARED, help="folder; default: %(default)s")
        part.add_argument("--mode", choices=["infer", "train", "all"], default=mode, help="default: %(default)s")
        part.add_argument("--cache", type=Path, default=None, help="file to keep operator graphs in")
        return part

    train = command("train", _train, "train on all tables (ten minutes, half of them to read the sources)", "all")
    train.set_defaults(cache=CACHE)
    train.add_argument("--checkpoint", type=Path, default=CHECKPOINT, help="written; default: %(default)s")
    train.add_argument("--seed", type=int, default=0)
    evaluate = command("evaluate", _evaluate, "score a model on tables of other families or machines", "all")
    evaluate.add_argument("--checkpoint", type=Path, default=CHECKPOINT, help="default: %(default)s")
    evaluate.add_argument("--json", type=Path, help="write the errors here, and of each machine")
    compare = command("compare", _compare, "the model against its controls (goes on from --json)", "infer")
    compare.set_defaults(cache=CACHE)
    compare.add_argument("--seeds", type=int, default=3, help="of splits and trainings; default: %(default)s")
    compare.add_argument(
        "--splits", default="families,models,random,machines", help="and training (--mode all); default: %(default)s"
    )
    compare.add_argument("--json", type=Path, help="write the tables here")
    add_estimate(commands, cli.add_command)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if "estimate" in arguments[:1]:
        return cli.main(arguments, _parser)
    run(_parser(), arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
