"""Training of the constructive policy on generated problems: options, run and output."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gst.util.process import Stopped
from gst.util.progress import Bars

NAME = "python -m experiments.reproductions.public_problems"


def add_train_policy(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser; `command` is `gst.cli.add_command`."""
    train = command(
        commands,
        "train-policy",
        _train,
        "train the constructive policy on generated problems, by evolution strategies",
        f"{NAME} train-policy --out runs/policy                      # a quarter of an hour on one core\n"
        f"{NAME} train-policy --out runs/policy --seconds 3600 --resume\n"
        f"{NAME} place chain.txt --machine gpus:4 --policy runs/policy/weights.npz",
    )
    train.add_argument("--out", type=Path, required=True, metavar="DIR", help="for weights.npz and state.npz")
    train.add_argument(
        "--seconds", type=float, default=840.0, metavar="S", help="of training in all (default: %(default)g)"
    )
    train.add_argument("--steps", type=int, metavar="N", help="steps in all, in place of seconds")
    train.add_argument(
        "--most-operations", type=int, default=2000, metavar="N", help="of a generated problem (default: %(default)s)"
    )
    train.add_argument("--seed", type=int, default=0, help="of weights and problems (default: %(default)s)")
    train.add_argument("--resume", action="store_true", help="go on with what is in --out")


def _train(options: argparse.Namespace) -> dict[str, Any]:
    from experiments.reproductions.public_problems.generated import SIZES
    from experiments.reproductions.public_problems.training import State, train
    from experiments.reproductions.public_problems.weights import save_weights

    if options.steps is not None and options.steps < 1:
        raise ValueError(f"--steps is {options.steps}, want 1 or more")
    if not 0 < options.seconds < float("inf"):
        raise ValueError(f"--seconds is {options.seconds}, want more than 0")
    if options.most_operations < SIZES[0]:
        raise ValueError(f"--most-operations is {options.most_operations}, want {SIZES[0]} or more")
    path = options.out / "state.npz"
    if path.exists() and not options.resume:
        raise ValueError(f"{path} is there already; add --resume to go on with it, or give another --out")
    state = State.load(path) if path.exists() else State.new(options.seed)
    seconds = None if options.steps is not None else options.seconds
    try:
        with Bars() as bars:
            state = train(state, seconds, options.steps, options.most_operations, path, bars.show)
    except Stopped as stop:
        raise Stopped(stop.number, "the same command with --resume goes on") from None
    save_weights(options.out / "weights.npz", state.average)
    if state.curve:
        print(f"makespans on problems held out are {state.curve[-1][1]:.4f} of those before training")
    print(f"{state.step} steps in {state.seconds:.0f} s; the weights are in {options.out / 'weights.npz'}")
    return {
        "command": options.command, "steps": state.step, "seconds": state.seconds, "seed": state.seed,
        "curve": [list(point) for point in state.curve], "weights": str(options.out / "weights.npz"),
    }  # fmt: skip
