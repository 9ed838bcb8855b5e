"""Cost models and proposers compared by the plans that the loop finds with as many measurements, in worlds that it can
only measure.

    python -m experiments.worlds.study --worlds eight,memory --seeds 10 --budgets 20,50,200
    python -m experiments.worlds.study --worlds giant --programs 10000:0 --seeds 1 --budgets 20 --json runs/worlds.json

Each row is one search: the runtime, without noise, of the plan that it found. The rows of a program and a world are
written when all their searches have ended, and the same command goes on with those that are missing. `start` is the
best of the baselines and annealing in simulation, without a measurement; `true costs` knows those of the world once
eight plans were measured, but not how devices slow down when all are busy. All ways begin with the same plans.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from experiments.worlds.fitted import TenParameters
from experiments.worlds.regression import LinearSurrogate
from experiments.worlds.rows import Row, collect, listed, main, or_none, parser_of, ratio_of
from experiments.worlds.scheduled import NetworkOfSchedules
from experiments.worlds.transfer import fine_tuning, pretrained
from experiments.worlds.world import WORLDS, World, world
from gst.execution.measure import Log
from gst.lowering.plan import Plan
from gst.placement.cost_models import COST_MODELS
from gst.placement.fitted import FittedSimulator
from gst.placement.loop import Loop, Trial, tau
from gst.placement.methods import METHODS, Learned, Method, Trained
from gst.placement.objectives import Answers, Budgeted, SimulatedObjective, Surrogate
from gst.placement.planning import plan_all, plans_by_name
from gst.placement.policies.go import GO
from gst.placement.policies.ppo import draw, plans_of, policy_inputs
from gst.placement.task import Task
from gst.util.progress import Progress

AT_ONCE = 50  # plans drawn from an untrained policy
GAPS = ("switch_us", "hand_over_us")
NOTHING = 1e-12  # variance, a priori, of a cost that is not fitted
LEAST = -1e8  # log probabilities of actions that are possible


def believed(name: str) -> Callable[[World, int], Surrogate]:
    """Return what makes a cost model of `COST_MODELS` from what a search believes of a world."""
    return lambda hidden, seed: COST_MODELS[name](hidden.task, seed, {})


def without_gaps(task: Task) -> FittedSimulator:
    """Return fitted costs that hold no time from an operation to the next, on its device or another."""
    model = FittedSimulator(task)
    places = model._layout.contention
    model._prior[[places[name] for name in GAPS if name in places]] = NOTHING
    return model


WAYS: dict[str, tuple[Callable[[World, int], Surrogate], str, float]] = {
    "none": (believed("none"), "annealing", 1),
    "random": (believed("none"), "annealing", 1),
    "true costs": (lambda hidden, seed: TrueCosts(hidden.truth), "annealing", 1),
    "linear": (lambda hidden, seed: LinearSurrogate(hidden.task), "annealing", 1),
    "ten parameters": (lambda hidden, seed: TenParameters(hidden.task), "annealing", 1),
    "fitted": (believed("fitted"), "annealing", 1),
    "fitted without gaps": (lambda hidden, seed: without_gaps(hidden.task), "annealing", 1),
    "gst": (believed("gst"), "annealing", 0.25),  # the network takes longer
    "scheduled": (lambda hidden, seed: NetworkOfSchedules(hidden.task, seed), "annealing", 1),
    "as few as gst": (believed("fitted"), "annealing", 0.25),
    "as long as fitted": (believed("none"), "annealing", 2),
    "go": (believed("fitted"), "go", 1),
    "go simulated": (believed("none"), "go", 1),
    "untrained go": (believed("fitted"), "untrained go", 1),
    "uniform": (believed("fitted"), "uniform", 1),
    "pretrained go": (believed("fitted"), "pretrained go", 1),
    "zero-shot go": (believed("fitted"), "zero-shot go", 1),
    "as long as go": (believed("fitted"), "annealing", 10),
}
"""Cost model, proposer, and share of the evaluations of each way to search. Models: the simulator as it is; any of the
proposed plans; the costs of the world; a linear model; a simulator with ten fitted parameters; fitted costs, also
without the time between operations; the GST network on top of these, and they alone with as few questions; a GST
network of scheduled programs on top of them; none for as long as fitted costs. Proposers: GO, with fitted costs in the
loop or none; GO that learns nothing; plans drawn uniformly; GO that has learned on other programs, and goes on or does
not; annealing for about as long as GO takes; and mutation of measured plans always."""
COST_WAYS = ("none", "random", "true costs", "linear", "ten parameters", "fitted", "fitted without gaps", "gst")
CONTROLS = (
    *(((way, 50), ("none", 200)) for way in ("gst", "fitted", "linear")),
    (("gst", 50), ("as few as gst", 50)),
    (("scheduled", 50), ("fitted", 50)),
    (("true costs", 50), ("fitted", 50)),
    *((("fitted", 50), (way, 50)) for way in ("fitted without gaps", "as long as fitted")),
    *((("go", 50), (way, 50)) for way in ("go simulated", "untrained go", "uniform", "fitted")),
    (("go", 50), ("as long as go", 50)),
    *(((way, 50), ("go", 50)) for way in ("pretrained go", "zero-shot go")),
    (("zero-shot go", 50), ("untrained go", 50)),
)
"""Pairs of a way with its measurements, compared besides."""


class TrueCosts(Surrogate):
    """The costs of a world, which no search knows."""

    corrects = True

    def __init__(self, truth: Task) -> None:
        self._truth = truth

    def corrected(self, task: Task, generator: np.random.Generator | None = None) -> Task:
        return self._truth

    def __call__(self, plans: Sequence[Plan], simulated_ms: Answers) -> tuple[Answers, Answers]:
        return np.zeros(len(plans)), np.zeros(len(plans))


class Untrained:
    """A policy of GO that learns nothing; or, `uniform`, all devices and priorities with the same probability."""

    def __init__(self, policy: GO, task: Task, seed: int, uniform: bool = False) -> None:
        self._task, self._inputs = task, policy_inputs(task)
        with torch.no_grad():
            self._chances = policy(self._inputs)
        if uniform:
            self._chances = {name: (each > LEAST).float().log().log_softmax(1) for name, each in self._chances.items()}
        self._generator = torch.Generator().manual_seed(seed)

    def run(self, objective: Budgeted, progress: Progress) -> None:
        while objective.left:
            drawn = draw(self._chances, min(objective.left, AT_ONCE), self._generator)
            objective(plans_of(self._task, self._inputs, drawn))


def methods_of(name: str, program: str) -> dict[str, Method]:
    """Return methods for a program of a world, besides those of the product."""
    return {
        "uniform": _learned(lambda task, seed, tasks: Untrained(GO(tasks, seed=seed), task, seed, uniform=True)),
        "untrained go": _learned(lambda task, seed, tasks: Untrained(GO(tasks, seed=seed), task, seed)),
        "zero-shot go": _learned(lambda task, seed, tasks: Untrained(pretrained(name, program), task, seed)),
        "pretrained go": _learned(lambda task, seed, tasks: fine_tuning(pretrained(name, program), task, seed, tasks)),
    }


def _learned(make: Callable[[Task, int, Sequence[str]], Trained]) -> Method:
    return Method(lambda task, seed, tasks: Learned(make(task, seed, tasks)), "")


def searched(
    hidden: World, starts: Mapping[str, Plan], way: str, budget: int, seed: int, evaluations: int
) -> dict[str, Any]:
    """Search in a world; return the runtime of the plan found, Kendall's tau of predictions, and seconds."""
    began = time.perf_counter()
    with TemporaryDirectory() as folder:
        log = Log(Path(folder) / "measurements.jsonl")
        model, method, share = WAYS[way]
        asked = int(share * evaluations)
        search = Loop(
            hidden.task, hidden, log, starts, budget, asked, seed=seed,
            surrogate=model(hidden, seed), methods=method.split(","),
        )  # fmt: skip
        if way == "random":
            generator = np.random.default_rng(seed)
            search.reward.chosen = lambda plans, *_: generator.permutation(len(plans)).tolist()  # type: ignore[method-assign]
        plan = search.run()
    order = tau(search.trials)
    return {
        "ms": float(hidden.ms([plan])[0]), "tau": None if math.isnan(order) else order,
        "curve": curve(hidden, search.trials),
        "failed": sum(trial.measurement.outcome != "ok" for trial in search.trials),
        "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def curve(hidden: World, trials: Sequence[Trial]) -> list[list[float]]:
    """Return (measurements, runtime without noise of the plan with the least median so far) where that plan changes."""
    best, points = math.inf, list[list[float]]()
    for number, trial in enumerate(trials, 1):
        if trial.measurement.outcome == "ok" and trial.measurement.median_ms < best:
            best = trial.measurement.median_ms
            points.append([number, float(hidden.ms([trial.plan])[0])])
    return points


def searches(case: Row, missing: Sequence[tuple[int, str]], evaluations: int, is_new: bool) -> Iterator[Row]:
    """Yield rows of one program in the world of one seed, for pairs of budget and way."""
    name, program, seed = case["world"], case["program"], case["seed"]
    task = WORLDS[name][0](program)
    METHODS.update(methods_of(name, program))
    if {way for _, way in missing} & {"pretrained go", "zero-shot go"}:
        pretrained(name, program)  # its time is not that of a search
    hidden = world(task, seed)
    starts = plans_by_name(plan_all(task, SimulatedObjective(task), ("annealing",), evaluations, seed=seed))
    here = {"nodes": task.num_nodes}
    if is_new:
        plans = list(starts.values())
        fastest = plans[int(np.nanargmin(SimulatedObjective(task)(plans)))]
        yield here | {"budget": 0, "way": "start", "ms": or_none(hidden.ms([fastest])[0])}
    for budget, way in missing:
        yield here | {"budget": budget, "way": way} | searched(hidden, starts, way, budget, seed, evaluations)


def compared(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Compare each way with `none`, and each of `CONTROLS`, in each world.

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
        for one, other in CONTROLS:
            table[f"{one[0]} at {one[1]}, {other[0]} at {other[1]}"] = _ratio(ms, one, other)
        found[name] = {key: each for key, each in table.items() if each}
    return found


def _ratio(ms: Mapping[Any, float], one: tuple[str, int], other: tuple[str, int]) -> list[float]:
    """Return the `ratio_of` one runtime and the other, paired by program and seed."""
    pairs = [(value, ms.get((*other, *key[2:]))) for key, value in ms.items() if key[:2] == one]
    return ratio_of(pairs)


def run(options: argparse.Namespace) -> Row:
    """Search in all worlds; rows that the file has are kept."""
    names, ways = listed(options.worlds), listed(options.ways, WAYS)
    pairs = list(product([int(each) for each in options.budgets.split(",")], ways))
    command = f"python -m experiments.worlds.study --worlds {options.worlds} --seeds {options.seeds} "
    command += f'--budgets {options.budgets} --ways "{options.ways}" --evaluations {options.evaluations}'
    command += f" --programs {' '.join(options.programs)}" if options.programs else ""

    def rows_of(case: Row, own: Sequence[Row]) -> Iterable[Row]:
        done = {(row["budget"], row["way"]) for row in own}
        missing = [pair for pair in pairs if pair not in done]
        return searches(case, missing, options.evaluations, not own) if missing else []

    cases = [
        {"world": name, "program": program, "seed": seed}
        for name in names for seed in range(options.seeds) for program in options.programs or WORLDS[name][1]
    ]  # fmt: skip
    return collect(options.json, command, cases, rows_of, "over_none", compared)


if __name__ == "__main__":
    parser = parser_of(__doc__, "worlds", ",".join(WORLDS), "20,50,200")
    parser.add_argument("--programs", nargs="*", help="by name; those of the world if none is named")
    parser.add_argument("--ways", default=",".join(COST_WAYS), help="of %(default)s")
    main(run, parser)
