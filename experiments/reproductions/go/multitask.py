"""GO's joint optimization of placement, schedule and fusion (Zhou et al., NeurIPS 2020) on our workloads.

It is compared with the same policy trained for each task by itself, and with placement alone, at equal budgets.

    python -m experiments.reproductions.go.multitask

Simulated by `fused_costs.py`: a fused group is one operation of the roofline. `joint`: one policy decides all three.
`separate`: a third of the budget for placement, then for the schedule under that placement, then for fusion under both.
`placement`: placement alone, in program order, nothing fused. Ratios are of medians over seeds.

The recorded figures are withdrawn: simulated groups of operations become one launch where no compiler could fuse them.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64
from tqdm import tqdm

from experiments.reproductions.go.fused_costs import FusedObjective
from gst.lowering.fusion import legalise
from gst.lowering.plan import Plan
from gst.machine.devices import machine_record
from gst.placement.machines import machine
from gst.placement.objectives import Budgeted
from gst.placement.planning import TASKS
from gst.placement.policies.go import GoTraining
from gst.programs import traced


class _With:
    """A runtime of plans in which one decision varies, and all others are those of `base`."""

    def __init__(self, runtime: FusedObjective, base: Plan, decision: str) -> None:
        self.runtime, self.base, self.decision = runtime, base, decision

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        return self.runtime([self.of(plan) for plan in plans])

    def of(self, plan: Plan) -> Plan:
        """Groups of a plan with other placements are cut where they would lie on two devices."""
        if self.decision == "schedule":
            return replace(self.base, priority=plan.priority)
        if plan.fusion is None:
            return self.base
        return replace(self.base, fusion=legalise(self.runtime.program, plan.fusion, self.base.placement))


def joint(runtime: FusedObjective, evaluations: int, seed: int, tasks: Sequence[str] = TASKS) -> float:
    budgeted = Budgeted(runtime, evaluations)
    GoTraining(runtime.task, seed, tasks=tasks).run(budgeted)
    return budgeted.best_ms


def separate(runtime: FusedObjective, evaluations: int, seed: int) -> float:
    budgeted = Budgeted(runtime, evaluations // 3)
    GoTraining(runtime.task, seed).run(budgeted)
    best, best_ms = budgeted.best, budgeted.best_ms
    for decision in TASKS[1:]:
        assert best is not None
        only = _With(runtime, best, decision)
        budgeted = Budgeted(only, evaluations // 3)
        GoTraining(runtime.task, seed, tasks=("placement", decision)).run(budgeted)
        if budgeted.best is not None and budgeted.best_ms < best_ms:
            best, best_ms = only.of(budgeted.best), budgeted.best_ms
    return best_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default="rnnlm,gnmt,wavenet,inception,gpt")
    parser.add_argument("--machine", default="gpus:2")
    parser.add_argument("--evaluations", type=int, default=1_500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path("experiments/results/go_multitask.json"))
    options = parser.parse_args()
    rows: dict[str, Any] = json.loads(options.json.read_text())["rows"] if options.json.exists() else {}
    for name in tqdm([each for each in options.programs.split(",") if each not in rows], dynamic_ncols=True):
        runtime = FusedObjective(machine(options.machine), traced(name))
        seeds, budget = range(options.seeds), options.evaluations
        rows[name] = {
            "joint_ms": [joint(runtime, budget, seed) for seed in seeds],
            "separate_ms": [separate(runtime, budget, seed) for seed in seeds],
            "placement_ms": [joint(runtime, budget, seed, ("placement",)) for seed in seeds],
        }
        median = {key: statistics.median(each) for key, each in rows[name].items()}
        rows[name]["over_separate"] = median["separate_ms"] / median["joint_ms"]
        rows[name]["over_placement"] = median["placement_ms"] / median["joint_ms"]
        settings = {"machine": options.machine, "evaluations": budget, "seeds": options.seeds}
        result = {
            "rows": rows, "settings": settings, "machine": machine_record(),
            "command": f"python -m experiments.reproductions.go.multitask --evaluations {budget} "
            f"--seeds {options.seeds}",
        }  # fmt: skip
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    for name, each in rows.items():
        print(f"{name}: separate / joint {each['over_separate']:.3f}, placement / joint {each['over_placement']:.3f}")


if __name__ == "__main__":
    main()
