"""The times behind the tables of ColocRL, HDP and GO, on our workloads, by simulation of 2, 4 and 8 GPUs.

Rows are those of the papers as far as we have the model (InceptionV3, NMT, RNNLM, Transformer-XL, WaveNet, NASNet for
AmoebaNet). Times are simulated milliseconds of one training step on the roofline machines of `gst.placement.machines`,
never measured, one of each seed. `make results` makes the tables in the folders' README.md of them.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.reproductions.expert import expert
from gst.machine.devices import machine_record
from gst.placement.baselines.bounds import lower_bound_us
from gst.placement.machines import machine
from gst.placement.methods import registered
from gst.placement.objectives import Planned, SimulatedObjective
from gst.placement.planning import plan_all
from gst.programs import traced
from gst.util.progress import Bars, Progress, no_progress
from gst.util.untrusted import read_object
from gst.util.writing import write_json

PROGRAMS = ("rnnlm", "gnmt", "transformer_xl", "wavenet", "inception")
MACHINES = ("gpus:2", "gpus:4", "gpus:8")
WEAKER = ("hdp", "colocrl")
Rows = dict[str, dict[str, Any]]


def row(program: str, machine_name: str, methods: Sequence[str], evaluations: int, seeds: int) -> dict[str, Any]:
    """Plan one program on one machine by each method."""
    task = machine(machine_name).task(traced(program))
    runtime = SimulatedObjective(task)
    found = [plan_all(task, runtime, methods, evaluations, seed=seed) for seed in range(seeds)]
    portfolio = {name: each.expected_ms for name, each in found[0].items() if name not in methods}
    if (by_hand := expert(task)) is not None:
        portfolio["expert"] = float(runtime([by_hand])[0])
    best_of_portfolio = min(portfolio, key=lambda name: portfolio[name])
    return {
        "num_nodes": task.num_nodes, "lower_bound_ms": lower_bound_us(task) / 1e3, "portfolio_ms": portfolio,
        "portfolio_best": best_of_portfolio,
        "methods_ms": {name: [each[name].expected_ms for each in found] for name in methods},
        "seconds": {name: statistics.median(each[name].seconds for each in found) for name in methods},
        "sooner": {
            weaker: [sooner(each["go"], each[weaker]) for each in found]
            for weaker in WEAKER if {"go", weaker} <= set(methods)
        },
    }  # fmt: skip


def sooner(go: Planned, weaker: Planned) -> float | None:
    """Return the plans that the weaker one evaluated until its best, per plan that GO evaluated until as good."""
    reached = first_as_good(go.curve, weaker.expected_ms)
    return weaker.curve[-1][0] / reached if reached else None


def first_as_good(curve: Iterable[tuple[int, float]], ms: float) -> int | None:
    """Return the number of evaluated plans until one was as fast, or None."""
    return next((asked for asked, best in curve if best <= ms), None)


def table(
    path: Path, programs: Sequence[str], machines: Sequence[str], methods: Sequence[str], evaluations: int, seeds: int,
    command: str, summary: Callable[[Rows], dict[str, Any]] = lambda rows: {}, progress: Progress = no_progress,
) -> dict[str, Any]:  # fmt: skip
    """Plan every program on every machine; each row that a file lacks is written to it as soon as it is there.

    Args:
        summary: function of all rows that gives more of the file.

    Raises:
        ValueError: the file has other settings.
    """
    settings = {"methods": list(registered(methods)), "evaluations": evaluations, "seeds": seeds}
    result = dict(read_object(path)) if path.exists() else {"rows": {}, "settings": settings}
    if result.get("settings", settings) != settings:
        raise ValueError(f"{path} has other settings, {result['settings']}; give another --json")
    wanted = [(program, name) for program in programs for name in machines]
    for done, (program, name) in enumerate(wanted):
        progress(f"planning {program} on {name}", done, len(wanted))
        if (key := f"{program} on {name}") not in result["rows"]:
            result["rows"][key] = row(program, name, **settings)
            result |= {**summary(result["rows"]), "machine": machine_record(), "command": command}
            write_json(path, result)
    return result


def command_line(name: str, about: str, methods: Sequence[str]) -> None:
    """Run the command line of one of the three single-task systems.

    Args:
        name: of the system.
        methods: compared; `MODULE:NAME` is imported.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--evaluations", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path(f"experiments/results/{name}.json"))
    options = parser.parse_args()
    command = f"python -m experiments.reproductions.{name} --evaluations {options.evaluations} --seeds {options.seeds}"
    with Bars() as bars:
        table(
            options.json, options.programs.split(","), options.machines.split(","), methods, options.evaluations,
            options.seeds, command, progress=bars.show,
        )  # fmt: skip
