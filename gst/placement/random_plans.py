"""Random plans of a task, from useless ones to the baselines: what a cost model is trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle

import numpy as np
from jaxtyping import Int64

from gst.devices import Plan
from gst.placement.baselines.list_schedules import upward_rank
from gst.placement.baselines.portfolio import portfolio
from gst.placement.local_search.population import crossover, mutate
from gst.placement.task import Task

TRIES = 50  # in a row that give nothing new, until there is nothing new
MAX_PIECES = 32
MAX_MUTATIONS = 30


def random_plans(task: Task, seed: int = 0) -> Iterator[tuple[str, Plan]]:
    """Distinct plans and the kind of each, the same for the same seed; a task with few plans ends early.

    Examples:
        >>> from gst.placement.policies.generated_tasks import generated_task
        >>> next(random_plans(generated_task(0, num_nodes=60, num_devices=2)))[0]
        'baseline'

    First every baseline (`baseline`), then in turns

    - `groups`: each colocation group goes to a device drawn for it, with probabilities drawn for the plan (Dirichlet),
      so that from one device to even shares everything occurs;
    - `chunks`: program order cut at random into 2 to 32 pieces, each on a device drawn for it;
    - `mutation`: a baseline, or the beginning of one and the end of another, changed 1 to 30 times (`mutate`).

    Half of them leave priorities to program order; a quarter run first what has the longest way still to go (upward
    rank), and a quarter what a random order says.
    """
    generator = np.random.default_rng(seed)
    baselines = list(portfolio(task).values())
    longest_way = np.argsort(np.argsort(upward_rank(task), kind="stable")).astype(np.int64)
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
        plan = replace(draws[kind](), priority=_priority(longest_way, generator))
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
    longest_way: Int64[np.ndarray, " nodes"], generator: np.random.Generator
) -> Int64[np.ndarray, " nodes"] | None:
    drawn = generator.random()
    if drawn < 0.5:
        return None
    return longest_way if drawn < 0.75 else generator.permutation(len(longest_way))


def _log_uniform(low: int, high: int, generator: np.random.Generator) -> int:
    return int(np.exp(generator.uniform(np.log(low), np.log(max(high, low) + 1))))
