"""Does a model predict plans of a program that it never saw, on the cores of this machine?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from experiments.bench.simulator import measured_plans
from experiments.bootstrap import mean_interval
from experiments.worlds.sequence import MODELS, Known, predictions
from gst.machine.devices import machine_record
from gst.placement.fitted import FittedSimulator
from gst.placement.objectives import SimulatedObjective
from gst.placement.reward import Learned
from gst.util.progress import Progress, no_progress


def bench(
    names: Sequence[str], num_plans: int = 40, repetitions: int = 15, seed: int = 0, progress: Progress = no_progress
) -> dict[str, Any]:
    """Measure random plans of each program; then leave each program out once, and predict its plans by the models of
    `experiments.worlds.sequence`, which learn from the plans of the others.

    Returns:
        machine; `rows`, one of each program and model, and `repeats`: the other runs of the same plans; means of rank
        correlations and errors with their intervals in `compared`; the milliseconds of each plan in `workloads`.
    """
    known, rows, workloads = [], [], {}
    for done, name in enumerate(names):
        progress(f"measuring plans of {name}", done, 2 * len(names))
        ran = measured_plans(name, num_plans, repetitions, seed)
        known.append(Known(ran.task, ran.plans, ran.samples_ms.min(1)))
        one, other = ran.samples_ms[:, ::2].min(1), ran.samples_ms[:, 1::2].min(1)
        figures = {"spearman": float(spearmanr(one, other).statistic), "error": float(np.abs(one / other - 1).mean())}
        rows.append({"program": name, "model": "repeats", "plans": len(ran.plans), **figures})
        simulated = SimulatedObjective(ran.task)(ran.plans).round(3).tolist()
        workloads[name] = {"measured_ms": known[-1].ms.round(3).tolist(), "simulated_ms": simulated}
    for number, (name, asked) in enumerate(zip(names, known, strict=True)):
        progress(f"predicting plans of {name}", len(names) + number, 2 * len(names))
        others = known[:number] + known[number + 1 :]
        rows += [{"program": name, **row} for row in predictions(asked, others, learned(others), seed)]
    progress("predicted", 2 * len(names), 2 * len(names))
    means = {
        f"{what} of {model}": mean_interval([row[what] for row in rows if row["model"] == model])
        for model in ("repeats", *MODELS)
        for what in ("spearman", "error")
    }
    return {"machine": machine_record(), "rows": rows, "compared": means, "workloads": workloads}


def learned(known: Sequence[Known]) -> Learned:
    """Return the costs learned of one program after the other."""
    costs: Learned = {}
    for each in known:
        model = FittedSimulator(each.task, costs)
        model.learn(each.plans, SimulatedObjective(each.task)(each.plans), each.logs)
        costs = model.learned()
    return costs
