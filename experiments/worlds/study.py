"""Cost models compared by the plans that the loop finds with as many measurements, in worlds it can only measure.

    python -m experiments.worlds.study --worlds eight,memory --seeds 10 --budgets 20,50,200
    python -m experiments.worlds.study --worlds giant --programs 10000:0 --seeds 1 --budgets 20 --json runs/worlds.json

Each row is one search: the runtime, without noise, of the plan that it found. Rows are written as they end, and the
same command goes on with those that are missing. `start` is the best of the baselines and annealing in simulation,
without a measurement; all ways begin with the same plans.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from experiments.bootstrap import mean_interval
from experiments.worlds.fitted import FittedSimulator
from experiments.worlds.world import WORLDS, World, world
from gst.execution.measure import Log
from gst.lowering.plan import Plan
from gst.machine.devices import machine_record
from gst.placement.loop import Loop
from gst.placement.objectives import SimulatedObjective
from gst.placement.planning import plan_all, plans_by_name
from gst.placement.reward import COST_MODELS, Surrogate
from gst.placement.task import Task
from gst.util.progress import bar
from gst.util.writing import write_json

MODELS: dict[str, Callable[[Task, int], Surrogate]] = {
    "none": COST_MODELS["none"],
    "random": COST_MODELS["none"],
    "linear": COST_MODELS["linear"],
    "fitted": lambda task, seed: FittedSimulator(task),
    "gst": COST_MODELS["gst"],
}
"""Ways to choose what is measured: the simulator as it is; any of the proposed plans; a linear model; a simulator whose
parameters are fitted; the GST network."""


def searched(
    hidden: World, starts: Mapping[str, Plan], way: str, budget: int, seed: int, evaluations: int
) -> dict[str, Any]:
    """Search in a world; return the runtime of the plan found, Kendall's tau of predictions, and seconds."""
    began = time.perf_counter()
    with TemporaryDirectory() as folder:
        log = Log(Path(folder) / "measurements.jsonl")
        model = MODELS[way](hidden.task, seed)
        asked = evaluations // (4 if way == "gst" else 1)  # the network takes longer
        search = Loop(hidden.task, hidden, log, starts, budget, asked, seed=seed, surrogate=model)
        if way == "random":
            generator = np.random.default_rng(seed)
            search.reward.expected_improvement = lambda plans: generator.random(len(plans))  # type: ignore[method-assign]
        plan = search.run()
    tau = search.tau()
    return {
        "ms": float(hidden.ms([plan])[0]), "tau": None if math.isnan(tau) else tau,
        "failed": sum(trial.measurement.outcome != "ok" for trial in search.trials),
        "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def rows_of(
    name: str, program: str, seed: int, budgets: Sequence[int], ways: Sequence[str], evaluations: int
) -> Iterable[dict[str, Any]]:
    """Yield the rows of one program in the world of one seed."""
    task = WORLDS[name][0](program)
    hidden = world(task, seed)
    starts = plans_by_name(plan_all(task, SimulatedObjective(task), ("annealing",), evaluations, seed=seed))
    here = {"world": name, "program": program, "seed": seed, "nodes": task.num_nodes}
    plans = list(starts.values())
    believed = plans[int(np.nanargmin(SimulatedObjective(task)(plans)))]
    yield here | {"budget": 0, "way": "start", "ms": float(hidden.ms([believed])[0])}
    for budget, way in product(budgets, ways):
        yield here | {"budget": budget, "way": way} | searched(hidden, starts, way, budget, seed, evaluations)


def compared(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Compare each way with `none`, and with four times as many measurements of it, in each world.

    Returns:
        By world and way with its budget, see `_ratio`.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for name in dict.fromkeys(row["world"] for row in rows):
        ms = {
            (row["way"], row["budget"], row["program"], row["seed"]): row["ms"] for row in rows if row["world"] == name
        }
        cells = dict.fromkeys((way, budget) for way, budget, *_ in ms if way not in ("none", "start"))
        table = {f"{way} at {budget}": _ratio(ms, (way, budget), ("none", budget)) for way, budget in cells}
        for way in ("gst", "fitted", "linear"):
            if (way, 50) in cells:
                table[f"{way} at 50, none at 200"] = _ratio(ms, (way, 50), ("none", 200))
        found[name] = {key: each for key, each in table.items() if each}
    return found


def _ratio(ms: Mapping[Any, float], one: tuple[str, int], other: tuple[str, int]) -> list[float]:
    """Return the geometric mean of one runtime / the other, paired by program and seed; both ends of its 95 % bootstrap
    interval; and the number of pairs. Nothing without pairs."""
    pairs = [(value, ms.get((*other, *key[2:]))) for key, value in ms.items() if key[:2] == one]
    logs = [math.log(mine / its) for mine, its in pairs if its]
    return [*np.exp(mean_interval(logs)).tolist(), len(logs)] if logs else []


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Search in all worlds; rows that the file has are kept."""
    names, ways = options.worlds.split(","), options.ways.split(",")
    budgets = [int(each) for each in options.budgets.split(",")]
    if unknown := [*(set(names) - WORLDS.keys()), *(set(ways) - MODELS.keys())]:
        raise ValueError(f"there is no {min(unknown)!r}; worlds are {', '.join(WORLDS)}, ways {', '.join(MODELS)}")
    command = f"python -m experiments.worlds.study --worlds {options.worlds} --seeds {options.seeds} "
    command += f"--budgets {options.budgets} --ways {options.ways} --evaluations {options.evaluations}"
    command += f" --programs {' '.join(options.programs)}" if options.programs else ""
    path: Path = options.json
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    result: dict[str, Any] = {}
    seeds = range(options.seeds)
    cases = [(name, each, seed) for name in names for seed in seeds for each in options.programs or WORLDS[name][1]]
    for case in bar(cases):
        own = [row for row in rows if _case(row) == case]
        if {(row["budget"], row["way"]) for row in own} >= {*product(budgets, ways)}:
            continue
        rows = [row for row in rows if _case(row) != case]
        rows += rows_of(*case, budgets, ways, options.evaluations)
        result = {"command": command, "rows": rows, "over_none": compared(rows), "machine": machine_record()}
        write_json(path, result)
    return result


def _case(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["world"], row["program"], row["seed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default=",".join(WORLDS), help="of %(default)s")
    parser.add_argument("--programs", nargs="*", help="by name; those of the world if none is named")
    parser.add_argument("--seeds", type=int, default=10, help="worlds of each program (default: %(default)s)")
    parser.add_argument("--budgets", default="20,50,200", help="numbers of measurements (default: %(default)s)")
    help_text = "plans of each annealing of the loop, of the network's a quarter (default: %(default)s)"
    parser.add_argument("--evaluations", type=int, default=2_000, help=help_text)
    parser.add_argument("--ways", default=",".join(MODELS), help="of %(default)s")
    results = Path("experiments/results/worlds.json")
    parser.add_argument("--json", type=Path, default=results, help="(default: %(default)s)")
    try:
        run(parser.parse_args())
    except ValueError as error:
        parser.exit(2, f"study: {error}\n")


if __name__ == "__main__":
    main()
