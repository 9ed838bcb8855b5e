"""`gst place --graph FILE` for a job shop: rules, the policy and tabu search, and how far the best is from a bound."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.reproductions.jobshop.graph import starts_of
from experiments.reproductions.jobshop.network import Weights, load_weights
from experiments.reproductions.jobshop.problem import JobShop, read_job_shop
from experiments.reproductions.jobshop.search import Schedule, rule_schedules, samples, search
from gst.util.writing import atomic_write


def is_job_shop(path: Path) -> bool:
    """Whether a file's first line that begins with a number holds two integers or more and no more words: those of
    other published problems do not.

    Examples:
        >>> _ = Path("shop.txt").write_text("2 2\\n0 3 1 2\\n1 2 0 4\\n")
        >>> is_job_shop(Path("shop.txt"))
        True
    """
    try:
        with path.open(encoding="utf-8") as file:
            for line in file.read(4096).splitlines():
                if line.strip()[:1].isdigit():
                    return re.fullmatch(r"\s*\d+(\s+\d+)+\s*", line) is not None
    except (OSError, UnicodeDecodeError):
        pass
    return False


def place_by_options(options: Namespace) -> dict[str, Any]:
    """Do what `gst place --graph FILE` asks where the file is a job shop, and write `plan.json`.

    Raises:
        ValueError: the file is not readable, or options are given that a job shop has no use for.
    """
    useless = (options.program, options.machine, options.devices, options.memory_limit, options.trace)
    if any(useless) or options.resume or options.again or isinstance(options.workers, str):
        raise ValueError(
            f"{options.graph} is a job shop, whose machines it names; give --graph, --seconds, --policy, --seed, --out "
            "alone"
        )
    seconds = 10.0 if options.seconds is None else options.seconds
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"--seconds is {seconds}, want 0 or more")
    weights = None
    if options.policy != "none":
        weights = load_weights(None if options.policy == "shipped" else Path(options.policy))
    shop = read_job_shop(options.graph)
    plans, best = schedules(shop, weights, seconds, options.seed)
    path = (options.out or Path("runs/place") / options.graph.stem) / "plan.json"
    result = {
        "command": options.command, "graph": options.graph.name, "format": "jobshop", "jobs": shop.num_jobs,
        "machines": shop.num_machines, "plans": plans, "objective": best.makespan, "lower_bound": best.lower_bound,
        "gap": best.makespan / max(best.lower_bound, 1) - 1, "proved": best.makespan == best.lower_bound,
        "plan_file": str(path),
    }  # fmt: skip
    starts = starts_of(shop, best.order)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "graph": options.graph.name, "format": "jobshop", "makespan": best.makespan, "lower_bound": best.lower_bound,
        "order": best.order.tolist(), "begin": starts.tolist(), "end": (starts + shop.times).tolist(),
    }  # fmt: skip
    with atomic_write(path) as file:
        file.write(json.dumps(record))
    return result


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
