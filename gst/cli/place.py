"""`gst place` and `gst measure`, the fastest plan and runtimes of plans: their options, runs and output."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gst.placement.methods import METHODS, registered
from gst.util.progress import Bars

BUDGET = 16  # of `gst.placement.planning`, which takes a second to import
USUAL_SECONDS = 60.0
USUAL_NUMBER = 500


def add(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `place` and `measure` to the parser; `command` is `gst.cli.command_line.add_command`."""
    place = command(
        commands, "place", _place,
        "find the fastest plan of a program on devices: baselines, search methods, real measurements",
        "gst place rnnlm --devices cpu:0,cpu:1,cpu:0-1 --out runs/place/rnnlm\n"
        "gst place mymodule:step --memory-limit 2GiB --budget 30 --out runs/place/mine\n"
        "gst place inception --machine gpus:4 --out runs/place/gpus         # simulated\n"
        "gst place rnnlm --workers ray://127.0.0.1:10001 --out runs/fleet   # see docs/fleet.md",
    )  # fmt: skip
    add = place.add_argument
    add("program", help="a bundled program or MODULE:FUNCTION, see gst trace --help")
    add("--devices", help="names with commas, see gst devices (default: all, and sets of cores)")
    add("--machine", metavar="NAME:K", help="simulate K cores or GPUs: cores:4, gpus:4")
    add("--memory-limit", metavar="BYTES", help="of each device, such as 512MiB or 2GiB")
    runtimes = ("measured", "simulated")
    add("--runtime", choices=runtimes, default="measured", help="judge plans at the end by (default: %(default)s)")
    known = ", ".join(f"{name} ({method.words})" for name, method in METHODS.items()).replace("%", "%%")
    methods = f"names with commas of {known}, or MODULE:NAME, where MODULE registers it (default: %(default)s)"
    add("--methods", default="annealing", help=methods)
    number = f"plans to measure in the search; 0 = baselines alone (default: up to {BUDGET})"
    add("--budget", type=int, metavar="N", help=number)
    evaluations = "plans that each method asks about, and again in each round of measurements (%(default)s)"
    add("--evaluations", type=int, default=2_000, metavar="N", help=evaluations)
    models = (
        "learns from measurements what rewards proposers: fitted costs, the GST network on top (default: %(default)s)"
    )
    add("--cost-model", choices=("fitted", "gst", "none"), default="fitted", help=models)
    warm = "the --out of a search of another program on these devices: begin with the costs that it learned"
    add("--warm-start", type=Path, metavar="DIR", help=warm)
    add("--seed", type=int, default=0, help="of all random draws (default: %(default)s)")
    patience = "seconds to wait for quiet cores; 0 = do not look (default: %(default)g)"
    add("--patience", type=float, default=20.0, metavar="S", help=patience)
    add("--workers", metavar="ADDRESS", help="measure on the hosts of a Ray cluster: ray or ray://HOST:PORT")
    add("--no-compile", action="store_true", help="do not compare with torch.compile, which takes a minute")
    tasks = "decisions to make, of placement, schedule, fusion (default: %(default)s)"
    add("--tasks", default="placement,schedule", help=tasks)
    seconds = f"time for compiling, searching and measuring, about (default: {USUAL_SECONDS:g}; none with --budget)"
    add("--seconds", type=float, metavar="S", help=seconds)
    add("--explain", action="store_true", help="print what each part of the loop contributed, and why")
    add("--out", type=Path, metavar="DIR", help="directory of results (default: runs/place/PROGRAM)")
    add("--resume", action="store_true", help="go on with the files in --out")
    add("--wandb", action="store_true", help="log to W&B, offline unless you are logged in (or by WANDB_MODE)")
    place.set_defaults(anew=False, usual_out=lambda options: _folder_of("place", options.program))
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
    add("--out", type=Path, metavar="DIR", help="directory of results (default: runs/measured/PROGRAM)")
    add("--resume", action="store_true", help="go on with the measurements in --out")
    measure.set_defaults(usual_out=lambda options: _folder_of("measured", options.program))


def _folder_of(command: str, program: str) -> Path:
    return Path("runs", command, re.sub(r"[^\w.]+", "-", program))


def _place(options: argparse.Namespace) -> dict[str, Any]:
    if options.seconds is not None and not options.seconds > 0:
        raise ValueError(f"--seconds is {options.seconds:g}, want more than 0")
    measured = options.runtime == "measured" and options.machine is None
    here = measured and not options.workers
    if options.seconds is not None and not here:
        raise ValueError("--seconds is for plans measured on this machine; give --evaluations")
    methods = registered(_names(options.methods))
    if options.seconds is None and options.budget is None and here:
        options.seconds = USUAL_SECONDS
    options.budget = BUDGET if options.budget is None else options.budget
    from gst.placement.api.command import place_by_options
    from gst.placement.baselines.bounds import words
    from gst.placement.planning import Settings
    from gst.reporting.headline import conditions, headline, undercut

    settings = Settings(
        budget=options.budget, evaluations=options.evaluations, methods=methods,
        tasks=_names(options.tasks), seed=options.seed, patience_s=options.patience,
        cost_model=options.cost_model, compile_step=not options.no_compile,
        warm_start=options.warm_start,
    )  # fmt: skip
    with Bars() as bars:
        result = place_by_options(options, settings, bars.show)
    _print_plans(result)
    if options.explain:
        print(result["explanation"])
    print(headline(result))
    print(conditions(result))
    print(words(result["certificate"]))
    if measured_less := undercut(result):
        print(measured_less)
    print(f"Look at {options.out / 'report.html'}")
    return result


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _print_plans(result: dict[str, Any]) -> None:
    plans = result["plans"]
    width = max(len(name) for name in plans)
    measured = result["runtime"] == "measured"
    key = "median_ms" if measured else "latency"
    ran = {name: plan for name, plan in plans.items() if plan["feasible"]}
    times = {name: plan.get("again_median_ms") or plan[key] for name, plan in ran.items()}
    print(f"{'plan':<{width}}  {'median ms  95 % interval  once more' if measured else result['runtime'] + ' ms'}")
    for name, plan in sorted(ran.items(), key=lambda item: (not item[1].get("again_median_ms"), times[item[0]])):
        words = f"{name:<{width}}  {plan[key]:9.2f}"
        if measured:
            words += f"  {plan['low_ms']:.2f} .. {plan['high_ms']:.2f}"
        if plan.get("again_median_ms"):
            words += f"  {plan['again_median_ms']:.2f} ({plan['again_low_ms']:.2f} .. {plan['again_high_ms']:.2f})"
        print(words)
    for name in plans.keys() - ran.keys():
        print(f"{name:<{width}}  {plans[name].get('reason') or 'does not fit, or found no plan that does'}")


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
