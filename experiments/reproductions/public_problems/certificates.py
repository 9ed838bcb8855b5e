"""Gaps of lower bounds to the optimum: one Inception block on simulated GPUs, and the MSR graphs.

    python -m experiments.reproductions.public_problems certificates --json experiments/results/certificates.json

Simulated, one core. For each problem: the best plan of annealing for `--search` seconds, also from the plan of the
mixed-integer program on, and of CP-SAT; the bound of chains and work; that of branch and bound over placements with
`--seconds` of the processor; those of the mixed-integer program (published graphs) and of CP-SAT (up to 200 operations)
with as many by the clock, each apart from the others; the greatest of all. Where this meets the best plan, the plan is
optimal. A problem whose row is in the file is left as it is.
`tests/reproductions/public_problems/test_certificate.py` compares bounds with brute force.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.reproductions.public_problems.annealing import anneal as anneal_public
from experiments.reproductions.public_problems.bounds import lower_bound, searched_bound
from experiments.reproductions.public_problems.certificate import branched_bound_us, is_exact
from experiments.reproductions.public_problems.exact.tasks import optimum
from experiments.reproductions.public_problems.formats import read_public_graph
from experiments.reproductions.public_problems.integer_program import solve
from experiments.reproductions.public_problems.placing import place_public
from experiments.reproductions.public_problems.problem import public_problem
from experiments.reproductions.public_problems.proofs import proved_bound
from gst.lowering.plan import Plan
from gst.machine.devices import machine_record
from gst.placement.baselines.bounds import lower_bound_us
from gst.placement.baselines.portfolio import portfolio
from gst.placement.machines import machine
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.search.annealing import anneal
from gst.placement.task import Task
from gst.programs import capture_module
from gst.programs.workloads.convolution import Branches
from gst.util.progress import bar

DATA = Path("../shared/data/placement")
BLOCKS = ((128, 32, 4), (32, 32, 16), (64, 64, 8), (192, 64, 1))  # channels, width, images of 20 x 20
EVALUATIONS = 2_000
NEAR = 1e-4  # share within which a bound meets a plan: CP-SAT counts in whole nanoseconds


def block(channels: int, width: int, images: int, gpus: int) -> Task:
    """The forward pass of one Inception block on simulated GPUs."""
    model = Branches(channels, width).eval().requires_grad_(False)
    return machine(f"gpus:{gpus}").task(capture_module(model, (torch.zeros(images, channels, 20, 20),)))


def block_row(sizes: tuple[int, int, int, int], seconds: float) -> dict[str, Any]:
    """Bounds of a block, in microseconds."""
    task = block(*sizes)
    budgeted = Budgeted(SimulatedObjective(task), EVALUATIONS)
    budgeted(list(portfolio(task).values()))
    anneal(task, budgeted, 0)
    assert isinstance(budgeted.best, Plan)
    took, chains = 1e3 * budgeted.best_ms, lower_bound_us(task)
    begun = time.process_time()
    branched = branched_bound_us(task, chains, took, seconds)
    middle = time.process_time()
    solved = optimum(task, seconds, budgeted.best)
    return _row(
        int(task.costs.computed.sum()), min(took, 1e3 * solved.objective_ms), chains,
        (branched.bound, middle - begun, branched.num_parts), (1e3 * solved.bound_ms, time.process_time() - middle),
    )  # fmt: skip


def graph_row(path: Path, search_s: float, seconds: float) -> dict[str, Any]:
    """Bounds of a published graph on four GPUs, in its own unit."""
    problem = public_problem(read_public_graph(path), "gpus:4")
    _, plan = place_public(problem, search_s)
    begun = time.process_time()
    chains, (integer, better) = lower_bound(problem), solve(problem, seconds)
    if better is not None and not better.reason:
        plan = min(plan, anneal_public(problem, better, search_s)[0], key=lambda each: each.makespan)
    middle = time.process_time()
    branched = searched_bound(problem, chains, plan.makespan, seconds, time.process_time)
    after, solved, best = time.process_time(), None, None
    if is_exact(problem.num_nodes, len(problem.devices)):
        solved, best = proved_bound(problem, seconds, plan)
    least = plan.makespan if best is None or best.reason else min(plan.makespan, best.makespan)
    return _row(
        problem.num_nodes, least, chains, (branched.bound, after - middle, branched.num_parts),
        None if solved is None else (solved, time.process_time() - after), (integer, middle - begun),
    )  # fmt: skip


def _row(
    nodes: int, best: float, chains: float, branched: tuple[float, float, int], solved: tuple[float, float] | None,
    integer: tuple[float, float] | None = None,
) -> dict[str, Any]:  # fmt: skip
    bounds = [chains, branched[0], *(each[0] for each in (solved, integer) if each is not None)]
    return {
        "bound": min(max(bounds), best),
        "operations": nodes, "best": best, "optimal": max(bounds) >= best * (1 - NEAR), "chains": chains,
        "branches": min(branched[0], best), "branches_s": branched[1], "branches_parts": branched[2],
        "integer": None if integer is None else min(integer[0], best),
        "integer_s": None if integer is None else integer[1],
        "cp_sat": None if solved is None else min(solved[0], best), "cp_sat_s": None if solved is None else solved[1],
    }  # fmt: skip


def problems(search_s: float, seconds: float) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Name of each problem, and what makes its row."""
    for channels, width, images in BLOCKS:
        for gpus in (2, 4):
            name = f"Inception block, {channels} to {width} channels, {images} images, gpus:{gpus}"
            yield name, partial(block_row, (channels, width, images, gpus), seconds)
    for path in sorted(DATA.glob("*_graphs/*.json")):
        name = f"MSR {path.parent.name.partition('_')[0]}, {path.stem}"
        yield name, partial(graph_row, path, search_s, seconds)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", type=float, default=20.0, metavar="S", help="of annealing (default: %(default)g)")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="of each bound (default: %(default)g)")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    there = json.loads(options.json.read_text())["rows"] if options.json.exists() else {}
    record: dict[str, Any] = {
        "rows": there, "settings": {"search_s": options.search}, "machine": machine_record(),
        "command": "python -m experiments.reproductions.public_problems certificates "
        f"--search {options.search:g} --seconds LIMIT_S",
    }  # fmt: skip
    every = dict(problems(options.search, options.seconds))
    for name, make in bar(list(every.items()), "problems"):
        if name in there:
            continue
        there[name] = make() | {"limit_s": options.seconds}
        record["rows"] = {each: there[each] for each in every if each in there}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    ratios = np.array([row["bound"] / row["best"] for row in record["rows"].values()])
    near = int((ratios >= 0.95).sum())
    print(f"bound / best plan: least {ratios.min():.3f}, .95 or more in {near} of {len(ratios)}")


if __name__ == "__main__":
    main()
