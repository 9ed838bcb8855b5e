"""Models of plans on the cores of this machine: how well each predicts the plans of a program that it never saw.

    python -m experiments.worlds.cores

Random plans of each program run over two cores and the set of both. Each program is left out once; the models of
`experiments.worlds.sequence` learn from the plans of the others, and predict its plans.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from experiments.bench.simulator import measured_plans
from experiments.bootstrap import mean_interval
from experiments.worlds.sequence import MODELS, Known, predictions
from experiments.worlds.world import WORLDS
from gst.machine.devices import machine_record
from gst.placement.fitted import FittedSimulator
from gst.placement.objectives import SimulatedObjective
from gst.placement.reward import Learned
from gst.util.progress import bar
from gst.util.writing import write_json

REPETITIONS = 5


def run(programs: Sequence[str], num_plans: int, seed: int = 0) -> dict[str, Any]:
    """Measure plans, and return `rows` (one of each program and model, and `repeats`: every other run against the rest)
    and their means in `compared`."""
    known, rows = [], []
    for name in bar(programs):
        ran = measured_plans(name, num_plans, REPETITIONS, seed)
        known.append(Known(ran.task, ran.plans, ran.samples_ms.min(1)))
        one, other = ran.samples_ms[:, ::2].min(1), ran.samples_ms[:, 1::2].min(1)
        figures = {"spearman": float(spearmanr(one, other).statistic), "error": float(np.abs(one / other - 1).mean())}
        rows.append({"program": name, "model": "repeats", "plans": len(ran.plans), **figures})
    for number, (name, asked) in enumerate(zip(programs, known, strict=True)):
        others = known[:number] + known[number + 1 :]
        learned: Learned = {}
        for each in others:
            model = FittedSimulator(each.task, learned)
            model.learn(each.plans, SimulatedObjective(each.task)(each.plans), each.logs)
            learned = model.learned()
        rows += [{"program": name, **row} for row in predictions(asked, others, learned, seed)]
    means = {
        f"{what} of {model}": mean_interval([row[what] for row in rows if row["model"] == model])
        for model in ("repeats", *MODELS)
        for what in ("spearman", "error")
    }
    return {"rows": rows, "compared": means, "machine": machine_record()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="*", default=WORLDS["streams"][1], help="by name (default: %(default)s)")
    parser.add_argument("--plans", type=int, default=100, help="of each program (default: %(default)s)")
    results = Path("experiments/results/worlds_cores.json")
    parser.add_argument("--json", type=Path, default=results, help="(default: %(default)s)")
    options = parser.parse_args()
    command = f"python -m experiments.worlds.cores --programs {' '.join(options.programs)} --plans {options.plans}"
    write_json(options.json, {"command": command, **run(options.programs, options.plans)})


if __name__ == "__main__":
    main()
