"""`gst rank`: what it takes, does and prints. `gst fit`, `validate`, `test` and `predict` are in `gst.training.cli`."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any


def add_rank(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add it; `command(commands, name, run, summary, examples)` makes a subcommand as all of `gst` are."""
    rank = command(
        commands,
        "rank",
        _rank,
        "order the configurations of a program with a trained model",
        "gst rank runs/alexnet_layout/checkpoints/best.ckpt program.npz --top 10 --out scores.csv",
    )
    rank.add_argument("checkpoint", type=Path)
    rank.add_argument("file", type=Path, help="a TpuGraphs npz file")
    rank.add_argument("--top", type=int, default=10, help="how many of the fastest to print (default: %(default)s)")
    rank.add_argument("--out", type=Path, help="CSV with config,score for every configuration of the file")


def _rank(options: argparse.Namespace) -> dict[str, Any]:
    from gst.training.rank import rank

    scores = rank(options.checkpoint, options.file)
    order = scores.argsort(kind="stable")
    print(f"{'config':>8}  score (lower = faster)")
    for config in order[: options.top]:
        print(f"{config:>8}  {scores[config]:.6g}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        partial = options.out.with_name(options.out.name + ".partial")
        with partial.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["config", "score"])
            writer.writerows((config, repr(float(score))) for config, score in enumerate(scores))
        partial.replace(options.out)
    return {"file": str(options.file), "num_configs": len(scores), "top": order[: options.top].tolist()}
