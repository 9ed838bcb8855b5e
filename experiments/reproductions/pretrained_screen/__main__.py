"""Does a screen that learned on simulated machines beat one that learns from nothing but a few measurements?

    python -m experiments.reproductions.pretrained_screen --json experiments/results/pretrained_screen.json

Screens say the logarithm of measured / simulated runtimes of plans, after some measurements with noise. All is
simulated: machines differ from what is believed as `experiments.bench.search_loop.unlike` says (kinds of operations,
single ones, devices, links, and unknown contention). Screens are judged on programs and machines that no
training saw.

- `none`: the simulator alone. `ridge`: `LinearSurrogate`, which learns from the measurements alone.
- `scratch`: `NetworkSurrogate`, likewise, on some of the cases, as it takes long.
- `network`: embeddings of operations, pooled by the time that each takes, as features of an `ErrorProcess`. An
  operation that stays where it is and reads the same devices keeps its embedding. The network is trained on the
  likelihood of the errors of many machines, with the regression on measurements in closed form (Bertinetto et al.,
  Meta-learning with Differentiable Closed-form Solvers, ICLR 2019).
- `chain`: named features of the critical chain (`ChainFeatures`) instead, whose ten units are learned in the same way.
  `both`: these and the network, trained together.
- `machines`: the covariance of the errors on 48 machines drawn as those of training are; each plan is simulated on all
  of them. It stands for what can be known beforehand.

`predictions`: errors and rank correlations among promising plans, and `regret`: how much longer than the best of them
the plan takes that a screen takes for the best. `searches`: true runtimes of the plans with which whole searches end.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64

from experiments.bench.search_loop import PretendedObjective, starts_of, unlike
from experiments.bootstrap import mean_interval
from experiments.figures.documents import table
from experiments.reproductions.pretrained_screen.prior import (
    MEDIAN_NOISE,
    Lesson,
    PretrainedSurrogate,
    Prior,
    fit,
    lesson,
)
from experiments.reproductions.pretrained_screen.process import ErrorProcess, Rows
from gst.cost.metrics import kendall_tau
from gst.execution.measure import Log
from gst.lowering.plan import Plan
from gst.machine.devices import Device, machine_record
from gst.placement.baselines.portfolio import portfolio
from gst.placement.cost_models import LinearSurrogate, NetworkSurrogate
from gst.placement.loop import Loop
from gst.placement.machines import machine
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.policies.generated_tasks import generated_task
from gst.placement.reward import Surrogate
from gst.placement.search.annealing import anneal
from gst.placement.search.random_plans import mutate, random_plans
from gst.placement.task import Task
from gst.programs import NUM_OPCODES, traced
from gst.util.progress import bar

TEST_PROGRAMS = ("inception", "rnnlm")
TRAINING_PROGRAMS = ("gpt:layers=2", "wavenet:stacks=1,layers=6", "moe:layers=1", "transformer_xl:layers=1")
MACHINES = ("sets:2", "cores:4")  # two cores, each alone or both together; four cores
TRAINING_SEED, DRAWN_SEED = 10**4, 10**6  # of the first hidden machine; those that judge begin at 0
NUM_TRAINING, NUM_DRAWN = 24, 48  # machines
PROMISING = 1.15  # simulated runtime over the least


def task_of(name: str, on: str) -> Task:
    """A program on a simulated machine. On `sets:2` the share of an operation that two cores divide depends on its
    kind and is 0.5 to 1 (Amdahl)."""
    program = traced(name)
    if on != "sets:2":
        return machine(on).task(program)
    alone = machine("cores:2").task(program).times_us[0]
    parallel = np.random.default_rng(7).uniform(0.5, 1.0, NUM_OPCODES)[program.graph.opcodes]
    together = alone * (1 - parallel / 2) + 3.0 * (alone > 0)
    devices = [Device(f"cpu:{core}", "cpu", (core,), 1, "host", "simulated") for core in range(2)]
    devices.append(Device("cpu:0-1", "cpu", (0, 1), 2, "host", "simulated"))
    return Task.of_profile(program, devices, np.stack([alone, alone, together]))


def promising_plans(task: Task, evaluations: int, mutations: int) -> tuple[int, list[Plan]]:
    """Baselines and the best of annealing (their number first), plans that annealing improved on, random ones, and
    mutations of the best."""
    generator, simulated = np.random.default_rng(5), SimulatedObjective(task)
    starts, improved = list(portfolio(task).values()), []
    for seed in range(3):
        budgeted = Budgeted(simulated, evaluations)
        anneal(task, budgeted, seed)
        improved += budgeted.improvements[-40:]
    plans = {plan.key: plan for plan in [*starts, improved[-1]]}
    num_starts = len(plans)
    others = [plan for _, plan in islice(random_plans(task), 40)]
    plans |= {plan.key: plan for plan in [*improved, *others] if plan.key not in plans}
    sources = [list(plans.values())[each] for each in np.argsort(simulated(list(plans.values())))[:12]]
    for _ in range(mutations):
        plan = sources[int(generator.integers(len(sources)))]
        for _ in range(int(generator.integers(1, 5))):
            plan = mutate(task, plan, generator)
        plans.setdefault(plan.key, plan)
    return num_starts, list(plans.values())


def measured_first(
    pool: Lesson, num_starts: int, count: int, generator: np.random.Generator
) -> Int64[np.ndarray, " count"]:
    """Plans as a search measures them: half are those it begins with, the others any of the better half."""
    starts = np.argsort(pool.simulated_ms[:num_starts])[: count // 2]
    better = np.setdiff1d(np.argsort(pool.simulated_ms)[: len(pool.simulated_ms) // 2], starts)
    return np.append(starts, generator.choice(better, count - len(starts), replace=False))


def predictions(
    pool: Lesson, measured: Int64[np.ndarray, " k"], logs: Float64[np.ndarray, " k"], queries: Int64[np.ndarray, " n"],
    rows: Mapping[str, Rows], drawn: Float64[np.ndarray, "machines plans"], scratch: int | None,
) -> Iterator[tuple[str, Float64[np.ndarray, " n"]]]:  # fmt: skip
    """Errors of the plans that are asked about, by each screen, and its name. `scratch` is the seed of that one."""
    yield "none", np.zeros(len(queries))
    surrogates: dict[str, Surrogate] = {"ridge": LinearSurrogate(pool.examples.task)}
    if scratch is not None:
        surrogates["scratch"] = NetworkSurrogate(pool.examples.task, scratch)
    for name, surrogate in surrogates.items():
        surrogate.learn([pool.examples.plans[each] for each in measured], pool.simulated_ms[measured], logs)
        yield name, surrogate([pool.examples.plans[each] for each in queries], pool.simulated_ms[queries])[0]
    mean = drawn.mean(0)
    centred = (drawn - mean).T / (len(drawn) - 1) ** 0.5
    for name, features, expected in (*((name, each, 0 * mean) for name, each in rows.items()),
                                     ("machines", centred, mean)):  # fmt: skip
        process = ErrorProcess()
        process.learn(features[measured], logs - expected[measured])
        yield name, expected[queries] + process(features[queries])[0]


def prediction_rows(
    pool: Lesson, num_starts: int, rows: Mapping[str, Rows], drawn: Float64[np.ndarray, "machines plans"],
    counts: Sequence[int], num_scratch: int,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Figures of each screen on each machine of a pool after each number of measurements."""
    for seed, errors in enumerate(pool.errors):
        generator = np.random.default_rng([seed, 77])
        noisy = errors + MEDIAN_NOISE * generator.standard_normal(len(errors))
        for count in counts:
            measured = measured_first(pool, num_starts, count, generator)
            near = np.flatnonzero(pool.simulated_ms < PROMISING * pool.simulated_ms.min())
            queries = np.setdiff1d(near, measured)
            truth = np.log(pool.simulated_ms[queries]) + errors[queries]
            scratch = seed if seed < num_scratch and count == 16 else None
            for name, answers in predictions(pool, measured, noisy[measured], queries, rows, drawn, scratch):
                expected = np.log(pool.simulated_ms[queries]) + answers
                yield {
                    "screen": name, "seed": seed, "measured": count, "plans": len(queries),
                    "error": float((answers - errors[queries]).std()),
                    "tau": kendall_tau(expected, truth),
                    "regret": float(np.exp(truth[expected.argmin()] - truth.min()) - 1),
                }  # fmt: skip


def trained_priors(options: argparse.Namespace) -> dict[str, Prior]:
    """Priors by name, learned from the programs and machines of training."""
    tasks = [task_of(name, on) for name in _names(options.trained) for on in MACHINES]
    tasks += [generated_task(seed) for seed in range(options.generated)]
    seeds = range(TRAINING_SEED, TRAINING_SEED + NUM_TRAINING)
    lessons = []
    for task in bar(tasks, desc="tasks"):
        _, plans = promising_plans(task, options.evaluations, options.mutations)
        lessons.append(lesson(task, plans, seeds))
    torch.manual_seed(0)
    return {
        "chain": fit(Prior(named=True, learned=False), lessons, options.seconds / 4, 3e-2),
        "network": fit(Prior(named=False, learned=True), lessons, options.seconds, 3e-3),
        "both": fit(Prior(named=True, learned=True), lessons, options.seconds, 3e-3),
    }


def rows_of_program(
    name: str, on: str, priors: Mapping[str, Prior], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Figures of all screens on plans of a program."""
    task = task_of(name, on)
    num_starts, plans = promising_plans(task, options.evaluations, 5 * options.mutations)
    every = lesson(task, plans, [*range(options.seeds), *range(DRAWN_SEED, DRAWN_SEED + NUM_DRAWN)])
    hidden, drawn = np.split(every.errors, [options.seeds])
    pool = Lesson(every.examples, every.simulated_ms, hidden)
    rows = {key: prior.rows(pool.examples) for key, prior in priors.items()}
    counts = [int(each) for each in _names(options.measured)]
    return [
        {"program": name, "machine": on, **row}
        for row in prediction_rows(pool, num_starts, rows, drawn, counts, options.scratch)
    ]


def search_row(
    name: str, on: str, seed: int, priors: Mapping[str, Prior], options: argparse.Namespace
) -> dict[str, Any]:
    """True milliseconds of the plans with which searches end that differ in their screen, and their seconds."""
    task = task_of(name, on)
    real, starts = unlike(task, seed), starts_of(task, seed, options.evaluations)
    row: dict[str, Any] = {"program": name, "machine": on, "seed": seed}
    surrogates: dict[str, Surrogate] = {key: PretrainedSurrogate(task, priors[key]) for key in ("chain", "both")}
    for key, surrogate in {"ridge": LinearSurrogate(task), **surrogates}.items():
        begun = time.perf_counter()
        with TemporaryDirectory() as empty:
            loop = Loop(
                task, PretendedObjective(real, seed), Log(Path(empty) / "measurements.jsonl"), starts, options.budget,
                options.evaluations, seed=seed, surrogate=surrogate,
            )  # fmt: skip
            row[f"{key}_ms"] = float(SimulatedObjective(real)([loop.run()])[0])
        row[f"{key}_s"] = time.perf_counter() - begun
    return row


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each number of measurements and screen.

    `gain` is the reduction of regret compared with ridge on the same case, in percent, with its 95 % interval
    (bootstrap over cases, as if cases that share a program or a hidden machine were independent).
    """
    case = lambda row: (row["program"], row["machine"], row["seed"], row["measured"])  # noqa: E731
    ridge = {case(row): row["regret"] for row in rows if row["screen"] == "ridge"}
    lines = []
    for count in sorted({row["measured"] for row in rows}):
        for screen in dict.fromkeys(row["screen"] for row in rows):
            mine = [row for row in rows if row["screen"] == screen and row["measured"] == count]
            if not mine:
                continue
            means = [float(np.mean([row[key] for row in mine])) for key in ("error", "tau", "regret")]
            gain, low, high = mean_interval(np.array([100 * (ridge[case(row)] - row["regret"]) for row in mine]))
            words = [f"{means[0]:.4f}", f"{means[1]:.3f}", f"{100 * means[2]:.2f} %"]
            lines.append([str(count), screen, str(len(mine)), *words, f"{gain:+.2f} [{low:+.2f}, {high:+.2f}]"])
    return table(["measured", "screen", "cases", "error", "tau", "regret", "gain"], lines)


def gains(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float, float]]:
    """Return the ratios of plan times, ridge over other screens: geometric means with 95 % intervals.

    Intervals are bootstrapped over searches, as if those that share a program or a hidden machine were independent.
    """
    ratios = {key: np.log([row["ridge_ms"] / row[f"{key}_ms"] for row in rows]) for key in ("chain", "both")}
    exponentials = {key: np.exp(mean_interval(each)).tolist() for key, each in ratios.items()}
    return {key: (mean, low, high) for key, (mean, low, high) in exponentials.items()}


def _names(words: str) -> list[str]:
    """Names in a list with semicolons, as commas are part of names."""
    return [name for name in words.split(";") if name]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--trained", default=";".join(TRAINING_PROGRAMS), help="programs to learn from, with semicolons between"
    )
    parser.add_argument("--generated", type=int, default=6, help="generated tasks to learn from")
    parser.add_argument("--seconds", type=float, default=90.0, help="of training each network")
    parser.add_argument(
        "--judged", default=";".join(TEST_PROGRAMS), help="programs to judge on, with semicolons between"
    )
    parser.add_argument("--seeds", type=int, default=10, help="machines to judge predictions on")
    parser.add_argument("--scratch", type=int, default=1, help="of them, to judge networks from scratch on")
    parser.add_argument("--searches", type=int, default=4, help="machines to search on")
    parser.add_argument("--measured", default="8;12;16;24", help="numbers of measurements of predictions")
    parser.add_argument("--budget", type=int, default=16, help="measurements of a search")
    parser.add_argument("--evaluations", type=int, default=500, help="plans of each annealing")
    parser.add_argument("--mutations", type=int, default=120, help="plans of each task; five times as many judged")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    priors = trained_priors(options)
    settings = {key: value for key, value in vars(options).items() if key != "json"}
    result: dict[str, Any] = {
        "simulated": True, "settings": settings, "machine": machine_record(), "predictions": [], "searches": [],
        "command": shlex.join([
            "python", "-m", "experiments.reproductions.pretrained_screen",
            *(sys.argv[1:] if arguments is None else arguments),
        ]),
    }  # fmt: skip
    cases = [(name, on) for name in _names(options.judged) for on in MACHINES]
    for name, on in bar(cases, desc="predictions"):
        result["predictions"] += rows_of_program(name, on, priors, options)
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(summary(result["predictions"]))
    for seed, (name, on) in bar([(seed, case) for seed in range(options.searches) for case in cases], desc="searches"):
        result["searches"].append(search_row(name, on, seed, priors, options))
        result["gains"] = gains(result["searches"])
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(result["gains"])


if __name__ == "__main__":
    main()
