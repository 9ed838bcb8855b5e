"""A published problem placed: every baseline, annealing for a stated time, the lower bound and the gap to it."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from experiments.reproductions.public_problems.annealing import anneal, refine
from experiments.reproductions.public_problems.baselines import baselines
from experiments.reproductions.public_problems.bounds import lower_bound
from experiments.reproductions.public_problems.certificate import Certificate, certify, certify_published, words
from experiments.reproductions.public_problems.cost_graphs import CostGraph, read_cost_graph, task_of_cost_graph
from experiments.reproductions.public_problems.formats import read_public_graph
from experiments.reproductions.public_problems.problem import Problem, public_problem
from experiments.reproductions.public_problems.proofs import prove
from experiments.reproductions.public_problems.published import PublishedObjective, search_published
from experiments.reproductions.public_problems.schedules import Schedule
from experiments.reproductions.public_problems.task_file import TaskFile, is_task_file
from gst.lowering.plan import Plan, priority_of
from gst.machine.devices import machine_record, parse_bytes
from gst.placement.api.drawing import trace_of, trace_of_task
from gst.placement.baselines.arrays import moved
from gst.placement.objectives import Objective, Planned, SimulatedObjective
from gst.placement.planning import check_fits, plan_all
from gst.placement.task import save_plan
from gst.simulation.copies import Copies
from gst.util.progress import Bars, Progress, no_progress
from gst.util.writing import atomic_write, write_json

NEAR = 1e-9  # shares by which times that are equal may differ
SHARE = 0.3  # of the time of a search that goes to plans of a policy, before annealing
MANY = 1_000  # operations, from which on windows of the schedule are annealed before the whole schedule
WINDOWS = 0.9  # of the time after the policy that these have then
PER_UNIT_US = {"s": 1e6, "ms": 1e3}

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
            refine(problem, start, steps=problem.num_nodes)  # compiled before the clock starts
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


def add_place(commands: Any, command: Callable[..., ArgumentParser]) -> None:
    """Add `place` to the parser; `command` is `gst.cli.add_command`."""
    name = "python -m experiments.reproductions.public_problems place"
    place = command(
        commands, "place", place_by_options,
        "place a published problem on a simulated machine, or a graph of MSR by its published latency",
        f"{name} chain_mm_112nodes.txt --machine gpus:4 --seconds 10    # DOPPLER's, and five other formats\n"
        f"{name} bert24_inference.json --json runs/bert24.json",
    )  # fmt: skip
    place.add_argument(
        "file", type=Path, help="of DOPPLER, Moirai (.xls), PipeDream, Piper, MSR or WfFormat, or of task_file.py"
    )
    place.add_argument("--machine", metavar="NAME:K", help="gpus:4, cores:8")
    place.add_argument("--memory-limit", metavar="BYTES", help="of each device, in place of the limit of the file")
    place.add_argument("--seconds", type=float, default=10.0, metavar="S", help="of search (default: %(default)g)")
    place.add_argument(
        "--policy", default="shipped", metavar="FILE",
        help="weights of train-policy whose plans annealing begins with: a file, 'shipped' or 'none' (%(default)s)",
    )  # fmt: skip
    place.add_argument(
        "--proof", type=float, default=5.0, metavar="S",
        help="seconds for a better lower bound: mixed-integer program, branch and bound, and up to 200 operations "
        "CP-SAT, if ortools is installed; 0 = chains and work alone (default: %(default)g)",
    )  # fmt: skip
    place.add_argument(
        "--methods",
        default="annealing",
        help="for the published latency, besides its own search (default: %(default)s)",
    )
    place.add_argument("--evaluations", type=int, default=2_000, metavar="N", help="of each of these (%(default)s)")
    place.add_argument("--seed", type=int, default=0, help="of all random draws (default: %(default)s)")
    place.add_argument("--trace", type=Path, metavar="FILE", help="write the timeline as a Chrome trace")
    place.add_argument("--out", type=Path, metavar="DIR", help="for plan.json (default: runs/place/FILE)")


def place_by_options(options: Namespace) -> dict[str, Any]:
    """Place a file, print the plans, and write `plan.json`.

    Raises:
        ValueError: an option is out of range, the file is not readable (see `read_public_graph`), there is no such
            machine, or no plan fits it.
    """
    for name in ("seconds", "proof"):
        if not 0 <= getattr(options, name) < float("inf"):
            raise ValueError(f"--{name} is {getattr(options, name)}, want 0 or more")
    path = (options.out or Path("runs/place") / options.file.stem) / "plan.json"
    with Bars() as bars:
        if options.machine is None:
            result, trace = _place_by_latency(options, path, bars.show)
        else:
            result, trace = _place_on_machine(options, path, bars.show)
    if options.trace is not None:
        write_json(options.trace, trace)
    print(table(result))
    print(words(result["certificate"]))
    print(f"The plan is in {path}")
    return {"command": options.command, **result, "plan_file": str(path)}


def _place_on_machine(options: Namespace, path: Path, progress: Progress) -> tuple[dict[str, Any], dict[str, Any]]:
    from experiments.reproductions.public_problems.proposing import proposer_of
    from experiments.reproductions.public_problems.weights import load_weights

    proposer = None
    if options.policy != "none":
        proposer = proposer_of(load_weights(None if options.policy == "shipped" else Path(options.policy)))
    limit = parse_bytes(options.memory_limit) if options.memory_limit else None
    problem = public_problem(read_public_graph(options.file), options.machine, limit)
    result, plan = place_public(
        problem, options.seconds, options.seed, options.proof, progress, proposer,
        lambda plan: save_public_plan(problem, plan, path),
    )  # fmt: skip
    save_public_plan(problem, plan, path, result["certificate"])
    return result, trace_of_schedule(problem, plan)


def _place_by_latency(options: Namespace, path: Path, progress: Progress) -> tuple[dict[str, Any], dict[str, Any]]:
    """Place a graph on its own devices: of MSR by its published latency, others and backward passes by simulation."""
    graph = None if is_task_file(options.file) else _msr_graph(options.file)
    task = TaskFile(options.file).task() if graph is None else task_of_cost_graph(graph)
    is_published = graph is not None and not graph.backward.any()
    objective: Objective = PublishedObjective(graph) if is_published else SimulatedObjective(task)
    methods = [name for name in options.methods.split(",") if name]
    planned = plan_all(task, objective, methods, options.evaluations, seed=options.seed, progress=progress)
    if is_published:
        plan = search_published(graph, options.seed)
        planned["contiguous"] = Planned(plan, float(objective([plan])[0]), 0.0, 0)
    check_fits(task, planned)
    took = {name: each.expected_ms for name, each in planned.items()}
    best = min((name for name in took if np.isfinite(took[name])), key=took.__getitem__)
    chosen = planned[best].plan
    assert chosen is not None
    proof = (options.proof, None, options.seed)
    certificate = (
        certify_published(graph, chosen, options.proof, options.seed) if is_published else certify(task, chosen, *proof)
    )
    bound = certificate.bound
    rows = {
        name: {"makespan": ms, "ratio": _ratio(ms, took[best]), "gap": _ratio(ms, bound) - 1}
        if np.isfinite(ms) else {"makespan": None, "ratio": None, "gap": None, "reason": "not admitted"}
        for name, ms in took.items()
    }  # fmt: skip
    save_plan(chosen, task, path, certificate=certificate.to_dict())
    return {
        "graph": task.name, "format": "times" if graph is None else "msr", "machine": "its own devices",
        "num_nodes": task.num_nodes, "num_edges": task.graph.edges.shape[1], "devices": list(task.names), "unit": "ms",
        "notes": ["by the published latency"] if is_published else [], "plans": rows, "best": best,
        "objective": took[best], "lower_bound": bound, "bound_by": certificate.bound_by, "gap": certificate.gap,
        "proved": certificate.proved, "certificate": certificate.to_dict(),
    }, trace_of_task(task, chosen)  # fmt: skip


def _msr_graph(path: Path) -> CostGraph:
    try:
        return read_cost_graph(path)
    except ValueError as error:
        try:
            other = read_public_graph(path).format
        except ValueError:
            raise error from None
        raise ValueError(f"{path} is of the format {other}, which needs a machine; add --machine gpus:4, say") from None


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


def trace_of_schedule(problem: Problem, schedule: Schedule) -> dict[str, Any]:
    """Return the schedule of a published problem as a Chrome trace; a time without a unit is drawn as milliseconds.

    Args:
        schedule: one that the problem admits.
    """
    unit = problem.graph.unit
    scale = PER_UNIT_US.get(unit, 1e3) / problem.graph.scale
    producers, consumers = problem.graph.edges
    here, there = schedule.home[producers], schedule.home[consumers]
    took = np.array([
        scale * moved(edge, a, b, problem.arrays) for edge, (a, b) in enumerate(zip(here, there, strict=True))
    ])  # fmt: skip
    moves = _moves(producers, there, scale * schedule.end[producers], took)
    names, nodes = [str(each) for each in problem.graph.ids], np.arange(problem.num_nodes)
    return trace_of(
        f"{problem.graph.name} on {problem.machine}, simulated, {unit}", problem.devices, names,
        ["operation"] * len(names), nodes, schedule.home, scale * schedule.begin, scale * schedule.end, moves,
    )  # fmt: skip


def _moves(
    node: Int64[np.ndarray, " edges"], target: Int64[np.ndarray, " edges"], begin_us: Float64[np.ndarray, " edges"],
    took_us: Float64[np.ndarray, " edges"],
) -> Copies:  # fmt: skip
    """Return the copies of edges that take time: a value goes to a device once, for all its readers there."""
    moving = np.flatnonzero(took_us > 0)
    pairs = np.stack([node[moving], target[moving]])
    first = moving[np.unique(pairs, axis=1, return_index=True)[1]] if moving.size else moving
    return Copies(node[first], target[first], begin_us[first], begin_us[first] + took_us[first])
