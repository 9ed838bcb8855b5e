"""`gst measure`: its options, its run and its output."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gst.util.progress import Bars

USUAL_NUMBER = 500


def add(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser; `command` is `gst.cli.command_line.add_command`."""
    measure = command(
        commands, "measure", _measure, "run plans of a program in a child process, and make a dataset of them",
        "gst measure rnnlm --devices cpu:0,cpu:1,cpu:0-1 --random 500 --out runs/measured/rnnlm\n"
        "gst measure inception --plan runs/demo/plan.json --out runs/compared --memory-limit 2GiB\n"
        "gst measure rnnlm --workers ray://127.0.0.1:10001 --out runs/fleet/rnnlm    # see docs/fleet.md",
    )  # fmt: skip
    add = measure.add_argument
    add("program", help="a bundled program or MODULE:FUNCTION, see gst trace --help")
    add("--devices", help="names with commas, see gst devices (default: all, without sets of cores)")
    add("--plan", type=Path, action="append", default=[], metavar="FILE", help="a plan to measure; may be repeated")
    random = f"measure N plans: baselines, then random ones (default: {USUAL_NUMBER}, or 0 with --plan)"
    add("--random", type=int, metavar="N", help=random)
    add("--repetitions", type=int, default=5, help="timed runs of each plan (default: %(default)s)")
    add("--seed", type=int, default=0, help="of the random plans (default: %(default)s)")
    add("--memory-limit", metavar="BYTES", help="most memory for the values of a run, such as 512MiB")
    add("--time-limit", type=float, default=60.0, metavar="S", help="seconds for one run (default: %(default)g)")
    patience = "seconds to wait for quiet cores before the profile and before each four plans (default: %(default)g)"
    add("--patience", type=float, default=20.0, metavar="S", help=patience)
    workers = "measure on each kind of host of a Ray cluster, into DIR/KIND: ray or ray://HOST:PORT"
    add("--workers", metavar="ADDRESS", help=workers)
    add("--out", type=Path, required=True, metavar="DIR", help="directory of results")
    add("--resume", action="store_true", help="go on with the measurements in --out")


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    from gst.machine.devices import parse_bytes
    from gst.placement.api.measuring import MeasuringSettings, measure_on_fleet, measure_program

    num_random = (0 if options.plan else USUAL_NUMBER) if options.random is None else options.random
    if num_random < 0 or num_random + len(options.plan) == 0:
        raise ValueError(f"--random is {num_random}; give --random 1 or more, or a --plan")
    if options.repetitions < 1 or options.time_limit <= 0:
        raise ValueError(
            f"want --repetitions >= 1 and --time-limit > 0, got {options.repetitions}, {options.time_limit:g}"
        )
    settings = MeasuringSettings(
        options.program, options.out, options.devices.split(",") if options.devices else None, options.plan, num_random,
        options.repetitions, options.seed, parse_bytes(options.memory_limit) if options.memory_limit else None,
        options.time_limit, options.patience, options.resume,
    )  # fmt: skip
    with Bars() as bars:
        if options.workers:
            result = measure_on_fleet(settings, options.workers, bars.show)
        else:
            result = measure_program(settings, bars.show)
    for each in result["kinds"].values() if options.workers else [result]:
        _print(each)
    return {"command": options.command, **result}


def _print(result: dict[str, Any]) -> None:
    from gst.reporting.headline import MOST_PROFILE_LOAD

    plans = result["plans"]
    times = f"{result['fastest_ms']:.2f} .. {result['slowest_ms']:.2f} ms"
    print(f"{plans['ran']} of {plans['measured']} plans ran, in {times}")
    for reason, count in plans["failed"].items():
        print(f"{count} failed: {reason}")
    if (result["profile_load"] or 0.0) > MOST_PROFILE_LOAD:
        words = f"other processes took {result['profile_load']:.0%} of the cores while operations were profiled"
        print(f"{words}; measure again, into another --out, on a quiet machine")
    if result["quiet"] < 1:
        print(f"the cores were not quiet for {1 - result['quiet']:.0%} of the plans; measure again on a quiet machine")
    print(f"Look at {result['dataset']}")
