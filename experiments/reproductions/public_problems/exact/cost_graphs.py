"""Optimal plans of published cost graphs by their published latency, and bounds of it, by constraint programming."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from experiments.reproductions.public_problems.cost_graphs import CostGraph
from experiments.reproductions.public_problems.exact.solver import Optimum, first_come, solve, solver_library
from experiments.reproductions.public_problems.published import PublishedObjective, published_bound
from gst.lowering.plan import Plan

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
        """Time to move the value of a node out of its accelerator."""
        outward = self.cp_model.new_bool_var("")
        for (producer, _), together in self.same.items():
            if producer == node:
                self.cp_model.add(outward >= self.on[node] - together)
        return int(self.transfer[node]) * outward

    def _same(self, producer: int, consumer: int) -> Any:
        """Literal that is true if both nodes are in one call of an accelerator, so that nothing moves."""
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
        if len(tree) == 1 or not spare.any():
            return tree
        leaf = int(np.where(spare, graph.sizes, np.inf).argmin())
        tree = [edge for edge in tree if leaf not in edge]
        size -= float(graph.sizes[leaf])


def _branches(graph: CostGraph) -> list[tuple[int, int, Tree]]:
    """Return each pair of nodes where paths part and meet again, with all edges of the paths between them. If
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
    """Search for the plan of least published latency (`experiments.reproductions.public_problems.published`).

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
