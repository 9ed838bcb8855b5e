"""Time until windows reach the plan that annealing has after ten minutes, on 80,000 operations and 8 devices.

    python -m experiments.reproductions.public_problems giant --json experiments/results/giant_problems.json
    python -m experiments.reproductions.public_problems giant --again
    python -m experiments.reproductions.public_problems giant --equal 10000,40000,80000
    python -m experiments.reproductions.public_problems giant --equal 1000,2000,5000 --seeds 3 --ours 8

Generated problems, one of each shape, simulated, one core. Annealing begins with the best baseline and has `--seconds`.
Beside it: the baselines, the policy's schedule, `gst place` for `--ours` seconds of search, and the lower bound. The
time of each method counts from nothing, with baselines where it needs them. The controls of the policy are the same
decoder with weights before training, and the baselines alone. `--again` measures `gst place` anew and keeps what was
measured of the others: their makespans do not depend on `gst place`.

`--equal` is another comparison: annealing from the best baseline, annealing from the best plan of the policy, and
`gst place`, with `--ours` seconds of search each and the same baselines before them, on problems of so many operations,
one of each shape for each of `--seeds`. Problems served first come first served are left out: `gst place` does there
what it did without windows.

The methods of a problem run one after another, the baselines first and the others in a random order. Each row notes the
machine, its load and the command.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from gst.placement.policies.constructive.network import Weights

from experiments.bootstrap import mean_interval
from experiments.figures.documents import table
from experiments.reproductions.public_problems.annealing import anneal
from experiments.reproductions.public_problems.baselines import baselines
from experiments.reproductions.public_problems.bounds import lower_bound
from experiments.reproductions.public_problems.generated import generated_problem
from experiments.reproductions.public_problems.placing import SHARE, place_public
from experiments.reproductions.public_problems.problem import Problem
from experiments.reproductions.public_problems.proposing import propose, proposer_of
from experiments.reproductions.public_problems.schedules import Schedule
from experiments.reproductions.public_problems.weights import initial_weights, load_weights
from gst.machine.devices import machine_record
from gst.util.progress import bar

SHAPES = ("inception", "transformer", "layers")
ALL_SHAPES = (*SHAPES, "chains", "stencil")
FIRST_SEED = 3 * 10**9  # training draws from seeds below 10^9
NODES, DEVICES = 80_000, 8


def row(problem: Problem, seconds: float, ours_s: float, seed: int, command: str) -> dict[str, Any]:
    """Makespans and seconds of each method."""
    weights = load_weights(None)
    start, baselines_s = with_seconds(lambda: best_baseline(problem))
    counts: list[int] = []

    def annealing() -> float:
        plan, count = anneal(problem, start, seconds)
        counts.append(count)
        return plan.makespan

    methods = in_random_order(
        {
            "annealing": annealing,
            "greedy": lambda: greedy(problem, weights),
            "untrained": lambda: greedy(problem, initial_weights(0)),
            "ours": lambda: makespan_of_place(problem, ours_s),
        },
        seed,
    )
    methods["annealing"]["seconds"] += baselines_s
    return {
        "nodes": problem.num_nodes, "devices": len(problem.devices), "steps_of_annealing": counts[0],
        "lower_bound": lower_bound(problem),
        "methods": {"baselines": {"makespan": start.makespan, "seconds": baselines_s}, **methods},
        **origin_of(command),
    }  # fmt: skip


def equal_row(problem: Problem, seconds: float, seed: int, command: str) -> dict[str, Any]:
    """Makespans and seconds of annealing, of annealing that begins with the policy, and of `gst place`."""
    weights = load_weights(None)
    start, baselines_s = with_seconds(lambda: best_baseline(problem))
    methods = in_random_order(
        {
            "annealing": lambda: anneal(problem, start, seconds)[0].makespan,
            "policy, annealing": lambda: from_policy(problem, start, weights, seconds)[0].makespan,
            "ours": lambda: makespan_of_place(problem, seconds),
        },
        seed,
    )
    for name in ("annealing", "policy, annealing"):
        methods[name]["seconds"] += baselines_s
    arrays = problem.arrays
    return {
        "nodes": problem.num_nodes, "devices": len(problem.devices), "lower_bound": lower_bound(problem),
        "has_groups": len(arrays.sizes) < problem.num_nodes, "has_limits": bool(arrays.limits.min() < float("inf")),
        "methods": {"baselines": {"makespan": start.makespan, "seconds": baselines_s}, **methods},
        "seconds_of_search": seconds, **origin_of(command),
    }  # fmt: skip


def in_random_order(methods: dict[str, Callable[[], float]], seed: int) -> dict[str, dict[str, float]]:
    """Makespan and seconds of each method, and its `place` in a random order in which they run one after another."""
    order = [list(methods)[number] for number in np.random.default_rng(seed).permutation(len(methods))]
    runs = {name: with_seconds(methods[name]) for name in order}
    return {name: {"makespan": runs[name][0], "seconds": runs[name][1], "place": order.index(name)} for name in methods}


def origin_of(command: str) -> dict[str, Any]:
    """The machine, its load over the last five minutes, and the command that a row is from."""
    return {"machine": machine_record(), "load": round(os.getloadavg()[1], 2), "command": command}


def from_policy(problem: Problem, start: Schedule, weights: Weights, seconds: float) -> tuple[Schedule, int]:
    """Annealing of the best of a plan and the policy's, which have `SHARE` of the seconds."""
    best = propose(problem, weights, SHARE * seconds).best
    begin = start if best is None or start.makespan <= best.makespan else best
    return anneal(problem, begin, (1 - SHARE) * seconds)


def makespan_of_place(problem: Problem, seconds: float) -> float:
    """Makespan of `gst place` with so many seconds of search."""
    return place_public(problem, seconds, proposer=proposer_of(load_weights(None)))[1].makespan


def best_baseline(problem: Problem) -> Schedule:
    """The shortest plan of the baselines that is admitted."""
    return min((plan for plan in baselines(problem).values() if not plan.reason), key=lambda plan: plan.makespan)


def greedy(problem: Problem, weights: Weights) -> float:
    """Makespan of the one schedule that the policy builds; infinite if the memories do not hold it."""
    built = propose(problem, weights, samples=1).greedy
    return float("inf") if built is None else built.makespan


def with_seconds(function: Callable[[], Any]) -> tuple[Any, float]:
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
    return "\n\n".join([
        table(["shape", *names, "bound"], lines),
        *(f"{nodes} operations, equal time\n{equal_table(rows)}" for nodes, rows in result.get("equal", {}).items()),
    ])  # fmt: skip


def equal_table(rows: dict[str, Any]) -> str:
    """A table: makespans over that of annealing for the same time, and their geometric means with 95 % intervals."""
    names = ("baselines", "policy, annealing", "ours")
    lines = []
    for name, each in rows.items():
        unit = each["methods"]["annealing"]["makespan"]
        ratios = [*(each["methods"][method]["makespan"] / unit for method in names), each["lower_bound"] / unit]
        lines.append([name, *(f"{ratio:.3f}" for ratio in ratios)])
    intervals = [interval(rows, name) for name in names] if len(rows) > 1 else []
    if intervals:
        lines.append(
            [f"all {len(rows)}", *(f"{mean:.3f} [{low:.3f}, {high:.3f}]" for mean, low, high in intervals), ""]
        )
    return table(["problem", *names, "bound"], lines)


def interval(rows: dict[str, Any], method: str) -> tuple[float, float, float]:
    """Geometric mean of the makespans of a method over those of annealing, and its interval (bootstrap over problems,
    95 %)."""
    each = [row["methods"][method]["makespan"] / row["methods"]["annealing"]["makespan"] for row in rows.values()]
    mean, low, high = np.exp(mean_interval(np.log(each))).tolist()
    return mean, low, high


def equal_time(result: dict[str, Any], options: argparse.Namespace, command: str) -> None:
    """Add `equal` to a result: of each number of operations, rows by shape and seed."""
    sizes, seeds = options.equal.split(","), range(options.seeds)
    for seed, nodes, shape in bar(list(product(seeds, sizes, options.shapes.split(","))), desc="equal time"):
        rows = result.setdefault("equal", {}).setdefault(nodes, {})
        number = FIRST_SEED + ALL_SHAPES.index(shape) + 100 * seed
        if f"{shape} {seed}" in rows:
            continue
        problem = generated_problem(number, int(nodes), DEVICES, shape)
        if not problem.graph.first_come:
            rows[f"{shape} {seed}"] = equal_row(problem, options.ours, number, command)
            options.json.write_text(json.dumps(result, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", help=f"(default: {','.join(SHAPES)}; with --equal {','.join(ALL_SHAPES)})")
    parser.add_argument("--nodes", type=int, default=NODES, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=600.0, help="of annealing (default: %(default)g)")
    parser.add_argument(
        "--ours", type=float, default=10.0, help="seconds of search of gst place (default: %(default)g)"
    )
    parser.add_argument("--again", action="store_true", help="measure gst place anew and keep the other methods")
    parser.add_argument("--equal", metavar="NODES,...", help="compare in equal time on so many operations")
    parser.add_argument("--seeds", type=int, default=2, help="of --equal (default: %(default)d)")
    parser.add_argument("--summary", action="store_true", help="print the table of what is there")
    parser.add_argument("--json", type=Path, default=Path("experiments/results/giant_problems.json"))
    options = parser.parse_args(arguments)
    result: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {"rows": {}}
    options.shapes = options.shapes or ",".join(ALL_SHAPES if options.equal else SHAPES)
    command = shlex.join([
        "python", "-m", "experiments.reproductions.public_problems", "giant",
        *(sys.argv[1:] if arguments is None else arguments),
    ])  # fmt: skip
    if not options.summary:
        row(generated_problem(0, 2_000, 3, "chains"), 0.1, 0.1, 0, command)  # compiles
    if options.equal and not options.summary:
        equal_time(result, options, command)
    elif not options.summary:
        left = [name for name in options.shapes.split(",") if options.again or name not in result["rows"]]
        for shape in bar(left, desc="placing"):
            number = FIRST_SEED + SHAPES.index(shape)
            problem = generated_problem(number, options.nodes, DEVICES, shape)
            if options.again and shape in result["rows"]:
                makespan, seconds = with_seconds(lambda problem=problem: makespan_of_place(problem, options.ours))
                ours = {"makespan": makespan, "seconds": seconds, "measured": "later than the other methods"}
                result["rows"][shape]["methods"]["ours"] = ours | origin_of(command)
            else:
                result["rows"][shape] = row(problem, options.seconds, options.ours, number, command)
            options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(summary(result))


if __name__ == "__main__":
    main()
