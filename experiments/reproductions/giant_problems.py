"""How soon a problem of 80,000 operations on 8 devices has a plan as good as annealing's after ten minutes.

    python -m experiments.reproductions.giant_problems --json experiments/results/giant_problems.json

Generated problems, one of each shape, simulated, one core. Annealing begins with the best baseline and has `--seconds`.
Beside it: the baselines, the policy's schedule, `gst place` for `--ours` seconds of search, and the lower bound. The
time of each method counts from nothing, with baselines where it needs them. The controls of the policy are the same
decoder with weights before training, and the baselines alone.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.figures.documents import table
from gst.devices import machine_record
from gst.placement.constructive.generated import generated_problem
from gst.placement.constructive.network import Weights, initial_weights, load_weights
from gst.placement.constructive.proposing import propose, proposer_of
from gst.placement.public.annealing import anneal
from gst.placement.public.baselines import baselines
from gst.placement.public.bounds import lower_bound
from gst.placement.public.placing import place_public
from gst.placement.public.problem import Problem
from gst.placement.public.schedules import Schedule
from gst.process.progress import bar

SHAPES = ("inception", "transformer", "layers")
FIRST_SEED = 3 * 10**9  # training draws from seeds below 10^9
NODES, DEVICES = 80_000, 8


def row(problem: Problem, seconds: float, ours_s: float) -> dict[str, Any]:
    """Makespans and seconds of each method."""
    trained = load_weights(None)
    start, baselines_s = timed(lambda: best_baseline(problem))
    (annealed, steps), annealing_s = timed(lambda: anneal(problem, start, seconds))
    rows = {
        "baselines": (start.makespan, baselines_s),
        "annealing": (annealed.makespan, baselines_s + annealing_s),
        "greedy": timed(lambda: greedy(problem, trained)),
        "untrained": timed(lambda: greedy(problem, initial_weights(0))),
        "ours": timed(lambda: place_public(problem, ours_s, proposer=proposer_of(trained))[1].makespan),
    }
    return {
        "nodes": problem.num_nodes, "devices": len(problem.devices), "steps_of_annealing": steps,
        "lower_bound": lower_bound(problem),
        "methods": {name: {"makespan": makespan, "seconds": taken} for name, (makespan, taken) in rows.items()},
    }  # fmt: skip


def best_baseline(problem: Problem) -> Schedule:
    """The shortest plan of the baselines that is admitted."""
    return min((plan for plan in baselines(problem).values() if not plan.reason), key=lambda plan: plan.makespan)


def greedy(problem: Problem, weights: Weights) -> float:
    """Makespan of the one schedule that the policy builds; infinite if the memories do not hold it."""
    built = propose(problem, weights, samples=1).greedy
    return float("inf") if built is None else built.makespan


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """A result and the seconds that it took."""
    begun = time.perf_counter()
    result = function()
    return result, time.perf_counter() - begun


def summary(result: dict[str, Any]) -> str:
    """A table: makespans over that of annealing, and the seconds of each method."""
    names = ("baselines", "greedy", "untrained", "ours", "annealing")
    lines = []
    for shape, each in result["rows"].items():
        unit = each["methods"]["annealing"]["makespan"]
        cells = [
            f"{m['makespan'] / unit:.3f} ({m['seconds']:.0f} s)" for m in (each["methods"][name] for name in names)
        ]
        lines.append([shape, *cells, f"{each['lower_bound'] / unit:.3f}"])
    return table(["shape", *names, "bound"], lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="(default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=NODES, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=600.0, help="of annealing (default: %(default)g)")
    parser.add_argument(
        "--ours", type=float, default=10.0, help="seconds of search of gst place (default: %(default)g)"
    )
    parser.add_argument("--summary", action="store_true", help="print the table of what is there")
    parser.add_argument("--json", type=Path, default=Path("experiments/results/giant_problems.json"))
    options = parser.parse_args(arguments)
    result: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {"rows": {}}
    if not options.summary:
        result["machine"] = machine_record()
        result["command"] = (
            f"python -m experiments.reproductions.giant_problems --nodes {options.nodes} --seconds {options.seconds:g} "
            f"--ours {options.ours:g}"
        )
        row(generated_problem(0, 40, 3, "chains"), 0.1, 0.1)  # compiles
        left = [name for name in options.shapes.split(",") if name not in result["rows"]]
        for shape in bar(left, desc="placing"):
            problem = generated_problem(FIRST_SEED + SHAPES.index(shape), options.nodes, DEVICES, shape)
            result["rows"][shape] = row(problem, options.seconds, options.ours)
            options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(summary(result))


if __name__ == "__main__":
    main()
