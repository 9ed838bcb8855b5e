"""Cycles of high-level-synthesis designs (HLSyn, Bai et al., NeurIPS 2023): a model, its scores, and its controls.

    python -m experiments.reproductions.hlsyn train --checkpoint runs/hlsyn.pt
    python -m experiments.reproductions.hlsyn evaluate --data DIR --json scores.json
    python -m experiments.reproductions.hlsyn compare --json experiments/results/hlsyn.json
    python -m experiments.reproductions.hlsyn outcomes --json experiments/results/hlsyn_outcomes.json
    python -m experiments.reproductions.hlsyn importance --json experiments/results/hlsyn_importance.json
    python -m experiments.reproductions.hlsyn search --json experiments/results/hlsyn_search.json
    python -m experiments.reproductions.hlsyn tune gemm-blocked --data ../shared/data/hlsyn.tar.xz
    python -m experiments.reproductions.hlsyn tune list

`--data` is hlsyn.tar.xz or a folder laid out as it is (`data/designs`, `data/sources`); without it, ../shared/data.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.reproductions.commands import parser_of, run
from gst.util.writing import write_json

CHECKPOINT = Path(__file__).with_name("checkpoint.pt")
SHARED = Path(__file__).parents[4] / "shared" / "data" / "hlsyn.tar.xz"


def _train(options: argparse.Namespace) -> None:
    from experiments.reproductions.hlsyn.designs import designs_of
    from experiments.reproductions.hlsyn.model import Settings, save, train
    from experiments.reproductions.hlsyn.outcomes import outcomes_of, train_outcomes
    from experiments.reproductions.hlsyn.source import read_kernels

    kernels = read_kernels(options.data)
    designs = designs_of(kernels)
    model = train(designs, Settings(members=options.members, epochs=options.epochs), options.seed)
    model = model._replace(outcomes=train_outcomes(outcomes_of(kernels), options.seed))
    options.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    save(model, options.checkpoint)
    print(f"{len(model.networks)} networks and {len(model.relatives.residual)} designs to compare with, of "
          f"{len(designs)} designs of {len(designs.names)} programs, in {options.checkpoint}")  # fmt: skip


def _evaluate(options: argparse.Namespace) -> None:
    from experiments.reproductions.hlsyn.designs import designs_of
    from experiments.reproductions.hlsyn.model import load, scores
    from experiments.reproductions.hlsyn.outcomes import outcome_scores, outcomes_of
    from experiments.reproductions.hlsyn.source import read_kernels

    model = load(options.checkpoint)
    broken: dict[str, str] = {}
    kernels = read_kernels(options.data, broken=broken)
    designs = designs_of(kernels, broken)
    result = scores(designs, *model.predict(designs))
    if model.outcomes is not None:
        outcomes = outcomes_of(kernels, {})  # kernels without a valid design among them
        result |= outcome_scores(outcomes, *model.outcomes.predict(outcomes))
    for name, problem in broken.items():
        print(f"{name} is left out: {problem}", file=sys.stderr)
    if broken:
        result["unread"] = broken
    if options.json:
        write_json(options.json, result)
    for name, each in (*result["programs"].items(), ("all", result)):
        tau = "  -  " if each["tau"] is None else f"{each['tau']:5.2f}"
        print(f"{name:28} rmse {each['rmse']:5.2f}, tau {tau}, coverage {100 * each['coverage']:3.0f} %")
    for name, each in {"validity": result.get("validity"), **result.get("resources", {})}.items():
        parts = [f"{key} {value:.2f}" for key, value in (each or {}).items() if isinstance(value, float)]
        print(f"{name:28} " + (", ".join(parts) or "-"))


def _compare(options: argparse.Namespace) -> None:
    from experiments.reproductions.hlsyn.compare import compare
    from experiments.reproductions.hlsyn.designs import designs_of
    from experiments.reproductions.hlsyn.source import read_kernels

    designs = designs_of(read_kernels(options.data))
    compare(designs, options.splits.split(","), options.seeds, options.json, not options.only_ours)


def _importance(options: argparse.Namespace) -> None:
    from experiments.reproductions.hlsyn.importance import importance
    from experiments.reproductions.hlsyn.source import read_kernels

    importance(read_kernels(options.data), options.seeds, options.json)


def _outcomes(options: argparse.Namespace) -> None:
    from experiments.reproductions.hlsyn.outcomes import outcome_table, outcomes_of
    from experiments.reproductions.hlsyn.source import read_kernels

    outcome_table(outcomes_of(read_kernels(options.data)), options.seeds, options.json)


def _search(options: argparse.Namespace) -> None:
    from experiments.reproductions.hlsyn.searches import search_table
    from experiments.reproductions.hlsyn.source import read_kernels

    search_table(read_kernels(options.data), options.tool, options.seeds, options.json)


def _tune(options: argparse.Namespace) -> None:
    from experiments.reproductions.hlsyn.tune import tune

    result = tune(options)
    if options.json:
        write_json(options.json, result)


def _parser() -> argparse.ArgumentParser:
    from experiments.reproductions.hlsyn.tune import add_arguments

    parser, commands = parser_of("hlsyn", __doc__)

    def command(name: str, run: object, help: str) -> argparse.ArgumentParser:
        part = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        part.set_defaults(run=run)
        part.add_argument("--data", type=Path, default=SHARED, help="archive or folder; default: %(default)s")
        return part

    train = command("train", _train, "train on all designs (a minute and a half)")
    train.add_argument("--checkpoint", type=Path, default=CHECKPOINT, help="written; default: %(default)s")
    train.add_argument("--members", type=int, default=3, help="networks; default: %(default)s")
    train.add_argument("--epochs", type=int, default=6, help="of each network; default: %(default)s")
    train.add_argument("--seed", type=int, default=0)
    evaluate = command("evaluate", _evaluate, "score a model on programs with known cycles")
    evaluate.add_argument("--checkpoint", type=Path, default=CHECKPOINT, help="default: %(default)s")
    evaluate.add_argument("--json", type=Path, help="write rmse, tau and coverage here, and of each program")
    compare = command("compare", _compare, "models against their controls (hours; goes on from --json)")
    compare.add_argument("--seeds", type=int, default=3, help="of splits and trainings; default: %(default)s")
    compare.add_argument("--splits", default="families,programs,random,shares", help="default: %(default)s")
    compare.add_argument("--only-ours", action="store_true", help="leave out the controls")
    compare.add_argument("--json", type=Path, help="write the tables here")
    for name, action, help in (
        ("importance", _importance, "the estimate without each of its parts (half an hour)"),
        ("outcomes", _outcomes, "validity and resources against their controls, on families never seen (minutes)"),
    ):
        part = command(name, action, help)
        part.add_argument("--seeds", type=int, default=3, help="of splits and trainings; default: %(default)s")
        part.add_argument("--json", type=Path, help="write the table here")
    searches = command("search", _search, "searches for the fastest design (minutes; goes on from --json)")
    searches.add_argument("--tool", choices=("v18", "v20"), default="v20", help="version; default: %(default)s")
    searches.add_argument("--seeds", type=int, default=3, help="searches of each method; default: %(default)s")
    searches.add_argument("--json", type=Path, help="write the table here")
    add_arguments(command("tune", _tune, "search for the fastest design of one kernel (a minute)"))
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command."""
    run(_parser(), arguments)


if __name__ == "__main__":
    main()
