"""Plans drawn and changed at random: mutations, crossovers, and distinct plans of several kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle

import numpy as np
from jaxtyping import Bool, Int64

from gst.lowering.plan import Plan
from gst.placement.baselines.portfolio import portfolio, rank_us
from gst.placement.task import Task


def mutate(task: Task, plan: Plan, generator: np.random.Generator) -> Plan:
    """Return a neighbour of a plan: a stretch of the program, or a few groups, go to another device; priorities stay.

    Nodes that the device cannot run stay. Where colocation is a constraint (costs without a program), groups stay
    whole: a stretch takes along the groups that it touches.
    """
    device = int(generator.integers(len(task.devices)))
    moved = np.zeros(task.num_nodes, bool)
    if generator.random() < 0.5:
        length = int(np.exp(generator.uniform(0, np.log(max(task.num_nodes / 2, 1)))))
        start = int(generator.integers(task.num_nodes - length + 1))
        moved[start : start + length] = True
        if task.program is None:
            moved = _of_groups(task, moved)
    else:
        chosen = np.zeros(task.num_groups, bool)
        chosen[generator.integers(len(chosen), size=int(generator.integers(1, 9)))] = True
        moved = chosen[task.colocation]
    unable = np.isinf(task.times_us[device])
    if unable.any():
        moved &= ~(_of_groups(task, unable) if task.program is None else unable)
    return task.plan(np.where(moved, device, plan.placement), plan.priority)


def crossover(task: Task, plans: Sequence[Plan], generator: np.random.Generator) -> Plan:
    """Return the beginning of one plan and the end of another, with the priorities of the first. Where colocation is a
    constraint, a group goes with its first node."""
    first, second = generator.choice(len(plans), 2)
    early = np.arange(task.num_nodes) < generator.integers(task.num_nodes)
    if task.program is None:
        early = _of_groups(task, early)
    return task.plan(np.where(early, plans[first].placement, plans[second].placement), plans[first].priority)


def _of_groups(task: Task, nodes: Bool[np.ndarray, " nodes"]) -> Bool[np.ndarray, " nodes"]:
    """Return all nodes of the colocation groups that `nodes` touch."""
    touched = np.zeros(task.num_groups, bool)
    touched[task.colocation[nodes]] = True
    return touched[task.colocation]


TRIES = 50  # without a new plan, before the plans end
MAX_PIECES = 32
MAX_MUTATIONS = 30


def random_plans(task: Task, seed: int = 0) -> Iterator[tuple[str, Plan]]:
    """Yield distinct plans and the kind of each, the same for the same seed; a task with few plans ends early.

    First comes every baseline (`baseline`), then alternately

    - `groups`: each colocation group goes to a device drawn for it, with probabilities drawn for the plan (Dirichlet);
    - `chunks`: program order cut at random into 2 to 32 pieces, each on a device drawn for it;
    - `mutation`: a baseline, or a crossover of two, changed 1 to 30 times (`mutate`).

    Half of them leave priorities to program order, a quarter have upward ranks, and a quarter a random order.

    Examples:
        >>> from gst.placement.machines import example_task
        >>> next(random_plans(example_task()))[0]
        'baseline'
    """
    generator = np.random.default_rng(seed)
    baselines = list(portfolio(task).values())
    longest_first = np.argsort(np.argsort(rank_us(task), kind="stable")).astype(np.int64)
    known = set()
    for plan in baselines:
        if plan.key not in known:
            known.add(plan.key)
            yield "baseline", plan
    draws: dict[str, Callable[[], Plan]] = {
        "groups": lambda: _groups(task, generator),
        "chunks": lambda: _pieces(task, generator),
        "mutation": lambda: _mutation(task, baselines, generator),
    }
    in_vain = 0
    for kind in cycle(draws):
        plan = replace(draws[kind](), priority=_priority(longest_first, generator))
        if plan.key not in known:
            known.add(plan.key)
            in_vain = 0
            yield kind, plan
        elif (in_vain := in_vain + 1) >= TRIES:
            return


def _groups(task: Task, generator: np.random.Generator) -> Plan:
    shares = generator.dirichlet(np.ones(len(task.devices)))
    return task.plan_of_groups(generator.choice(len(task.devices), task.num_groups, p=shares))


def _pieces(task: Task, generator: np.random.Generator) -> Plan:
    nodes = task.num_nodes
    count = _log_uniform(2, min(MAX_PIECES, nodes), generator)
    cuts = np.sort(generator.integers(1, nodes, count - 1)) if nodes > 1 else np.zeros(0, np.int64)
    piece = np.searchsorted(cuts, np.arange(nodes), side="right")
    return task.plan(generator.integers(len(task.devices), size=count)[piece])


def _mutation(task: Task, baselines: list[Plan], generator: np.random.Generator) -> Plan:
    plan = baselines[int(generator.integers(len(baselines)))]
    if generator.random() < 0.3:
        plan = crossover(task, baselines, generator)
    for _ in range(_log_uniform(1, MAX_MUTATIONS, generator)):
        plan = mutate(task, plan, generator)
    return plan


def _priority(
    longest_first: Int64[np.ndarray, " nodes"], generator: np.random.Generator
) -> Int64[np.ndarray, " nodes"] | None:
    drawn = generator.random()
    if drawn < 0.5:
        return None
    return longest_first if drawn < 0.75 else generator.permutation(len(longest_first))


def _log_uniform(low: int, high: int, generator: np.random.Generator) -> int:
    return int(np.exp(generator.uniform(np.log(low), np.log(max(high, low) + 1))))
