"""Programs placed one after another on one machine, each search from the costs that those before it learned.

    python -m experiments.worlds.sequence --worlds streams,eight --seeds 10
    python -m experiments.worlds.sequence --worlds streams --seeds 1 --budgets 20 --json runs/sequence.json

A seed draws the machine, and turns the order of the programs. Each program is searched `cold`, knowing nothing, and
`warm`, from what the warm searches with the most measurements learned before. Budget 0 is the best plan in simulation.

Of the last program, which nothing has learned from, plans drawn at random are predicted, too: by the simulator, by
ridge regression and by the GST network, both on all plans measured before, and by the costs learned from these. All but
the first correct the simulator, whose error they learn.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from experiments.bootstrap import mean_interval
from experiments.worlds.regression import LinearSurrogate
from experiments.worlds.rows import Row, collect, listed, main, or_none, parser_of, ratio_of
from experiments.worlds.world import WORLDS, World, world
from gst.cost import CostModel
from gst.execution.measure import Log
from gst.lowering.plan import Plan
from gst.placement.fitted import FittedSimulator
from gst.placement.loop import Loop
from gst.placement.measured_plans import plans_graph
from gst.placement.objectives import Learned, SimulatedObjective
from gst.placement.planning import plan_all, plans_by_name
from gst.placement.search.neighbourhoods import random_plans
from gst.placement.task import Task
from gst.programs import NUM_OPCODES

NUM_PREDICTED = 100  # plans drawn at random
PENALTY = 1.0  # of the regression on standardised sums
EPOCHS = 40  # of the network
MODELS = ("simulator", "regression", "network", "learned costs")
Answers = np.ndarray


@dataclass(frozen=True, eq=False)
class Known:
    """Plans of a program that were measured before."""

    task: Task
    plans: Sequence[Plan]
    ms: Answers

    @property
    def logs(self) -> Answers:
        """Logarithms of measured / simulated runtimes."""
        return np.log(self.ms / SimulatedObjective(self.task)(self.plans))


def searches(name: str, seed: int, budgets: Sequence[int], evaluations: int) -> Iterator[dict[str, Any]]:
    """Yield one row of each search and each prediction on the machine of a seed."""
    programs = WORLDS[name][1]
    learned: Learned = {}
    known: list[Known] = []
    for place in range(len(programs)):
        program = programs[(seed + place) % len(programs)]
        task = WORLDS[name][0](program)
        hidden = world(task, len(programs) * seed + place, machine=seed)
        here = {"place": place, "program": program, "nodes": task.num_nodes}
        if place == len(programs) - 1:
            plans = [plan for _, plan in islice(random_plans(task, seed), NUM_PREDICTED)]
            ms = np.array([each.median_ms for each in hidden.measure(plans)])
            yield from ({**here, **row} for row in predictions(Known(task, plans, ms), known, learned, seed))
        warm = learned
        for way, costs in (("cold", {}), ("warm", warm)):
            if way == "warm" and not warm:
                continue
            model = FittedSimulator(task, costs)
            corrected = model.corrected(task)
            planned = plan_all(corrected, SimulatedObjective(corrected), ("annealing",), evaluations, seed=seed)
            starts = plans_by_name(planned)
            best = min(starts, key=lambda each: np.nan_to_num(planned[each].expected_ms, nan=math.inf))
            yield {**here, "way": way, "budget": 0, "ms": or_none(hidden.ms([starts[best]])[0])}
            for budget in budgets:
                plan, search = searched(hidden, starts, costs, budget, evaluations, seed)
                yield {**here, "way": way, "budget": budget, "ms": or_none(hidden.ms([plan])[0])}
                if budget == max(budgets) and (way == "warm" or not warm):
                    learned = search.reward.surrogate.learned()
                    ran = [trial for trial in search.trials if trial.measurement.outcome == "ok"]
                    ms = np.array([trial.measurement.median_ms for trial in ran])
                    known.append(Known(task, [trial.plan for trial in ran], ms))


def searched(
    hidden: World, starts: Mapping[str, Plan], costs: Learned, budget: int, evaluations: int, seed: int
) -> tuple[Plan, Loop]:
    """Search in a world from learned costs."""
    with TemporaryDirectory() as folder:
        log, model = Log(Path(folder) / "measurements.jsonl"), FittedSimulator(hidden.task, costs)
        search = Loop(hidden.task, hidden, log, starts, budget, evaluations, seed=seed, surrogate=model)
        return search.run(), search


def predictions(asked: Known, known: Sequence[Known], learned: Learned, seed: int) -> Iterator[dict[str, Any]]:
    """Yield rank correlation and mean error of each of `MODELS` on plans of a program that none has seen."""
    ran = np.flatnonzero(np.isfinite(asked.ms))
    task, plans, ms = asked.task, [asked.plans[number] for number in ran.tolist()], asked.ms[ran]
    simulated = SimulatedObjective(task)(plans)
    models: dict[str, Callable[[], Answers]] = {
        "simulator": lambda: simulated,
        "regression": lambda: simulated * np.exp(regression(known, task, plans, simulated)),
        "network": lambda: simulated * np.exp(network(known, task, plans, seed)),
        "learned costs": lambda: SimulatedObjective(FittedSimulator(task, learned).corrected(task))(plans),
    }
    for model in MODELS:
        answers = models[model]()
        good = np.isfinite(answers)  # a plan may exceed the memory in simulation alone
        order = float(spearmanr(answers[good], ms[good]).statistic)
        error = float(np.abs(answers[good] / ms[good] - 1).mean())
        yield {"model": model, "spearman": order, "error": error, "plans": int(good.sum())}


def regression(known: Sequence[Known], task: Task, plans: Sequence[Plan], simulated: Answers) -> Answers:
    """Predict logarithms of measured / simulated runtimes by ridge regression on the sums of `LinearSurrogate`."""
    x = np.vstack([LinearSurrogate(each.task)._sums(each.plans, each.ms / np.exp(each.logs)) for each in known])
    y = np.concatenate([each.logs for each in known])
    middle, scale = x.mean(0), np.maximum(x.std(0), 1e-9)
    x = (x - middle) / scale
    weights = np.linalg.solve(x.T @ x + PENALTY * np.eye(x.shape[1]), x.T @ (y - y.mean()))
    return (LinearSurrogate(task)._sums(plans, simulated) - middle) / scale @ weights + y.mean()


def network(known: Sequence[Known], task: Task, plans: Sequence[Plan], seed: int) -> Answers:
    """Predict the same by a GST network that learned from the plans of all programs before."""
    model = CostModel(num_opcodes=NUM_OPCODES, log_config=False, seed=seed)
    model.fit([plans_graph(each.task.profiled, each.plans, np.exp(each.logs)) for each in known], EPOCHS)
    return model.logs(plans_graph(task.profiled, plans))[0]


def compared(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Compare warm with cold searches in each world: geometric mean of the ratio of runtimes, both ends of its 95 %
    bootstrap interval, and the number of pairs; and of each model the mean of rank correlations and errors."""
    found: dict[str, dict[str, list[float]]] = {}
    for name in dict.fromkeys(row["world"] for row in rows):
        mine = [row for row in rows if row["world"] == name]
        ms = {(row["way"], row["budget"], row["seed"], row["place"]): row["ms"] for row in mine if "way" in row}
        cells = found.setdefault(name, {})
        budgets = sorted({budget for _, budget, *_ in ms})
        for warm, cold in [(one, other) for one in budgets for other in budgets if one <= other]:
            pairs = [(took, ms["cold", cold, *key[2:]]) for key, took in ms.items() if key[:2] == ("warm", warm)]
            if ratio := ratio_of(pairs):
                cells[f"warm at {warm}, cold at {cold}"] = ratio
        for model in MODELS:
            for what in ("spearman", "error"):
                if values := [row[what] for row in mine if row.get("model") == model]:
                    cells[f"{what} of {model}"] = [*mean_interval(values), len(values)]
    return found


def run(options: argparse.Namespace) -> Row:
    """Search on all machines; those that the file has are kept."""
    budgets = [int(each) for each in options.budgets.split(",")]
    command = f"python -m experiments.worlds.sequence --worlds {options.worlds} --seeds {options.seeds} "
    command += f"--budgets {options.budgets} --evaluations {options.evaluations}"

    def rows_of(case: Row, own: Sequence[Row]) -> Iterable[Row]:
        return () if own else searches(case["world"], case["seed"], budgets, options.evaluations)

    cases = [{"world": name, "seed": seed} for name in listed(options.worlds) for seed in range(options.seeds)]
    return collect(options.json, command, cases, rows_of, "compared", compared)


if __name__ == "__main__":
    main(run, parser_of(__doc__, "worlds_sequence", "streams,eight,memory", "20,50"))
