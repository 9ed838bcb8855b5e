"""A job shop placed: rules, the policy and tabu search, and the gap of the best schedule to a lower bound."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.reproductions.jobshop.graph import starts_of
from experiments.reproductions.jobshop.network import Weights, load_weights
from experiments.reproductions.jobshop.problem import JobShop, read_job_shop
from experiments.reproductions.jobshop.search import Schedule, rule_schedules, samples, search
from gst.util.writing import atomic_write


def place(
    file: Path, out: Path | None = None, seconds: float = 10.0, policy: str = "shipped", seed: int = 0
) -> dict[str, Any]:
    """Place a job shop, write `plan.json`, and return the result.

    Args:
        file: in the usual text format or Taillard's.
        out: directory of the plan; `runs/place/FILE` if None.
        seconds: of tabu search.
        policy: file of weights, 'shipped' or 'none'.

    Raises:
        ValueError: the file is not readable, or the seconds are negative.
    """
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"--seconds is {seconds}, want 0 or more")
    weights = None if policy == "none" else load_weights(None if policy == "shipped" else Path(policy))
    shop = read_job_shop(file)
    plans, best = schedules(shop, weights, seconds, seed)
    path = (out or Path("runs/place") / file.stem) / "plan.json"
    starts = starts_of(shop, best.order)
    record = {
        "graph": file.name, "format": "jobshop", "makespan": best.makespan, "lower_bound": best.lower_bound,
        "order": best.order.tolist(), "begin": starts.tolist(), "end": (starts + shop.times).tolist(),
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as opened:
        opened.write(json.dumps(record))
    return {
        "graph": file.name, "format": "jobshop", "jobs": shop.num_jobs, "machines": shop.num_machines, "plans": plans,
        "objective": best.makespan, "lower_bound": best.lower_bound,
        "gap": best.makespan / max(best.lower_bound, 1) - 1, "proved": best.makespan == best.lower_bound,
        "plan_file": str(path),
    }  # fmt: skip


def schedules(shop: JobShop, weights: Weights | None, seconds: float, seed: int) -> tuple[dict[str, int], Schedule]:
    """Makespans by name, and the best schedule: that of the search, which begins with the policy's, or with the rules'
    if there are no weights.

    Examples:
        >>> from experiments.reproductions.jobshop.problem import parse_job_shop
        >>> shop = parse_job_shop("2 2\\n0 3 1 2\\n1 2 0 4\\n")
        >>> schedules(shop, None, 0.0, 0)[0]
        {'best rule': 7, 'search': 7}
    """
    rules = rule_schedules(shop)
    plans = {"best rule": rules[0][0]}
    if weights is not None:
        plans["policy"] = samples(shop, weights, seed, 1)[0][0][0]
    best = search(shop, rules if weights is None else None, seconds, seed, weights)
    plans["search"] = best.makespan
    return plans, best


def table(result: Mapping[str, Any]) -> str:
    """The result for people: a line for each schedule, the shortest first.

    Examples:
        >>> print(table({"graph": "a.txt", "jobs": 2, "machines": 2, "plans": {"search": 7}, "objective": 7,
        ...              "lower_bound": 7, "gap": 0.0, "proved": True}))
        a.txt (job shop): 2 jobs on 2 machines
        plan         makespan  over bound
        search              7        0.0%
        no schedule takes less than 7; the best takes 7, which is proved to be the least
    """
    bound = max(result["lower_bound"], 1)
    lines = [f"{result['graph']} (job shop): {result['jobs']} jobs on {result['machines']} machines",
             f"{'plan':<10}  {'makespan':>9}  over bound"]  # fmt: skip
    for name, span in sorted(result["plans"].items(), key=lambda item: item[1]):
        lines.append(f"{name:<10}  {span:>9,}  {span / bound - 1:10.1%}")
    gap = "which is proved to be the least" if result["proved"] else f"at most {result['gap']:.2%} above the least"
    end = f"no schedule takes less than {result['lower_bound']:,}; the best takes {result['objective']:,}, {gap}"
    return "\n".join([*lines, end])
