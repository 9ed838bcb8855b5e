"""Size and depth of circuits under synthesis recipes: labels by berkeley-abc, a model, and its scores.

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
from gst.util.writing import write_json

CHECKPOINT = Path(__file__).with_name("checkpoint.pt")
LABELS = Path(__file__).parents[2] / "results" / "circuits_labels.jsonl.xz"


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


def _train(options: argparse.Namespace) -> None:
    import torch

    from experiments.reproductions.circuits.compare import labelled_files
    from experiments.reproductions.circuits.labels import read_labels
    from experiments.reproductions.circuits.predictor import save_predictor, train_predictor
    from experiments.reproductions.circuits.training import Schedule, examples_of

    torch.set_num_threads(1)
    examples = examples_of(labelled_files(options.data), read_labels(options.labels))
    predictor = train_predictor(examples, options.seed, options.members, Schedule(options.steps))
    labels = sum(len(each.recipes) for each in examples)
    record = {"circuits": len(examples), "labels": labels, "steps": options.steps, "seed": options.seed}
    save_predictor(predictor, options.checkpoint, record)
    networks = sum(map(len, predictor.networks.values()))
    print(
        f"{networks} networks and trees, trained on {labels} labels of {len(examples)} circuits, "
        f"in {options.checkpoint}"
    )


def _evaluate(options: argparse.Namespace) -> None:
    from experiments.reproductions.circuits.evaluate import evaluate

    result = evaluate(
        options.data, options.checkpoint, options.labels, options.number, options.seed, options.processes,
        options.timeout, options.recipes,
    )  # fmt: skip
    if options.json:
        write_json(options.json, result)
    for name, each in result["circuits"].items():
        print(f"{name:40} tau {_shown(each['tau'])}, error {100 * each['error']:.1f} %")
    print(f"{'mean':40} tau {_shown(result['tau'])}, error {100 * result['error']:.1f} %")


def _shown(tau: float | None) -> str:
    return "  -  " if tau is None else f"{tau:5.3f}"


def _compare(options: argparse.Namespace) -> None:
    from experiments.reproductions.circuits.compare import compare

    compare(options.data, options.labels, options.seeds, options.steps, options.json)


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

    train = command("train", _train, "train on labelled circuits and their output cones")
    train.add_argument("--labels", type=Path, default=LABELS, help="default: %(default)s")
    train.add_argument("--checkpoint", type=Path, default=CHECKPOINT, help="written; default: %(default)s")
    train.add_argument("--members", type=int, default=4, help="networks of each kind, which are averaged")
    train.add_argument("--steps", type=int, default=300, help="of each network; three times as many without a graph")
    train.add_argument("--seed", type=int, default=0)

    score = command("evaluate", _evaluate, "label circuits, and score a checkpoint on them")
    labelling(score, 24)
    score.add_argument("--checkpoint", type=Path, default=CHECKPOINT, help="default: the one of this package")
    score.add_argument("--json", type=Path, help='write {"tau", "error", "circuits": {NAME: {"tau", "error"}}}')
    score.add_argument("--labels", type=Path, default=cache() / "labels", help="kept here; default: %(default)s")

    tables = command("compare", _compare, "compare variants, controls and baselines on designs and recipes left out")
    tables.add_argument("--labels", type=Path, default=LABELS, help="default: %(default)s")
    tables.add_argument("--seeds", type=int, default=3, help="each leaves out another part of the designs")
    tables.add_argument("--steps", type=int, default=300, help="of each training; default: %(default)s")
    tables.add_argument("--json", type=Path, default=Path("experiments/results/circuits.json"))
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
