"""Lower bounds of the makespan of published problems, with transfers and memory limits."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from jaxtyping import Float64, Int64

from experiments.reproductions.public_problems.branching import Branched, branched_bound
from experiments.reproductions.public_problems.branching_kernels import Placing
from experiments.reproductions.public_problems.prices import prices
from experiments.reproductions.public_problems.problem import Problem
from gst.placement.baselines.bounds import chains_and_work


def lower_bound(problem: Problem) -> float:
    """Return a lower bound of the makespan of every plan, in `problem.graph.unit`.

    It is the bound of chains and of work, see `gst.placement.baselines.bounds.chains_and_work`.

    Examples:
        >>> from pathlib import Path
        >>> from experiments.reproductions.public_problems.formats import read_public_graph
        >>> from experiments.reproductions.public_problems.problem import public_problem
        >>> _ = Path("two.txt").write_text("2\\n\\n0\\n1\\n30000000000,10000000000\\n20000000000,0\\n")
        >>> lower_bound(public_problem(read_public_graph(Path("two.txt")), "gpus:2"))
        5.0
    """
    arrays, classes = problem.arrays, alike(problem)
    _, first, count = np.unique(classes, return_index=True, return_counts=True)
    return chains_and_work(arrays, classes, arrays.times[first], count.astype(np.float64)) / problem.graph.scale


def alike(problem: Problem) -> Int64[np.ndarray, " devices"]:
    """The number of the class of each device: those of one may be exchanged for each other."""
    return np.unique(np.stack([problem.kind, problem.arrays.limits]), axis=1, return_inverse=True)[1].reshape(-1)


def searched_bound(
    problem: Problem, least: float, most: float, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> Branched:
    """Return a lower bound by branch and bound over placements, in `problem.graph.unit`, with transfers and memory
    limits (`branching.branched_bound`).

    Args:
        least: what is known that no plan is below.
        most: what a plan takes.
        seconds: of search.
        clock: that counts them.
    """
    arrays, devices, scale = problem.arrays, len(problem.devices), problem.graph.scale
    kinds_of = alike(problem)
    placing = Placing(
        arrays, np.eye(devices, dtype=bool),
        *prices(problem.group_times, arrays.sizes, arrays.limits, kinds_of), np.zeros(devices), kinds_of,
    )  # fmt: skip
    found = branched_bound(placing, least * scale, most * scale, seconds, clock)
    return found._replace(bound=found.bound / scale)


def transfers(problem: Problem, here: int, there: int) -> Float64[np.ndarray, " edges"]:
    """Time of each edge from a device to another."""
    arrays = problem.arrays
    if len(arrays.table):
        return arrays.table[:, arrays.kind[here], arrays.kind[there]]
    return arrays.fixed[here, there] + arrays.amounts * arrays.per_amount[here, there]
