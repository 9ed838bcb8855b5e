"""Predictions for plans of programs that a model has not seen, compared with measurements on this machine.

python -m experiments.bench unseen --programs rnnlm,gpt --plans 20
"""

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
from gst.placement.objectives import Learned, SimulatedObjective
from gst.programs import WORKLOADS
from gst.util.progress import Progress, no_progress

HELP = {"plans": "of each program"}


def run(
    programs: tuple[str, ...] = tuple(WORKLOADS),
    plans: int = 40,
    repetitions: int = 15,
    seed: int = 0,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Measure random plans of each program; then leave each program out once, and predict its plans by the models of
    `experiments.worlds.sequence`, which learn from the plans of the others.

    Returns:
        machine; `rows`, one of each program and model, and `repeats`: the other runs of the same plans; means of rank
        correlations and errors with their intervals in `compared`; the milliseconds of each plan in `workloads`.
    """
    known, rows, workloads = [], [], {}
    for done, name in enumerate(programs):
        progress(f"measuring plans of {name}", done, 2 * len(programs))
        ran = measured_plans(name, plans, repetitions, seed)
        known.append(Known(ran.task, ran.plans, ran.samples_ms.min(1)))
        one, other = ran.samples_ms[:, ::2].min(1), ran.samples_ms[:, 1::2].min(1)
        figures = {"spearman": float(spearmanr(one, other).statistic), "error": float(np.abs(one / other - 1).mean())}
        rows.append({"program": name, "model": "repeats", "plans": len(ran.plans), **figures})
        simulated = SimulatedObjective(ran.task)(ran.plans).round(3).tolist()
        workloads[name] = {"measured_ms": known[-1].ms.round(3).tolist(), "simulated_ms": simulated}
    for number, (name, asked) in enumerate(zip(programs, known, strict=True)):
        progress(f"predicting plans of {name}", len(programs) + number, 2 * len(programs))
        others = known[:number] + known[number + 1 :]
        rows += [{"program": name, **row} for row in predictions(asked, others, learned(others), seed)]
    progress("predicted", 2 * len(programs), 2 * len(programs))
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
