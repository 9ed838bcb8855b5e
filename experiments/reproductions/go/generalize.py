"""GO's generalisation (Zhou et al., NeurIPS 2020: GO-generalization with and without fine-tuning) on our workloads, one
family of programs left out at a time: a policy that has learned on the others and on generated graphs plans programs
it never saw, by one pass (`zero_shot`), and after fewer than 50 steps of fine-tuning; beside GO-one, which learns on
that program alone with as many plans, and beside the best of the portfolio. And how many plans HDP asks about until
its best, and the tuned policy until it is as good: with the plans that list schedules make of it, and without.

    python -m experiments.reproductions.go.generalize

Simulated. The plans of one pass are those that list schedules make of the policy's probabilities; a uniform policy
through the same decoder does as well. It learns by imitation of what annealing finds
(`experiments.reproductions.go.pretraining`). Policies are kept in `--policies`, so that the command goes on where it
was stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from experiments.random_tasks import generated_task
from experiments.reproductions.go.imitation import Example, imitate
from experiments.reproductions.go.pretraining import examples, fine_tune, load_policy, save_policy, zero_shot
from experiments.reproductions.hdp.method import hdp_training
from experiments.reproductions.placement_tables import first_as_good
from gst.machine.devices import machine_record
from gst.placement.baselines.portfolio import portfolio
from gst.placement.machines import machine
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.policies.go import GO, GoTraining
from gst.placement.task import Task
from gst.programs import traced

FAMILIES = {
    "recurrent": ("rnnlm:steps=6", "gnmt:layers=2,steps=4"),
    "attention": ("gpt", "transformer_xl:layers=2,segments=2", "moe"),
    "convolution": ("inception", "wavenet"),
}
MACHINES = ("gpus:2", "gpus:4", "cores:2", "cores:4")
GENERATED = 60  # graphs of the generator
HDP_PLANS = 500  # as in the tables of placement on one graph


def learned(known: list[Example], path: Path, steps: int, seed: int) -> GO:
    """The policy of that file, or one that imitates these examples."""
    if path.exists():
        return load_policy(path)
    torch.manual_seed(seed)
    policy = GO(("placement", "schedule"))
    with tqdm(desc=f"learning {path.stem}", total=steps, dynamic_ncols=True) as bar:
        imitate(policy, known, steps, seed=seed, progress=lambda what, done, total: bar.update(done - bar.n))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_policy(policy, path)
    return policy


def compare(policy: GO, task: Task, plans: int, seed: int) -> dict[str, Any]:
    """Compare a policy on a task with the portfolio, GO-one and HDP, in milliseconds.

    `hdp_plans` is the number of plans until HDP's best, `as_good_as_hdp_after` that until the tuned policy has one as
    good (None: never), and `drawn_as_good_as_hdp_after` the same without list schedules.
    """
    started = time.perf_counter()
    shot = zero_shot(policy, task, seed=seed)
    seconds = time.perf_counter() - started
    tuned, alone = (Budgeted(SimulatedObjective(task), plans) for _ in range(2))
    drawn, weaker = (Budgeted(SimulatedObjective(task), HDP_PLANS) for _ in range(2))
    fine_tune(policy, task, tuned, seed)
    fine_tune(policy, task, drawn, seed, listed=False)
    GoTraining(task, seed).run(alone)
    hdp_training(task, seed).run(weaker)
    return {
        "num_nodes": task.num_nodes,
        "portfolio_ms": float(np.nanmin(SimulatedObjective(task)(list(portfolio(task).values())))),
        "zero_shot_ms": shot.simulated_ms[0], "zero_shot_s": seconds, "fine_tuned_ms": tuned.best_ms,
        "go_one_ms": alone.best_ms, "hdp_ms": weaker.best_ms, "hdp_plans": weaker.curve[-1][0],
        "as_good_as_hdp_after": first_as_good(tuned.curve, weaker.best_ms),
        "drawn_as_good_as_hdp_after": first_as_good(drawn.curve, weaker.best_ms),
    }  # fmt: skip


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """Geometric means over programs and machines; above 1 is faster than the portfolio, or than GO-one. `sooner`: times
    fewer plans than HDP, median and least; 0 where it never was as good."""
    ratio = {
        "zero_shot_over_portfolio": [each["portfolio_ms"] / each["zero_shot_ms"] for each in rows.values()],
        "fine_tuned_over_portfolio": [each["portfolio_ms"] / each["fine_tuned_ms"] for each in rows.values()],
        "fine_tuned_over_go_one": [each["go_one_ms"] / each["fine_tuned_ms"] for each in rows.values()],
    }
    found = {key: statistics.geometric_mean(values) for key, values in ratio.items()}
    for key, after in (("sooner", "as_good_as_hdp_after"), ("drawn_sooner", "drawn_as_good_as_hdp_after")):
        times = [each["hdp_plans"] / each[after] if each[after] else 0.0 for each in rows.values()]
        found |= {key: statistics.median(times), f"{key}_least": min(times)}
    slowest_s = max(each["zero_shot_s"] for each in rows.values())
    return found | {"zero_shot_worst": min(ratio["zero_shot_over_portfolio"]), "zero_shot_slowest_s": slowest_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evaluations", type=int, default=800, help="simulated plans of each teacher")
    parser.add_argument("--steps", type=int, default=400, help="of imitation")
    parser.add_argument("--plans", type=int, default=200, help="simulated plans of fine-tuning and of GO-one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policies", type=Path, default=Path("runs/policies"))
    parser.add_argument("--json", type=Path, default=Path("experiments/results/go_generalize.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    tasks = {
        family: [(f"{name} on {each}", machine(each).task(traced(name))) for name in names for each in MACHINES]
        for family, names in FAMILIES.items()
    }
    made = [generated_task(seed) for seed in range(GENERATED)]
    taught = {"generated": made} | {family: [task for _, task in few] for family, few in tasks.items()}
    known: dict[str, list[Example]] = {}
    rows: dict[str, Any] = json.loads(options.json.read_text())["rows"] if options.json.exists() else {}
    for left_out, few in tasks.items():
        path = options.policies / f"without_{left_out}.pt"
        if not path.exists():
            for family in taught.keys() - known.keys():
                with tqdm(desc=f"plans to imitate, {family}", dynamic_ncols=True) as bar:
                    known[family] = examples(taught[family], options.evaluations, progress=lambda *_: bar.update())
        others = [each for family, several in known.items() if family != left_out for each in several]
        policy = learned(others, path, options.steps, options.seed)
        for key, task in tqdm(few, desc=f"planning {left_out}", dynamic_ncols=True):
            if key in rows:
                continue
            rows[key] = {"family": left_out, **compare(policy, task, options.plans, options.seed)}
            result = {
                "rows": rows, "summary": summary(rows), "machine": machine_record(),
                "settings": {name: getattr(options, name) for name in ("evaluations", "steps", "plans", "seed")},
                "command": "python -m experiments.reproductions.go.generalize",
            }  # fmt: skip
            options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
