"""A published problem placed: every baseline, annealing for a stated time, the lower bound and the gap to it."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reproductions.public_problems.annealing import anneal
from experiments.reproductions.public_problems.baselines import baselines
from experiments.reproductions.public_problems.bounds import lower_bound
from experiments.reproductions.public_problems.formats import read_public_graph
from experiments.reproductions.public_problems.problem import Problem, public_problem
from experiments.reproductions.public_problems.proofs import prove
from gst.execution.trace import save_trace
from gst.lowering.plan import Plan, priority_of
from gst.machine.devices import machine_record, parse_bytes
from gst.placement.api.plan_trace import trace_of_schedule
from gst.placement.certificate import Certificate
from gst.placement.search.window_schedules import Schedule
from gst.placement.search.windows import refine, warm_up
from gst.util.progress import Progress, no_progress
from gst.util.writing import atomic_write

NEAR = 1e-9  # shares by which times that are equal may differ
SHARE = 0.3  # of the time of a search that goes to plans of a policy, before annealing
MANY = 1_000  # operations, from which on windows of the schedule are annealed before the whole schedule
WINDOWS = 0.9  # of the time after the policy that these have then

Proposer = Callable[[Problem, float, int], dict[str, Schedule]]
"""Called with a problem, seconds and a seed: plans of a policy by name, for annealing to begin with."""


def place_public(
    problem: Problem,
    seconds: float = 5.0,
    seed: int = 0,
    proof_s: float = 0.0,
    progress: Progress = no_progress,
    proposer: Proposer | None = None,
    chosen: Callable[[Schedule], None] = lambda _: None,
) -> tuple[dict[str, Any], Schedule]:
    """Place a published problem: the result for JSON, and the best plan.

    Args:
        seconds: of search: of annealing, from the best baseline on. From `MANY` operations on it anneals windows of the
            schedule first, see `gst.placement.search.windows`.
        proposer: of plans that annealing may begin with too; it has `SHARE` of the seconds, annealing what is left.
        proof_s: seconds for a better bound in the end, see `experiments.reproductions.public_problems.proofs`.
        chosen: told the best plan of the search before anything is proved.

    Returns:
        `graph`, `format`, `machine`, `num_nodes`, `num_edges`, `devices`, `unit`, `notes`, `plans` (`makespan`, `ratio`
        to the best plan, `gap` to the bound, `reason` where it is not admitted, `seconds`), `best`, `objective`,
        `lower_bound`, `bound_by`, `gap`, `steps` of annealing, `proved`, `certificate`.

    Raises:
        ValueError: no baseline fits the memories.
    """
    progress("baselines", 0, 1000)
    times = {"baselines": time.perf_counter()}
    plans = baselines(problem, seed)
    times["baselines"] = time.perf_counter() - times["baselines"]
    admitted = {name: plan for name, plan in plans.items() if not plan.reason}
    if not admitted:
        why = next(iter(plans.values())).reason if plans else "the machine has no device"
        raise ValueError(f"no plan of {problem.graph.name} fits {problem.machine}: {why}; add devices or memory")
    start = min(admitted.values(), key=lambda plan: plan.makespan)
    bound, by, steps = lower_bound(problem), "chains and work", 0
    if seconds > 0 and start.makespan > bound * (1 + NEAR):
        anneal(problem, start, steps=1)  # compiled before the clock starts
        left = seconds
        if proposer is not None:
            proposer(problem, 0.0, seed)
            begun = time.perf_counter()
            proposals = proposer(problem, SHARE * seconds, seed)
            left -= time.perf_counter() - begun
            plans |= proposals
            times |= dict.fromkeys(list(proposals)[-1:], seconds - left)
            start = min([start, *proposals.values()], key=lambda plan: plan.makespan)
        if left > 0 and problem.num_nodes >= MANY and len(problem.devices) > 1 and not problem.graph.first_come:
            warm_up(problem, start)
            begun = time.perf_counter()
            start, _ = refine(problem, start, WINDOWS * left, seed=seed, progress=progress)
            plans["windows"] = start
            times["windows"] = time.perf_counter() - begun
            left -= times["windows"]
        if left > 0:
            begun = time.perf_counter()
            plans["annealing"], steps = anneal(problem, start, left, seed=seed, progress=progress)
            times["annealing"] = time.perf_counter() - begun
    best = min(plans, key=lambda name: plans[name].makespan if not plans[name].reason else np.inf)
    chosen(plans[best])
    begun = time.perf_counter()
    if proof_s > 0 and plans[best].makespan > bound * (1 + NEAR):
        progress("proving", 0, 1000)
        proof = prove(problem, plans[best], bound, proof_s, seed)
        bound, by = proof.bound, proof.bound_by or by
        plans |= proof.plans
        best = min((best, *proof.plans), key=lambda name: plans[name].makespan)
    took = time.perf_counter() - begun
    objective = plans[best].makespan
    rows = {
        name: {
            "makespan": None if plan.reason else plan.makespan,
            "ratio": None if plan.reason else _ratio(plan.makespan, objective),
            "gap": None if plan.reason else _ratio(plan.makespan, bound) - 1,
            **({"reason": plan.reason} if plan.reason else {}),
            **({"seconds": times[name]} if name in times else {}),
        }
        for name, plan in plans.items()
    }
    bound = min(bound, objective)  # of rounding
    graph = problem.graph
    used = np.bincount(plans[best].home, graph.sizes, len(problem.devices)).astype(np.int64)
    limits = [int(limit) if np.isfinite(limit) else None for limit in problem.arrays.limits]
    certificate = Certificate(
        bound, by, objective, graph.unit, took, dict(zip(problem.devices, used.tolist(), strict=True)),
        dict(zip(problem.devices, limits, strict=True)), "file",
    )  # fmt: skip
    return {
        "graph": graph.name, "format": graph.format, "machine": problem.machine, "num_nodes": graph.num_nodes,
        "num_edges": graph.edges.shape[1], "devices": list(problem.devices), "unit": graph.unit,
        "notes": list(problem.notes), "plans": rows, "best": best, "objective": objective, "lower_bound": bound,
        "bound_by": by, "gap": _ratio(objective, bound) - 1, "proved": objective <= bound * (1 + 1e-6), "steps": steps,
        "seconds": seconds, "seed": seed, "runtime": "simulated", "host": machine_record(),
        "baselines_s": times["baselines"], "certificate": certificate.to_dict(),
    }, plans[best]  # fmt: skip


def _ratio(time_taken: float, other: float) -> float:
    return time_taken / other if other > 0 else 1.0 if time_taken <= 0 else float("inf")


def place_by_options(
    options: Namespace, progress: Progress = no_progress, proposer: Proposer | None = None
) -> dict[str, Any]:
    """Do what `gst place --graph FILE --machine NAME:N` asks, and write `plan.json`.

    Args:
        proposer: see `place_public`.

    Raises:
        ValueError: the options contradict each other, the file is not readable (see `read_public_graph`), there is no
            such machine, or no plan fits it.
    """
    if options.program is not None:
        raise ValueError(f"give a program or --graph, not both: {options.program} and {options.graph}")
    if options.devices or isinstance(options.workers, str):
        raise ValueError("--graph with --machine is simulated; leave --devices and --workers away")
    if options.resume or options.again:
        raise ValueError("--graph with --machine begins anew each time; leave --resume and --again away")
    for name in ("seconds", "proof"):
        if not 0 <= getattr(options, name) < float("inf"):
            raise ValueError(f"--{name} is {getattr(options, name)}, want 0 or more")
    limit = parse_bytes(options.memory_limit) if options.memory_limit else None
    problem = public_problem(read_public_graph(options.graph), options.machine, limit)
    path = (options.out or Path("runs/place") / options.graph.stem) / "plan.json"
    result, plan = place_public(
        problem, options.seconds, options.seed, options.proof, progress, proposer,
        lambda plan: save_public_plan(problem, plan, path),
    )  # fmt: skip
    save_public_plan(problem, plan, path, result["certificate"])
    if options.trace is not None:
        save_trace(trace_of_schedule(problem, plan), options.trace)
    return {"command": options.command, **result, "plan_file": str(path)}


def save_public_plan(
    problem: Problem, plan: Schedule, path: Path, certificate: Mapping[str, Any] | None = None
) -> None:
    """Write a plan as JSON: `devices`, `placement` and `priority` as `Plan.load` reads them (each device runs the
    operations of greatest priority first, and waits for them), `nodes` by name, `begin` and `end` in `unit`, and the
    `certificate` once there is one."""
    placed = Plan(problem.devices, plan.home, priority_of(plan.order))
    scale = problem.graph.scale
    record = {
        **placed.to_dict(), "graph": problem.graph.name, "format": problem.graph.format, "machine": problem.machine,
        "unit": problem.graph.unit, "makespan": plan.makespan, "nodes": list(problem.graph.ids),
        "begin": (plan.begin / scale).tolist(), "end": (plan.end / scale).tolist(),
        **({} if certificate is None else {"certificate": certificate}),
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(json.dumps(record))


def table(result: Mapping[str, Any]) -> str:
    """The result of `place_public` for people: a line for each plan, the fastest first."""
    plans, unit = result["plans"], result["unit"]
    width = max(map(len, plans))
    lines = [
        f"{result['graph']} ({result['format']}): {result['num_nodes']:,} operations, {result['num_edges']:,} edges on "
        f"{result['machine']}, simulated",
        *(f"  {note}" for note in result["notes"]),
        f"{'plan':<{width}}  {unit:>14}  / best  over bound",
    ]
    ran = {name: plan for name, plan in plans.items() if plan["makespan"] is not None}
    for name, plan in sorted(ran.items(), key=lambda item: item[1]["makespan"]):
        lines.append(f"{name:<{width}}  {plan['makespan']:>14,.6g}  {plan['ratio']:6.3f}  {plan['gap']:9.1%}")
    lines += [f"{name:<{width}}  {plan['reason']}" for name, plan in plans.items() if plan["makespan"] is None]
    gap = "which is proved to be the least" if result["proved"] else f"at most {result['gap']:.2%} above the least"
    return "\n".join([
        *lines,
        f"no plan takes less than {result['lower_bound']:,.6g} ({result['bound_by']}); "
        f"the best, {result['best']}, takes {result['objective']:,.6g}, {gap}",
    ])  # fmt: skip
