"""Optimal plans by constraint programming (CP-SAT of OR-tools): of small tasks, and of published cost graphs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from gst.data.cost_graphs import CostGraph
from gst.data.measured_plans import core_use
from gst.devices import Plan
from gst.placement.published import PublishedObjective, published_bound
from gst.placement.task import Task

PER_US = 1e3
"""The solver counts in whole nanoseconds, rounded down, so that its bound holds."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """What an exact search ended with.

    Args:
        plan: the best found; None if there was none in time.
        objective_ms: what it takes; infinite without a plan.
        bound_ms: no plan takes less.
        proved: whether the plan is the best there is, up to rounding.
    """

    plan: Plan | None
    objective_ms: float
    bound_ms: float
    proved: bool


def optimum(task: Task, time_limit_s: float = 60.0, hint: Plan | None = None, seed: int = 0) -> Optimum:
    """Placement and order together, for a machine on which operations cost each other nothing: an operation takes its
    time alone, a value its transfer, several transfers go on at once, and cores do one operation at a time.

    Schedules that leave a device idle for something urgent are among those searched. A `Simulator` never waits, so
    that it may take longer with the plan's priorities than `objective_ms`; it never takes less than `bound_ms`.
    Colocation groups are placed as one. Of memory only what is resident counts.

    Args:
        hint: a plan to begin with.

    Raises:
        ValueError: OR-tools is not installed, or no placement fits.
    """
    cp = solver_library()
    model, costs = cp.CpModel(), task.costs
    placed = _placements(model, task)
    times = np.where(np.isfinite(task.times_us), np.floor(task.times_us * PER_US), 0).astype(np.int64)
    nodes = [int(node) for node in np.flatnonzero(costs.computed)]
    edges = costs.edges[:, costs.computed[costs.edges[0]] & costs.computed[costs.edges[1]]]
    horizon = int(times.max(0).sum() + sum(_moved(costs, int(node)).max() for node in edges[0]))
    start = {node: model.new_int_var(0, horizon, "") for node in nodes}
    span = model.new_int_var(0, horizon, "")
    took = {
        node: sum(int(each[node]) * here for each, here in zip(times, placed[task.colocation[node]], strict=True))
        for node in nodes
    }
    for node in nodes:
        model.add(start[node] + took[node] <= span)
    for producer, consumer in edges.T.tolist():
        groups = (placed[task.colocation[producer]], placed[task.colocation[consumer]])
        _precede(model, start[producer] + took[producer], start[consumer], *groups, _moved(costs, producer))
    _one_at_a_time(model, task, placed, times, start, span, nodes)
    model.minimize(span)
    if hint is not None:
        _hint(model, task, placed, hint)
    solver, status = solve(cp, model, time_limit_s, seed)
    if status == cp.INFEASIBLE:
        raise ValueError(f"no placement of {task.name} fits the memory of its devices")
    bound = solver.best_objective_bound / PER_US / 1e3
    if status not in (cp.OPTIMAL, cp.FEASIBLE):
        return Optimum(None, float("inf"), bound, False)
    assignment = np.array([[solver.value(here) for here in group] for group in placed]).argmax(1)
    begin = np.zeros(task.num_nodes)
    begin[nodes] = [solver.value(start[node]) for node in nodes]
    plan = task.plan_of_groups(assignment, -np.argsort(np.argsort(begin, kind="stable")))
    return Optimum(plan, replayed_us(task, plan) / 1e3, bound, status == cp.OPTIMAL)


def replayed_us(task: Task, plan: Plan) -> float:
    """Microseconds if operations begin in the order of the plan's priorities as soon as their cores are free and their
    values are there, each core keeping to that order; priorities must be a topological order.

    Raises:
        ValueError: the plan has no priorities.
    """
    if plan.priority is None:
        raise ValueError("a plan without priorities has no order to be replayed in")
    costs, use = task.costs, core_use(task.devices)
    producers: list[list[int]] = [[] for _ in range(task.num_nodes)]
    for producer, consumer in costs.edges.T.tolist():
        if costs.computed[producer]:
            producers[consumer].append(producer)
    free, end = np.zeros(use.shape[1]), np.zeros(task.num_nodes)
    for node in np.argsort(-plan.priority, kind="stable").tolist():
        if not costs.computed[node]:
            continue
        here = plan.placement[node]
        begin = float(free[use[here]].max())
        for producer in producers[node]:
            there = plan.placement[producer]
            moved = costs.latency_us[there, here] + costs.output_bytes[producer] / costs.bytes_per_us[there, here]
            begin = max(begin, end[producer] + moved)
        end[node] = begin + task.times_us[here, node]
        free[use[here]] = end[node]
    return float(end.max(initial=0.0))


def solver_library() -> Any:
    """OR-tools' CP-SAT.

    Raises:
        ValueError: it is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise ValueError(
            "exact plans need OR-tools, which is not installed; pip install graph-segment-training[exact]"
        ) from None
    return cp_model


def solve(cp: Any, model: Any, time_limit_s: float, seed: int, callback: Any = None) -> tuple[Any, Any]:
    """Solver and status, with one thread; the same for the same seed if the time suffices."""
    solver = cp.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.linearization_level = 2  # its bound comes from the linear program
    return solver, solver.solve(model, callback)


def first_come(model: Any, placed: Sequence[Sequence[Any]]) -> None:
    """Of devices that are alike, only the first may be used by a group that comes before all groups of the others: one
    of many plans that differ in names alone is left.

    Args:
        placed: for each group a literal for each of the devices that are alike.
    """
    for device in range(1, len(placed[0])):
        used = 0
        for group in placed:
            model.add(group[device] <= used)
            used = used + group[device - 1]


def _placements(model: Any, task: Task) -> list[list[Any]]:
    """For each group a literal for each device."""
    placed = [[model.new_bool_var("") for _ in task.devices] for _ in range(task.num_groups)]
    resident = np.bincount(task.colocation, task.resident_bytes, task.num_groups).astype(np.int64)
    for group in placed:
        model.add_exactly_one(group)
    for device, times in enumerate(task.times_us):
        for group in np.unique(task.colocation[np.isinf(times)]):
            model.add(placed[group][device] == 0)
    for memory, limit in task.memories.items():
        if limit is not None:
            here = [number for number, device in enumerate(task.devices) if device.memory == memory]
            model.add(sum(int(size) * placed[g][d] for g, size in enumerate(resident) for d in here) <= limit)
    if len(task.devices) > 1 and _alike(task):
        first_come(model, placed)
    return placed


def _alike(task: Task) -> bool:
    """Whether devices may be exchanged for each other."""
    apart = ~np.eye(len(task.devices), dtype=bool)
    return (
        bool((task.times_us == task.times_us[0]).all())
        and core_use(task.devices).sum(0).max() == 1
        and len(set(task.memories.values())) == 1
        and all(len(np.unique(each[apart])) == 1 for each in (task.costs.latency_us, task.costs.bytes_per_us))
    )


def _moved(costs: Any, node: int) -> Int64[np.ndarray, "devices devices"]:
    """Nanoseconds to hand over the value of a node, rounded down."""
    taken: Float64[np.ndarray, "devices devices"] = costs.latency_us + costs.output_bytes[node] / costs.bytes_per_us
    return np.floor(taken * PER_US).astype(np.int64)


def _precede(
    model: Any, end: Any, start: Any, here: Sequence[Any], there: Sequence[Any],
    moved: Int64[np.ndarray, "devices devices"],
) -> None:  # fmt: skip
    model.add(end <= start)
    for duration in np.unique(moved[moved > 0]).tolist():
        crosses = model.new_bool_var("")
        for device, goes in enumerate(moved == duration):
            if goes.any():
                model.add(here[device] + sum(there[other] for other in np.flatnonzero(goes).tolist()) <= 1 + crosses)
        model.add(end + duration * crosses <= start)


def _one_at_a_time(
    model: Any, task: Task, placed: Sequence[Sequence[Any]], times: Int64[np.ndarray, "devices nodes"],
    start: dict[int, Any], span: Any, nodes: Sequence[int],
) -> None:  # fmt: skip
    for core in core_use(task.devices).T:
        parts = [
            (int(times[device, node]), start[node], placed[task.colocation[node]][device])
            for device in np.flatnonzero(core).tolist()
            for node in nodes
        ]
        model.add_no_overlap([model.new_optional_fixed_size_interval_var(s, t, here, "") for t, s, here in parts])
        model.add(sum(t * here for t, _, here in parts) <= span)


def _hint(model: Any, task: Task, placed: Sequence[Sequence[Any]], hint: Plan) -> None:
    first = np.unique(task.colocation, return_index=True)[1]
    names = [hint.devices[position] for position in hint.placement[first]]
    where = [task.names.index(name) for name in names]
    if len(task.devices) > 1 and _alike(task):
        number = {device: rank for rank, device in enumerate(dict.fromkeys(where))}  # as `first_come` wants it
        where = [number[device] for device in where]
    for group, position in zip(placed, where, strict=True):
        for device, here in enumerate(group):
            model.add_hint(here, device == position)


PER_MS = 1e6
"""The solver counts in whole nanoseconds, rounded down, so that its bound holds."""

Tree = list[tuple[int, int]]


class PublishedModel:
    """Placement, and the time along paths.

    Args:
        horizon: latency, in ns, above which no plan is of interest.
        apart: whether accelerators are told apart. If not, they have all memory in common, but what is joined must
            still fit one of them: a smaller model, with a bound that is nearly as good.

    Attributes:
        here: for each node a literal for each accelerator; `on`: whether it is on one.
        same: for each edge whether both ends are in one call.
        span: the latency.
    """

    def __init__(self, cp: Any, graph: CostGraph, horizon: int, apart: bool = True) -> None:
        self.cp_model, self.graph, self.horizon = cp.CpModel(), graph, horizon
        model, groups = self.cp_model, int(graph.colocation.max()) + 1
        count = graph.num_accelerators if apart else 0
        on = [model.new_bool_var("") for _ in range(groups)]
        literals = [[model.new_bool_var("") for _ in range(count)] for _ in range(groups)]
        for group in np.unique(graph.colocation[np.isinf(graph.accelerator_ms)]):
            model.add(on[group] == 0)
        self.here = [literals[group] for group in graph.colocation]
        self.on = [on[group] for group in graph.colocation]
        self.cpu, self.accelerator, self.transfer = (
            np.floor(np.where(np.isfinite(each), each, 0) * PER_MS).astype(np.int64)
            for each in (graph.cpu_ms, graph.accelerator_ms, graph.transfer_ms)
        )
        self.same: dict[tuple[int, int], Any] = {}
        self.span = model.new_int_var(0, horizon, "")
        model.minimize(self.span)
        if apart:
            self._keep_apart(literals, on)
        else:
            everywhere = graph.num_accelerators * int(graph.memory_limit)
            model.add(sum(int(size) * each for size, each in zip(graph.sizes, self.on, strict=True)) <= everywhere)
        self._paths()

    def hint(self, home: Int64[np.ndarray, " nodes"]) -> None:
        seen = set()
        # Accelerators are numbered by who comes first.
        number = {int(each): rank for rank, each in enumerate(dict.fromkeys(home[home >= 0].tolist()))}
        for node, group in enumerate(self.graph.colocation.tolist()):
            if group not in seen:
                seen.add(group)
                for accelerator, literal in enumerate(self.here[node]):
                    self.cp_model.add_hint(literal, number.get(int(home[node]), -1) == accelerator)
                self.cp_model.add_hint(self.on[node], int(home[node]) >= 0)

    def _keep_apart(self, literals: list[list[Any]], on: list[Any]) -> None:
        model, graph = self.cp_model, self.graph
        for group, used in zip(literals, on, strict=True):
            model.add(sum(group) == used)
        if graph.num_accelerators > 1:
            leaders = np.unique(graph.colocation, return_index=True)[1]
            first_come(model, [literals[group] for group in np.argsort(leaders)])
        for accelerator in range(graph.num_accelerators):
            taken = zip(graph.sizes, self.here, strict=True)
            model.add(sum(int(size) * each[accelerator] for size, each in taken) <= int(graph.memory_limit))

    def cut(self, tree: Tree) -> None:
        """Not all of these edges can be within calls."""
        self.cp_model.add(sum(self.same[edge] for edge in tree) <= len(tree) - 1)

    def _paths(self) -> None:
        """`end` of a node is never later than the end of its computation, `begin` and `ready` never later than those of
        its call, by whatever path one comes to it."""
        model, graph = self.cp_model, self.graph
        end = [model.new_int_var(0, self.horizon, "") for _ in range(graph.num_nodes)]
        begin, ready = ([model.new_int_var(0, self.horizon, "") for _ in range(graph.num_nodes)] for _ in range(2))
        same = self.same
        written = [model.new_int_var(0, self.horizon, "") for _ in range(graph.num_nodes)]
        for producer, consumer in graph.edges.T.tolist():
            same[producer, consumer] = self._same(producer, consumer)
        readers = np.bincount(graph.edges[0], minlength=graph.num_nodes)
        for node in range(graph.num_nodes):
            producers = graph.edges[0][graph.edges[1] == node].tolist()
            reads = {each: int(self.transfer[each]) * (self.on[node] - same[each, node]) for each in producers}
            writes = self._written(node)
            model.add(end[node] >= begin[node] + sum(reads.values()) + self._took(node))
            model.add(written[node] >= writes)
            model.add(ready[node] >= end[node] + written[node])
            model.add(ready[node] <= self.span)
            for producer in producers:
                together = same[producer, node]
                left = int(self.transfer[producer]) * (self.on[producer] - together)
                own = sum(took for each, took in reads.items() if each == producer or readers[each] == 1)
                model.add(end[node] >= end[producer] + left + own + self._took(node))
                model.add(begin[node] >= ready[producer]).only_enforce_if(~together)
                model.add(begin[node] == begin[producer]).only_enforce_if(together)
                model.add(ready[node] == ready[producer]).only_enforce_if(together)
                model.add(written[node] >= written[producer] + writes).only_enforce_if(together)
        for tree in _too_large(graph):
            self.cut(tree)
        for first, last, edges in _branches(graph):
            inner = {consumer for _, consumer in edges}
            took = sum(int(self.accelerator[node]) for node in inner)
            model.add(end[last] >= end[first] + took).only_enforce_if([same[edge] for edge in edges])

    def _took(self, node: int) -> Any:
        return int(self.cpu[node]) + int(self.accelerator[node] - self.cpu[node]) * self.on[node]

    def _written(self, node: int) -> Any:
        """What it takes to move the value of a node out of its accelerator."""
        outward = self.cp_model.new_bool_var("")
        for (producer, _), together in self.same.items():
            if producer == node:
                self.cp_model.add(outward >= self.on[node] - together)
        return int(self.transfer[node]) * outward

    def _same(self, producer: int, consumer: int) -> Any:
        """Whether both are in one call of an accelerator, so that nothing moves."""
        model, together = self.cp_model, self.cp_model.new_bool_var("")
        model.add(together <= self.on[producer])
        model.add(together <= self.on[consumer])
        for first, second in zip(self.here[producer], self.here[consumer], strict=True):
            model.add(together + first <= 1 + second)
            model.add(together + second <= 1 + first)
        return together


def calls(model: PublishedModel) -> None:
    """One call per accelerator: when it starts, what it reads and writes, and when all of its values are there."""
    graph, cp_model = model.graph, model.cp_model
    done = [cp_model.new_int_var(0, model.horizon, "") for _ in range(graph.num_nodes)]
    producers: list[list[int]] = [[] for _ in range(graph.num_nodes)]
    consumers: list[list[int]] = [[] for _ in range(graph.num_nodes)]
    for producer, consumer in graph.edges.T.tolist():
        producers[consumer].append(producer)
        consumers[producer].append(consumer)
    for node in range(graph.num_nodes):
        cp_model.add(done[node] <= model.span)
        cp_model.add(done[node] >= int(model.cpu[node]) * (1 - model.on[node]))
        for producer in producers[node]:
            cp_model.add(done[node] >= done[producer] + int(model.cpu[node]) * (1 - model.on[node]))
    for accelerator in range(graph.num_accelerators):
        here = [each[accelerator] for each in model.here]
        start, end = (cp_model.new_int_var(0, model.horizon, "") for _ in range(2))
        length: Any = sum(int(took) * each for took, each in zip(model.accelerator, here, strict=True))
        for node in range(graph.num_nodes):
            cp_model.add(done[node] >= end).only_enforce_if(here[node])
            read, written = cp_model.new_bool_var(""), cp_model.new_bool_var("")
            for consumer in consumers[node]:
                cp_model.add(read >= here[consumer] - here[node])
                cp_model.add(written >= here[node] - here[consumer])
            if consumers[node]:
                cp_model.add(start >= done[node]).only_enforce_if(read)
                length = length + int(model.transfer[node]) * (read + written)
        cp_model.add(end >= start + length)


def overfull(graph: CostGraph, joined: Tree) -> list[Tree]:
    """A tree of each set of nodes that these edges join and that is too large for an accelerator."""
    if not joined:
        return []
    pairs: Int64[np.ndarray, "2 joined"] = np.array(joined, np.int64).T
    count = graph.num_nodes
    adjacency = coo_array((np.ones(len(joined)), (pairs[0], pairs[1])), shape=(count, count)).tocsr()
    forest = minimum_spanning_tree(adjacency).tocoo()
    part = connected_components(adjacency, directed=False)[1]
    sizes = np.bincount(part, graph.sizes)
    edges = list(zip(forest.row.tolist(), forest.col.tolist(), strict=True))
    return [
        _pruned(graph, [edge for edge in edges if part[edge[0]] == number], float(sizes[number]))
        for number in np.flatnonzero(sizes > graph.memory_limit)
        if (part == number).sum() > 1
    ]


def _too_large(graph: CostGraph) -> list[Tree]:
    """Trees of edges that join more nodes than one accelerator can hold, so that one of them must be cut or lie on
    the CPU: from every node on, the first that is too large in topological order, without leaves that it can spare."""
    edges = sorted(graph.edges.T.tolist(), key=lambda edge: edge[1])
    trees = []
    for first in range(graph.num_nodes):
        members, tree = {first}, []
        size = float(graph.sizes[first])
        for producer, consumer in edges:
            if size > graph.memory_limit:
                break
            if consumer > first and consumer not in members and producer in members:
                members.add(consumer)
                tree.append((producer, consumer))
                size += float(graph.sizes[consumer])
        if size > graph.memory_limit and tree:
            trees.append(_pruned(graph, tree, size))
    return trees


def _pruned(graph: CostGraph, tree: Tree, size: float) -> Tree:
    """The tree without leaves that it can spare."""
    while True:
        degree = np.bincount(np.array(tree).ravel(), minlength=graph.num_nodes)
        spare = (degree == 1) & (size - graph.sizes > graph.memory_limit)
        if not spare.any():
            return tree
        leaf = int(np.where(spare, graph.sizes, np.inf).argmin())
        tree = [edge for edge in tree if leaf not in edge]
        size -= float(graph.sizes[leaf])


def _branches(graph: CostGraph) -> list[tuple[int, int, Tree]]:
    """Where paths part and meet again: the nodes where they do, and all edges of paths from the one to the other. If
    one accelerator has all of that, it computes the branches one after the other."""
    count = graph.num_nodes
    reached = np.eye(count, dtype=bool)  # [node, other]: a path leads from the other to the node
    edges = sorted(graph.edges.T.tolist(), key=lambda edge: edge[1])
    for producer, consumer in edges:
        reached[consumer] |= reached[producer]
    found = []
    for last in range(count):
        entries = [producer for producer, consumer in edges if consumer == last]
        if len(entries) < 2:
            continue
        common = np.flatnonzero(np.logical_and.reduce(reached[entries]))
        if len(common):
            first = int(common[-1])
            between = [(a, b) for a, b in edges if reached[last, b] and reached[a, first]]
            found.append((first, last, between))
    return found


def published_optimum(
    graph: CostGraph, time_limit_s: float = 60.0, hint: Plan | None = None, contiguous: bool = False, seed: int = 0
) -> Optimum:
    """Search for the plan of least published latency (`gst.placement.published`).

    Without `contiguous` the model is of all plans, and takes a plan for at most what it takes: time along every path,
    transfers into and out of accelerators on that path, branches in one accelerator one after the other, memory and
    colocation. Every plan on the way is judged by the objective itself, so that the result is proved where the best of
    them meets the bound. With `contiguous` the model is the objective itself, of plans with one call per accelerator
    (the contiguous splits of Tarnawski et al. 2020), and so is the bound.

    Args:
        hint: a plan to begin with; the result is never worse if it is admitted.

    Raises:
        ValueError: OR-tools is not installed, or the graph has a backward pass.
    """
    cp, runtime = solver_library(), PublishedObjective(graph)
    hint_ms = float("inf") if hint is None else float(runtime([hint])[0])
    known = (hint, hint_ms) if hint is not None and np.isfinite(hint_ms) else (None, float("inf"))
    on_accelerator = np.where(np.isfinite(graph.accelerator_ms), graph.accelerator_ms, 0.0)
    slowest = float(np.maximum(graph.cpu_ms, on_accelerator).sum())
    horizon = int(np.ceil(min(known[1], slowest + 2 * float(graph.transfer_ms.sum())) * PER_MS))
    rounding = 4 * graph.num_nodes / PER_MS
    started = time.perf_counter()
    least = max(_merged_bound(cp, graph, horizon, time_limit_s / 4, seed), int(published_bound(graph) * PER_MS))
    if known[1] <= least / PER_MS + rounding:
        return Optimum(known[0], known[1], known[1], True)
    model = PublishedModel(cp, graph, horizon)
    model.cp_model.add(model.span >= least)
    if contiguous:
        calls(model)
    if known[0] is not None:
        model.hint(runtime.home(known[0]))
    judge = _judge(cp, runtime, model)
    solver, status = solve(cp, model.cp_model, max(started + time_limit_s - time.perf_counter(), 1.0), seed, judge)
    plan, objective = min([*judge.found, known], key=lambda each: each[1])
    bound = horizon if status == cp.INFEASIBLE else max(int(solver.best_objective_bound), least)
    return Optimum(plan, objective, min(bound / PER_MS, objective), objective <= bound / PER_MS + rounding)


def _merged_bound(cp: Any, graph: CostGraph, horizon: int, time_limit_s: float, seed: int) -> int:
    """Nanoseconds that no plan takes less than: of the smaller model, which is told of every call that it makes too
    large and asked again, as long as there is time."""
    model, least, started = PublishedModel(cp, graph, horizon, apart=False), 0, time.perf_counter()
    while (left := started + time_limit_s - time.perf_counter()) > 0:
        solver, status = solve(cp, model.cp_model, left, seed)
        if status == cp.INFEASIBLE:
            return horizon
        least = max(least, int(solver.best_objective_bound))
        if status != cp.OPTIMAL:
            break
        trees = overfull(graph, [edge for edge, same in model.same.items() if solver.value(same)])
        if not trees:
            break
        for tree in trees:
            model.cut(tree)
    return least


def _judge(cp: Any, runtime: PublishedObjective, model: PublishedModel) -> Any:
    """A callback of the solver that asks the objective itself about every plan the solver comes upon."""

    class Judge(cp.CpSolverSolutionCallback):
        found: list[tuple[Plan, float]]

        def __init__(self) -> None:
            super().__init__()
            self.found = []

        def on_solution_callback(self) -> None:
            value: Callable[[Any], int] = self.value
            home = [next((a for a, each in enumerate(group) if value(each)), -1) for group in model.here]
            plan = runtime.plan(np.array(home, np.int64))
            took = float(runtime([plan])[0])
            if np.isfinite(took):
                self.found.append((plan, took))

    return Judge()
