"""Plans drawn and changed at random: mutation, crossover, random plans, the cross-entropy method and evolution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gst.lowering.plan import Plan
from gst.placement.baselines.list_schedules import rank_us
from gst.placement.baselines.portfolio import portfolio
from gst.placement.objectives import Budgeted
from gst.placement.task import Task
from gst.util.progress import Progress, no_progress


def mutate(task: Task, plan: Plan, generator: np.random.Generator) -> Plan:
    """A neighbour of `plan`: a stretch of the program, or a few groups, go to another device; priorities stay.

    Nodes that the device cannot run stay where they are. Where colocation is a constraint (costs without a program)
    groups stay whole: a stretch takes along the groups that it touches.
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
    """The beginning of one plan and the end of another, with the priorities of the first. Where colocation is a
    constraint a group goes with its first node."""
    first, second = generator.choice(len(plans), 2)
    early = np.arange(task.num_nodes) < generator.integers(task.num_nodes)
    if task.program is None:
        early = _of_groups(task, early)
    return task.plan(np.where(early, plans[first].placement, plans[second].placement), plans[first].priority)


def _of_groups(task: Task, nodes: Bool[np.ndarray, " nodes"]) -> Bool[np.ndarray, " nodes"]:
    """All nodes of the colocation groups of which one is among `nodes`."""
    touched = np.zeros(task.num_groups, bool)
    touched[task.colocation[nodes]] = True
    return touched[task.colocation]


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
    longest_way = np.argsort(np.argsort(rank_us(task), kind="stable")).astype(np.int64)
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


SAMPLES = 40  # plans that are drawn from one distribution
ELITE_SHARE = 0.1  # of them, by which the next distribution is chosen
SMOOTHING = 0.5  # share of the new frequencies in the next distribution
POPULATION = 24  # survivors, and children of each generation
CROSSED = 0.3  # share of the children with two parents


def cross_entropy(
    task: Task,
    objective: Budgeted,
    seed: int = 0,
    progress: Progress = no_progress,
    start: Sequence[Plan] = (),
    trust: float = 0.95,
) -> None:
    """The cross-entropy method (Rubinstein, Methodology and Computing in Applied Probability 1, 1999): every colocation
    group has its own distribution over devices, plans are drawn from it, and it moves towards the frequencies among the
    best of them. Post et al. ("Device Placement with Cross-Entropy Minimization and Proximal Policy Optimization",
    NeurIPS 2018) place programs so; they begin with even chances, here the distribution begins at a good plan.

    Args:
        objective: asked until nothing is left; about `start` first, the portfolio if there is none.
        trust: probability that a group is drawn where the plan has it with which the search begins.
    """
    generator = np.random.default_rng(seed)
    plans, took = _asked(task, objective, list(start) or list(portfolio(task).values()))
    devices, groups = len(task.devices), np.arange(task.num_groups)
    begin = plans[int(np.argmin(took))]
    leader = np.unique(task.colocation, return_index=True)[1]
    chances = np.full((task.num_groups, devices), (1 - trust) / max(devices - 1, 1))
    chances[groups, begin.placement[leader]] = trust if devices > 1 else 1.0
    able = _able_groups(task)
    while objective.left > 0:
        allowed = np.where(able, chances, 0.0)
        sums = np.cumsum(allowed, axis=1) / np.maximum(allowed.sum(1, keepdims=True), 1e-300)
        drawn = [(generator.random(task.num_groups)[:, None] > sums[:, :-1]).sum(1) for _ in range(SAMPLES)]
        answers = objective([task.plan_of_groups(each, begin.priority) for each in drawn])
        order = np.argsort(np.where(np.isnan(answers), np.inf, answers), kind="stable")
        elite = [int(each) for each in order[: max(1, int(ELITE_SHARE * SAMPLES))] if np.isfinite(answers[each])]
        if elite:
            seen = np.stack([np.stack([drawn[each] == device for device in range(devices)], 1) for each in elite])
            chances = (1 - SMOOTHING) * chances + SMOOTHING * seen.mean(0)
        progress("cross-entropy", objective.num_asked, objective.budget)


def evolve(
    task: Task,
    objective: Budgeted,
    seed: int = 0,
    progress: Progress = no_progress,
    start: Sequence[Plan] = (),
) -> None:
    """Evolutionary search with elitism: of parents and children the best survive (a (mu + lambda) strategy, Baeck,
    Hoffmeister and Schwefel 1991). A child is a mutation of one of the better parents, or of the beginning of one
    and the end of another; it has the priorities of a parent.

    Args:
        objective: asked until nothing is left; about `start` first, the portfolio if there is none.
    """
    generator = np.random.default_rng(seed)
    plans, took = _asked(task, objective, list(start) or list(portfolio(task).values()))
    alive = sorted(zip(took.tolist(), range(len(plans)), plans, strict=True))[:POPULATION]
    born = len(plans)
    while objective.left > 0:
        children = []
        for _ in range(POPULATION):
            # The better of two drawn.
            parent = alive[min(int(each) for each in generator.integers(len(alive), size=2))][2]
            child = parent
            if len(alive) > 1 and generator.random() < CROSSED:
                child = crossover(task, [parent, alive[int(generator.integers(len(alive)))][2]], generator)
            for _ in range(int(generator.geometric(0.6))):
                child = mutate(task, child, generator)
            children.append(together(task, replace(child, priority=parent.priority)))
        answers = objective(children)
        answers = np.where(np.isnan(answers), np.inf, answers).tolist()
        alive = sorted([*alive, *zip(answers, range(born, born + POPULATION), children, strict=True)])[:POPULATION]
        born += POPULATION
        progress("evolution", objective.num_asked, objective.budget)


def together(task: Task, plan: Plan) -> Plan:
    """The plan itself for a program, for which colocation is advice; else with each group where its first node is."""
    if task.program is not None:
        return plan
    numbers, leader = np.unique(task.colocation, return_index=True)
    return replace(plan, placement=plan.placement[leader[np.searchsorted(numbers, task.colocation)]])


def _asked(task: Task, objective: Budgeted, plans: Sequence[Plan]) -> tuple[list[Plan], Float64[np.ndarray, " plans"]]:
    """Plans over the devices of the task, and their runtimes; infinite if they failed or were not asked about."""
    position = {name: number for number, name in enumerate(task.names)}
    mapped: list[Plan] = []
    for plan in plans:
        placement: Int64[np.ndarray, " nodes"] = np.array([position[name] for name in plan.devices])[plan.placement]
        mapped.append(together(task, task.plan(placement, plan.priority)))
    took = objective(mapped)
    return mapped, np.where(np.isnan(took), np.inf, took)


def _able_groups(task: Task) -> Float64[np.ndarray, "groups devices"]:
    """1 where all of a group can run, else 0."""
    stuck = [np.bincount(task.colocation, np.isinf(each), task.num_groups) for each in task.times_us]
    return (np.stack(stuck, 1) == 0).astype(np.float64)
