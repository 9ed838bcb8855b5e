"""`gst place` and `gst demo`: what they take, do and print."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gst.util.interrupts import Stopped
from gst.util.progress import Bars
from gst.util.tuning import wait_briefly

BUDGET = 16  # of `gst.placement.planning`, which takes a second to import
OF_PROGRAMS = ("runtime", "methods", "tasks", "budget", "evaluations", "cost_model", "no_compile", "wandb")
"""Options that published problems have no use for."""

PARTS = ("policy", "network", "measurements", "fusion", "schedule")
"""What `--without` leaves out."""


def add_place(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add both; `command(commands, name, run, summary, examples)` makes a subcommand as all of `gst` are."""
    place = command(
        commands,
        "place",
        _place,
        "find the fastest plan of a program on devices: baselines, annealing, learned policies, real measurements",
        "gst place rnnlm --devices cpu:0,cpu:1,cpu:0-1 --out runs/place/rnnlm\n"
        "gst place inception --machine gpus:4 --out runs/place/inception-gpus     # simulated\n"
        "gst place inception --machine rtx4090:4 --out runs/place/inception-4090  # with the costs of gst estimate\n"
        "gst place --graph bert24_inference.json --out runs/place/bert24 --json runs/bert24.json\n"
        "gst place --graph chain_mm_112nodes.txt --machine gpus:4 --seconds 10    # DOPPLER's, and five other formats\n"
        "gst place --graph ft10.txt --seconds 10                                  # a job shop\n"
        "gst place mymodule:step --memory-limit 2GiB --budget 30 --out runs/place/mine\n"
        "gst place rnnlm --without measurements --explain --out runs/place/simulator-alone\n"
        "gst place rnnlm --workers ray://127.0.0.1:10001 --out runs/place/fleet    # see docs/fleet.md",
    )
    place.add_argument("program", nargs="?", help="a bundled program or MODULE:FUNCTION, see gst trace --help")
    place.add_argument(
        "--graph",
        type=Path,
        metavar="FILE",
        help="a published cost graph instead of a program; with --machine also a problem of DOPPLER, Moirai (.xls), "
        "PipeDream, Piper, MSR or WfFormat, and without it a job shop; recognised by content",
    )
    _add_common(place, None, "annealing,guided_search", "as gst.place")
    place.add_argument(
        "--runtime",
        choices=("measured", "simulated"),
        default="measured",
        help="what plans are judged by at the end (default: %(default)s)",
    )
    place.add_argument(
        "--machine",
        metavar="NAME",
        help="simulate a machine that is not here: cores:K, gpus:K, or K of a machine "
        "of gst estimate --on list, such as rtx4090:4",
    )
    place.add_argument(
        "--tasks",
        default="placement,schedule",
        help="what is decided, separated by commas, of placement, schedule, fusion (default: %(default)s)",
    )
    place.add_argument(
        "--policy",
        default="shipped",
        metavar="FILE",
        help="weights of gst train-policy whose plans annealing begins with, for --graph with --machine: a file, "
        "'shipped' or 'none' (default: %(default)s)",
    )
    place.add_argument(
        "--without",
        default="",
        metavar="PARTS",
        help="what is left out, separated by commas, to see what it brings: measurements (--budget 0), schedule and "
        "fusion (of --tasks), network (--cost-model sums), policy (of --methods; --policy none with --graph)",
    )
    place.add_argument(
        "--explain",
        action="store_true",
        help="print what each part of the loop contributed, where the time goes, and why the plan is no faster",
    )
    place.add_argument("--memory-limit", metavar="BYTES", help="of each device, such as 512MiB or 2GiB")
    place.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="about as long as compiling, searching and measuring may take: fewer plans are measured (default: 60 for "
        "plans measured on this machine, unless --budget says how many). With --graph and --machine: of search "
        "(default: 10), which from 1,000 operations on anneals windows of the schedule",
    )
    place.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="directory of results, needed but for --graph with --machine (there default: runs/place/FILE)",
    )
    place.add_argument(
        "--resume", action="store_true", help="go on with what is in --out; needed where that holds measurements"
    )
    place.add_argument(
        "--again",
        action="store_true",
        help="begin with the plan in --out, of a program whose sources have changed a little since",
    )
    place.add_argument(
        "--program",
        dest="show_streams",
        action="store_true",
        help="print what every lane of every memory does: runs, copies, events, frees; also written to program.txt",
    )
    place.add_argument(
        "--verify",
        action="store_true",
        help="run the plan by the hostile interpreter (lanes that sleep at random, freed memory full of NaN) and "
        "compare its outputs with those of the program run in order",
    )
    place.set_defaults(anew=False)
    demo = command(
        commands,
        "demo",
        _demo,
        "the whole loop on the devices of this machine: capture, measure, learn, place, report",
        "gst demo\n"
        "gst demo --budget 8 --patience 0                  # shorter: eight plans, and no wait for quiet cores\n"
        "gst demo --program inception --json runs/demo.json",
    )
    demo.description = (
        f"{demo.description}. It takes minutes, 20 on two cores that other programs kept busy: it compiles the step, "
        "and waits up to 20 s for quiet cores before each four plans"
    )
    demo.add_argument(
        "--program",
        default="rnnlm",
        help="a bundled program or MODULE:FUNCTION, see gst trace --help (default: %(default)s)",
    )
    _add_common(demo, 40, "annealing,go,guided_search", "those of gst place and a learned policy")
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), help="directory of results (default: %(default)s)")
    demo.add_argument(
        "--resume", action="store_true", help="go on with the measurements in --out, which are deleted otherwise"
    )
    demo.set_defaults(anew=True, again=False, seconds=None, show_streams=False, verify=False, explain=False, without="")
    for each in (place, demo):
        each.add_argument(
            "--wandb",
            action="store_true",
            help="log the result and the plan to W&B, offline unless you are logged in (WANDB_MODE decides if set)",
        )
    place.set_defaults(usual={name: place.get_default(name) for name in (*OF_PROGRAMS, "proof")})


def _add_common(command: argparse.ArgumentParser, budget: int | None, methods: str, why: str) -> None:
    command.add_argument(
        "--devices", help="names separated by commas, see gst devices (default: all of them and sets of cores)"
    )
    command.add_argument(
        "--methods",
        default=methods,
        help="methods beside the baselines, separated by commas, of annealing, cross_entropy, evolution, colocrl, hdp, "
        f"go, policy, guided_search (default: %(default)s, {why})",
    )
    command.add_argument(
        "--budget",
        type=int,
        default=budget,
        metavar="N",
        help="plans to measure during the search; 0 = baselines alone "
        f"(default: {f'as many of {BUDGET} as --seconds allow' if budget is None else budget})",
    )
    command.add_argument(
        "--evaluations",
        type=int,
        default=2_000,
        metavar="N",
        help="simulated plans that each method may ask about (default: %(default)s)",
    )
    command.add_argument(
        "--proof",
        type=float,
        default=5.0,
        metavar="S",
        help="seconds, once the plan is written, for a lower bound with transfers and memory limits: by branch and "
        "bound, and up to 200 operations by CP-SAT, if ortools is installed; 0 = by chains and work alone "
        "(default: %(default)g)",
    )
    command.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write the plan's simulated timeline, with every value under way, as a Chrome trace for ui.perfetto.dev",
    )
    command.add_argument("--seed", type=int, default=0, help="of all random draws (default: %(default)s)")
    command.add_argument(
        "--patience",
        type=float,
        default=20.0,
        metavar="S",
        help="seconds to wait for quiet cores before operations are profiled, and to profile them again where other "
        "processes come back meanwhile; without --seconds, to wait before plans are measured, too; 0 = do not look "
        "(default: %(default)g)",
    )
    command.add_argument(
        "--workers",
        type=_workers,
        default=1,
        metavar="N|ADDRESS",
        help="processes that measure for the search, one at a time on each GPU, or a Ray cluster whose hosts do: ray "
        "(the one that runs here, or one started for this command) or ray://HOST:PORT (default: %(default)s)",
    )
    command.add_argument(
        "--cost-model",
        choices=("sums", "network"),
        default="sums",
        help="what learns from the measurements how wrong the simulator is: linear regression on sums over a plan, or "
        "the GST cost model, which takes minutes, fewer with --evaluations 500 (default: %(default)s)",
    )

    command.add_argument(
        "--no-compile",
        action="store_true",
        help="leave torch.compile of the step, which takes a minute, out of what is measured at the end",
    )


def _workers(text: str) -> int | str:
    return int(text) if text.removeprefix("-").isdecimal() else text


def _demo(options: argparse.Namespace) -> dict[str, Any]:
    options.graph = options.machine = options.memory_limit = None
    options.runtime, options.tasks = "measured", "placement,schedule"
    return _place(options)


def _leave_out(options: argparse.Namespace) -> None:
    """Set the options that `--without` stands for.

    Raises:
        ValueError: a part is unknown, or a published problem has none like it.
    """
    parts = _names(options.without)
    if unknown := [part for part in parts if part not in PARTS]:
        raise ValueError(f"there is no part {unknown[0]!r} to leave out; there are {', '.join(PARTS)}")
    if options.graph is not None and set(parts) - {"policy"}:
        raise ValueError("of a published problem --without leaves out the policy alone")
    if "policy" in parts and options.graph is not None:
        options.policy = "none"
    elif "policy" in parts:
        options.methods = ",".join(name for name in _names(options.methods) if name != "policy")
    if "network" in parts:
        options.cost_model = "sums"
    if "measurements" in parts:
        options.budget = 0
    options.tasks = ",".join(task for task in _names(options.tasks) if task not in parts)


def _place(options: argparse.Namespace) -> dict[str, Any]:
    _leave_out(options)
    if options.graph is not None and not options.graph.is_file():
        raise ValueError(f"{options.graph}: there is no such file")
    if options.graph is not None and (options.show_streams or options.verify):
        raise ValueError("a cost graph has nothing to run; leave --program and --verify away")
    if options.graph is None and getattr(options, "policy", "shipped") != "shipped":
        raise ValueError("--policy is for published problems, --graph; leave it away with a program")
    if options.graph is not None:
        try:
            if (result := _place_published(options)) is not None:
                return result
        except Stopped as stop:
            raise Stopped(stop.number, "run it again") from None
    _fill_in(options)
    if options.out is None:
        raise ValueError("give --out DIR, the directory of results")
    # Read when torch is loaded: spinning OpenMP threads would steal the cores of other devices.
    wait_briefly()
    from gst.placement.api.command import place_by_options
    from gst.placement.certificate import words
    from gst.placement.planning import RENAMED, Settings
    from gst.reporting.headline import headline, undercut

    settings = Settings(
        budget=options.budget,
        evaluations=options.evaluations,
        methods=tuple(RENAMED.get(name, name) for name in _names(options.methods)),
        tasks=_names(options.tasks),
        seed=options.seed,
        patience_s=options.patience,
        workers=options.workers if isinstance(options.workers, int) else 1,
        cost_model=options.cost_model,
        compile_step=not options.no_compile,
    )
    with Bars() as bars:
        result = place_by_options(options, settings, bars.show)
    _print_plans(result)
    if options.show_streams:
        print((options.out / "program.txt").read_text(), end="")
    if options.verify:
        print(f"{result['streams']['hostile_runs']} hostile runs of the plan gave the outputs of the program")
    if options.explain:
        print(result["explanation"])
    print(headline(result))
    print(words(result["certificate"]))
    if measured_less := undercut(result):
        print(measured_less)
    print(f"Look at {options.out / 'report.html'}")
    return result


def _fill_in(options: argparse.Namespace) -> None:
    """What the options leave open: a minute, or as long as the plans of `--budget` take."""
    if options.seconds is not None and options.seconds < 0:
        raise ValueError(f"--seconds is {options.seconds}, want 0 or more")
    measured = options.runtime == "measured" and options.graph is None and options.machine is None
    if options.graph is not None and options.machine is not None:
        options.seconds = 10.0 if options.seconds is None else options.seconds
    elif options.seconds is not None and not (measured and isinstance(options.workers, int)):
        raise ValueError("--seconds is for plans measured on this machine, and for --graph with --machine")
    elif options.seconds is None and options.budget is None and measured and isinstance(options.workers, int):
        options.seconds = 60.0
    options.budget = BUDGET if options.budget is None else options.budget


def _place_published(options: argparse.Namespace) -> dict[str, Any] | None:
    """What came of a job shop, or of a published problem on a machine; None of another graph."""
    if (result := _place_job_shop(options)) is not None or options.machine is None:
        return result
    _check_unused(options, *OF_PROGRAMS)
    _fill_in(options)
    return _place_public(options)


def _place_job_shop(options: argparse.Namespace) -> dict[str, Any] | None:
    from experiments.reproductions.jobshop.placing import is_job_shop, place_by_options, table

    if not is_job_shop(options.graph):
        return None
    _check_unused(options, *OF_PROGRAMS, "proof")
    result = place_by_options(options)
    print(table(result))
    print(f"The plan is in {result['plan_file']}")
    return result


def _place_public(options: argparse.Namespace) -> dict[str, Any]:
    from experiments.reproductions.public_problems.placing import place_by_options, table
    from gst.placement.certificate import words

    proposer = None
    if options.policy != "none":
        from experiments.reproductions.public_problems.proposing import proposer_of
        from gst.placement.policies.constructive.network import load_weights

        proposer = proposer_of(load_weights(None if options.policy == "shipped" else Path(options.policy)))
    with Bars() as bars:
        result = place_by_options(options, bars.show, proposer)
    print(table(result))
    print(words(result["certificate"]))
    print(f"The plan is in {result['plan_file']}")
    return result


def _check_unused(options: argparse.Namespace, *names: str) -> None:
    """Raises:
    ValueError: one of these options, which a published problem has no use for, is given.
    """
    for name in names:
        if getattr(options, name) != options.usual[name]:
            raise ValueError(f"--{name.replace('_', '-')} is for programs; leave it away with {options.graph}")


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
    for name, plan in sorted(ran.items(), key=lambda item: times[item[0]]):
        words = f"{name:<{width}}  {plan[key]:9.2f}"
        if measured:
            words += f"  {plan['low_ms']:.2f} .. {plan['high_ms']:.2f}"
        if plan.get("again_median_ms"):
            words += f"  {plan['again_median_ms']:.2f} ({plan['again_low_ms']:.2f} .. {plan['again_high_ms']:.2f})"
        print(words)
    for name in plans.keys() - ran.keys():
        print(f"{name:<{width}}  {plans[name].get('reason') or 'does not fit, or found no plan that does'}")
