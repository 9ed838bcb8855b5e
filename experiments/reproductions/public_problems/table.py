"""The published layer graphs for latency: human experts, our search, and how far both are from the best there is.

    python -m experiments.reproductions.public_problems table --json experiments/results/public_graphs.json

Latency is the published objective (Tarnawski et al., NeurIPS 2020), in ms. `expert` is the published split. Where the
accelerators of the graph are too few or too small for it, `expert_admitted` is false, its latency is what it would take
with as many and as large ones as it uses, and `best_with_expert_means` is what our search finds with those.
`portfolio` is the best baseline, `annealing` the search of `gst.placement.search.annealing` with 2,000
evaluations and `best` that of `published`, each with as many seeds as asked: median, least and
greatest. `contiguous` is
the best plan with one call per accelerator, `exact` that of all plans, both by CP-SAT from our best plan on, with the
bound and whether it is proved. `lower_bound` is of the longest path alone. A graph whose results are in the file
already is left as it is; `--graph` asks about one again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reproductions.public_problems.cost_graphs import (
    CostGraph,
    read_cost_graph,
    read_split,
    task_of_cost_graph,
)
from experiments.reproductions.public_problems.exact.cost_graphs import published_optimum
from experiments.reproductions.public_problems.published import PublishedObjective, published_bound, search_published
from gst.lowering.plan import Plan
from gst.machine.devices import machine_record
from gst.placement.baselines.portfolio import portfolio
from gst.placement.objectives import Budgeted
from gst.placement.search.annealing import anneal
from gst.placement.task import Task

DATA = Path("../shared/data/placement")
NAMES = ("bert24_inference", "gnmt_inference", "inceptionv3_inference", "resnet50_inference")
EVALUATIONS = 2_000


def study(graph: CostGraph, expert: Plan, seeds: int, steps: int, limit_s: float) -> dict[str, Any]:
    """Everything about one graph."""
    runtime, task = PublishedObjective(graph), task_of_cost_graph(graph)
    admitted = _admitted(runtime, expert)
    means = _means(graph, expert)
    baselines = runtime(list(portfolio(task).values()))
    annealed = _repeated(lambda seed: _annealed(task, runtime, seed), seeds)
    start = [expert] if admitted else []
    plans: list[Plan] = []

    def searched(seed: int) -> float:
        plans.append(search_published(graph, seed, steps, start))
        return float(runtime([plans[-1]])[0])

    best = _repeated(searched, seeds)
    hint = plans[int(np.argmin(best["each"]))]
    record: dict[str, Any] = {
        "nodes": graph.num_nodes, "accelerators": graph.num_accelerators, "lower_bound": published_bound(graph),
        "expert": float(PublishedObjective(means)([expert])[0]), "expert_admitted": admitted,
        "best_with_expert_means": float(PublishedObjective(means)([search_published(means, 0, steps, [expert])])[0]),
        "portfolio": float(np.nanmin(baselines)) if np.isfinite(baselines).any() else None,
        "annealing": annealed, "best": best, "steps": steps, "limit_s": limit_s,
    }  # fmt: skip
    for label, contiguous in (("contiguous", True), ("exact", False)):
        started = time.perf_counter()
        found = published_optimum(graph, limit_s, hint, contiguous)
        record[label] = {
            "latency": found.objective_ms, "bound": found.bound_ms, "proved": found.proved,
            "seconds": time.perf_counter() - started,
        }  # fmt: skip
    record["at_most_expert"] = record["best_with_expert_means"] <= record["expert"] + 1e-6
    return record


def _admitted(runtime: PublishedObjective, plan: Plan) -> bool:
    try:
        return bool(np.isfinite(runtime([plan])[0]))
    except ValueError:  # it names an accelerator that the graph has not
        return False


def _means(graph: CostGraph, plan: Plan) -> CostGraph:
    """The graph with accelerators as many and as large as the plan uses, if it has not that already."""
    names = [plan.devices[place] for place in np.unique(plan.placement)]
    taken = np.bincount(plan.placement, graph.sizes, len(plan.devices))
    largest = max((taken[plan.devices.index(name)] for name in names if name.startswith("accelerator")), default=0.0)
    count = sum(name.startswith("accelerator") for name in names)
    return replace(
        graph, memory_limit=max(graph.memory_limit, float(largest)),
        num_accelerators=max(graph.num_accelerators, count),
    )  # fmt: skip


def _annealed(task: Task, runtime: PublishedObjective, seed: int) -> float:
    budgeted = Budgeted(runtime, EVALUATIONS)
    anneal(task, budgeted, seed, start=[*portfolio(task).values(), *runtime.starts()])
    return budgeted.best_ms


def _repeated(search: Callable[[int], float], seeds: int) -> dict[str, Any]:
    started = time.perf_counter()
    each = [search(seed) for seed in range(seeds)]
    seconds = (time.perf_counter() - started) / seeds
    return {
        "median": float(np.median(each)), "least": min(each), "greatest": max(each), "each": each,
        "seconds": round(seconds, 3),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the published graphs")
    parser.add_argument("--graph", choices=NAMES, help="this one alone, again")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300_000, help="of our search, for each seed")
    parser.add_argument("--limit", type=float, default=40.0, help="seconds of CP-SAT for each of its two questions")
    parser.add_argument("--json", type=Path, default=Path("experiments/results/public_graphs.json"))
    options = parser.parse_args(arguments)
    if not options.data.is_dir():
        raise SystemExit(f"{options.data} is no folder; give the one with latency_layer_graphs by --data")
    result = json.loads(options.json.read_text()) if options.json.exists() else {"graphs": {}}
    for name in [options.graph] if options.graph else [each for each in NAMES if each not in result["graphs"]]:
        graph = read_cost_graph(options.data / "latency_layer_graphs" / f"{name}.json")
        expert = read_split(options.data / "human_experts" / f"{name}_expert.json", graph)
        found = study(graph, expert, options.seeds, options.steps, options.limit)
        result["graphs"][name] = found
        result |= {
            "seeds": options.seeds, "machine": machine_record(),
            "command": "python -m experiments.reproductions.public_problems table --graph GRAPH --steps STEPS "
            "--limit LIMIT_S",
        }  # fmt: skip
        options.json.write_text(json.dumps(result, indent=1) + "\n")
        print(name, json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
