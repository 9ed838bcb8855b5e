"""`gst rank`: its options, its run and its output. `gst fit` and the like are in `gst.training.cli`."""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gst.util.writing import atomic_write

AS_IT_SHOULD_BE = (
    r"Attribute '(encoder|head)' is an instance of `nn\.Module` and is already saved",  # they are built from settings
    r"Found keys that are not in the model state dict .*\['estimator\.table\._extra_state'\]",  # exact: reads no table
)
"""Warnings of Lightning about loading a checkpoint that do not apply here."""


def add(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser; `command` is `gst.cli.command_line.add_command`."""
    rank = command(
        commands, "rank", _rank, "order the configurations of a program with a trained model",
        "gst rank runs/alexnet_layout/checkpoints/best.ckpt program.npz --top 10 --out scores.csv\n"
        "gst rank runs/giant_synthetic/checkpoints/best.ckpt synthetic:50000",
    )  # fmt: skip
    rank.add_argument("checkpoint", type=Path, help="what gst fit wrote, such as best.ckpt")
    rank.add_argument("file", help="a TpuGraphs npz file, or synthetic:NODES")
    trust = "your package with the encoder of the checkpoint, which is imported (may be repeated)"
    rank.add_argument("--trust", action="append", default=[], metavar="PACKAGE", help=trust)
    rank.add_argument("--top", type=int, default=10, help="how many of the fastest to print (default: %(default)s)")
    rank.add_argument("--out", type=Path, help="CSV with config,score for every configuration of the file")


def _rank(options: argparse.Namespace) -> dict[str, Any]:
    from gst.util.imports import import_torchmetrics

    import_torchmetrics()
    from gst.cli.data import dataset
    from gst.training.rank import rank

    for expected in AS_IT_SHOULD_BE:
        warnings.filterwarnings("ignore", expected, module=r"lightning\.pytorch")
    made = next(iter(dataset([options.file]))) if options.file.startswith("synthetic:") else None
    scores = rank(options.checkpoint, made or Path(options.file), trusted=options.trust)
    order = scores.argsort(kind="stable")
    print(f"{'config':>8}  score (lower = faster)")
    for config in order[: options.top]:
        print(f"{config:>8}  {scores[config]:.6g}")
    if options.out:
        with atomic_write(options.out) as file:
            writer = csv.writer(file)
            writer.writerow(["config", "score"])
            writer.writerows((config, repr(float(score))) for config, score in enumerate(scores))
    return {"file": options.file, "num_configs": len(scores), "top": order[: options.top].tolist()}
