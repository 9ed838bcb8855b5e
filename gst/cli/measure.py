"""`gst measure`: what it takes, does and prints."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gst.util.progress import Bars

USUAL_NUMBER = 500


def add_measure(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add it; `command(commands, name, run, summary, examples)` makes a subcommand as all of `gst` are."""
    measure = command(
        commands,
        "measure",
        _measure,
        "run plans of a program for real, in a child process, and make a dataset of them",
        "gst measure rnnlm --devices cpu:0,cpu:1,cpu:0-1 --random 500 --out runs/measured/rnnlm\n"
        "gst measure rnnlm --devices cpu:0,cpu:1,cpu:0-1 --random 500 --out runs/measured/rnnlm --resume\n"
        "gst measure inception --plan runs/demo/plan.json --out runs/compared --memory-limit 2GiB\n"
        "gst measure rnnlm --workers ray://127.0.0.1:10001 --out runs/fleet/rnnlm    # see docs/fleet.md",
    )
    measure.add_argument("program", help="a bundled program or MODULE:FUNCTION, see gst trace --help")
    measure.add_argument(
        "--devices",
        help="names separated by commas, see gst devices (default: all of them, without the sets of cores, such as "
        "cpu:0-1, that gst place takes too)",
    )
    measure.add_argument(
        "--plan", type=Path, action="append", default=[], metavar="FILE", help="a plan to measure; may be repeated"
    )
    measure.add_argument(
        "--random",
        type=int,
        metavar="N",
        help=f"measure N plans: baselines, then random ones (default: {USUAL_NUMBER}, or 0 with --plan)",
    )
    measure.add_argument("--repetitions", type=int, default=5, help="timed runs of each plan (default: %(default)s)")
    measure.add_argument("--seed", type=int, default=0, help="of the random plans (default: %(default)s)")
    measure.add_argument(
        "--memory-limit", metavar="BYTES", help="most memory for the intermediate values of a run, such as 512MiB"
    )
    measure.add_argument(
        "--time-limit", type=float, default=60.0, metavar="S", help="seconds for one run (default: %(default)g)"
    )
    measure.add_argument(
        "--patience",
        type=float,
        default=20.0,
        metavar="S",
        help="seconds to wait for quiet cores before operations are profiled, and to profile them again where other "
        "processes come back meanwhile; and to wait before each four plans; 0 = do not look (default: %(default)g)",
    )
    measure.add_argument(
        "--workers",
        metavar="ADDRESS",
        help="measure on the hosts of a Ray cluster, each kind of host into DIR/KIND: ray (the one that runs here, or "
        "one started for this command) or ray://HOST:PORT (default: no cluster)",
    )
    measure.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory of results")
    measure.add_argument("--resume", action="store_true", help="go on with the measurements in --out")


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
