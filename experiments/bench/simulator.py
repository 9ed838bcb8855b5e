"""Agreement of the simulator with measured runtimes and memory of random plans.

python -m experiments.bench simulator --programs rnnlm --plans 30
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import spearmanr

from gst.execution.executor import NativeExecutor, measure_costs, runs_in_turns
from gst.execution.measure import Measurement, measure
from gst.lowering.plan import Plan
from gst.machine.devices import discover, machine_record, select
from gst.machine.load import LoadGate
from gst.placement.search.neighbourhoods import random_plans
from gst.placement.task import Task
from gst.programs import WORKLOADS, traced
from gst.simulation.copies import peak_bytes
from gst.simulation.simulator import Contention, Simulator, fit
from gst.util.progress import Progress, no_progress

NUM_CALIBRATION = 16  # plans to learn contention from; they are not among those that are judged
IDEAL = Contention(switch_us=0.0, hand_over_us=0.0, wake_us=0.0)


HELP = {"plans": "of each program"}
COLUMNS = ("spearman", "mape", "peak_error_worst", "evaluations_per_second")


def run(
    programs: tuple[str, ...] = tuple(WORKLOADS),
    plans: int = 100,
    repetitions: int = 5,
    seed: int = 0,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Measure random plans of each program over two cores and the set of both, and simulate them with costs and
    contention measured before and after. The runtime of a plan is that of its fastest run, since other load only ever
    makes a run slower.

    Returns:
        machine, and for each of `workloads`: num_nodes, plans, spearman and mape of simulated against measured
        runtimes, the same of an `ideal` simulator that knows of no contention and no hand-over and of every other
        repetition against the rest (`repeats`: what noise leaves), peak_error (mean) and
        peak_error_worst of the memory that simulated plans take, evaluations_per_second on one core, the learned
        contention, measured and simulated milliseconds of each plan, and whether the machine was quiet.
    """
    workloads = {}
    for done, name in enumerate(programs):
        progress(f"measuring plans of {name}", done, len(programs))
        workloads[name] = _one(name, plans, repetitions, seed)
    progress("measured", len(programs), len(programs))
    return {"machine": machine_record(), "workloads": workloads}


class Ran(NamedTuple):
    """Plans of a program that ran on cores of this machine.

    Args:
        task: with costs and contention as measured before and after.
        samples_ms: (plans, repetitions).
        peaks: bytes.
        seen: what `measure` says of each plan.
    """

    task: Task
    plans: list[Plan]
    samples_ms: np.ndarray
    peaks: np.ndarray
    seen: list[Measurement]


def measured_plans(name: str, num_plans: int, repetitions: int, seed: int) -> Ran:
    """Measure random plans of a program over the first two cores and the set of both."""
    program = traced(name)
    devices = select(["cpu:0", "cpu:1", "cpu:0-1"], discover())
    with NativeExecutor(program, devices) as executor:
        moments = [measure_costs(executor)]
        task = Task.of_profile(program, devices, moments[0].times_us)
        plans = [plan for _, plan in islice(random_plans(task, seed), NUM_CALIBRATION + num_plans)]
        judged = plans[: len(plans) - NUM_CALIBRATION]
        runs = {str(number): partial(executor.run, plan) for number, plan in enumerate(judged)}
        seen = measure(runs, repetitions, 1, LoadGate())
        samples = np.array([seen[label].samples_ms for label in runs])
        moments.append(measure_costs(executor))
        learned = runs_in_turns(executor, plans[len(judged) :])
        peaks = np.array([_peak(executor, plan) for plan in judged])
        moments.append(measure_costs(executor))
    costs = replace(moments[0], times_us=np.min([each.times_us for each in moments], axis=0))
    task = Task.of_program(program, costs, fit(costs, learned))
    return Ran(task, judged, samples, peaks, list(seen.values()))


def _one(name: str, num_plans: int, repetitions: int, seed: int) -> dict[str, Any]:
    task, judged, samples, peaks, seen = measured_plans(name, num_plans, repetitions, seed)
    costs, contention, measured = task.costs, task.contention, samples.min(1)
    simulator = Simulator(costs, contention)
    simulated = simulator.makespans(judged) / 1e3
    ideal = Simulator(costs, IDEAL).makespans(judged) / 1e3
    peak_errors = np.abs(np.array([peak_bytes(costs, simulator.run(plan))["host"] for plan in judged]) / peaks - 1)
    return {
        "num_nodes": task.num_nodes, "plans": len(judged),
        **_agreement(simulated, measured), "ideal": _agreement(ideal, measured),
        "repeats": _agreement(samples[:, 1::2].min(1), samples[:, ::2].min(1)),
        "peak_error": float(peak_errors.mean()), "peak_error_worst": float(peak_errors.max()),
        "evaluations_per_second": _speed(simulator, judged),
        "contention": contention._asdict(),
        "measured_ms": measured.round(3).tolist(), "simulated_ms": simulated.round(3).tolist(),
        "quiet": all(each.quiet for each in seen), "load": seen[0].load,
    }  # fmt: skip


def _peak(executor: NativeExecutor, plan: Plan) -> int:
    executor.run(plan)
    return executor.last_timeline.peak_bytes


def _agreement(simulated: np.ndarray, measured: np.ndarray) -> dict[str, float]:
    mape = float(np.abs(simulated / measured - 1).mean())
    return {"spearman": float(spearmanr(simulated, measured).statistic), "mape": mape}


def _speed(simulator: Simulator, plans: Sequence[Plan], seconds: float = 1.0) -> float:
    """Plans simulated in a second on this thread."""
    done, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        simulator.run(plans[done % len(plans)])
        done += 1
    return done / elapsed
