"""Changes of plans, drawn at random or where a simulated run had to wait; distinct random plans of several kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import cycle
from typing import no_type_check

import numpy as np
from jaxtyping import Bool, Float64, Int64

from gst.lowering.plan import Plan, Rows, ranks, rows
from gst.machine.devices import overlap
from gst.placement.baselines.portfolio import portfolio, rank_us, task_scheduled
from gst.placement.baselines.units import moved
from gst.placement.task import Task
from gst.simulation.copies import BUSY, CROSSING, CriticalPath, copies_of, critical_path
from gst.util.compiled import compiled
from partitioners import has_metis, partition

CLUSTER_NODES = (6, 20, 60, 180)
"""Nodes in a cluster of each level, about."""


@dataclass(frozen=True, eq=False)
class State:
    """A plan as the search changes it.

    Args:
        placement: device of each node.
        offset_us: added to the priority of each node.
        by_tail: priorities are the longest paths to the end under this placement plus the offsets, not these alone.
    """

    placement: Int64[np.ndarray, " nodes"]
    offset_us: Float64[np.ndarray, " nodes"]
    by_tail: bool


class Neighbourhood:
    """Neighbours of states, drawn at random. In a task without a program the nodes of a colocation group stay together;
    in one with a program groups move as one in most steps, single operations in some.

    Attributes:
        moves: the kinds of steps by name.
        waits: the critical path of the last simulated run; None before the first.
    """

    def __init__(self, task: Task, generator: np.random.Generator) -> None:
        self.task, self.generator = task, generator
        self.waits: CriticalPath | None = None
        self._arrays = task_scheduled(task, handed_over=False).arrays
        nodes, together = np.arange(task.num_nodes), task.colocation
        self._groups = _lists(together)
        self._free = task.program is not None
        self._overlapping = overlap(task.devices)
        self._units = _lists(nodes if self._free else in_order_of_first(together))
        able = np.isfinite(task.times_us)
        if not self._free:
            able = np.stack([np.bincount(together, ~each)[together] == 0 for each in able])
        self._able: Bool[np.ndarray, "devices nodes"] = able
        least = np.where(able, task.times_us, np.inf).min(0)
        group_us = np.bincount(together, np.where(np.isfinite(least), least, 0.0))
        weight = 0.5 * (group_us > 0) / max((group_us > 0).sum(), 1) + 0.5 * group_us / max(group_us.sum(), 1e-12)
        weight = weight if weight.sum() > 0 else np.ones(len(group_us))
        self._group_sums = np.append(np.cumsum(weight[:-1]) / weight.sum(), 1.0)
        both = np.concatenate([task.costs.edges, task.costs.edges[::-1]], axis=1)
        self._beside = rows(both[0], both[1], task.num_nodes)
        graph = (each.astype(np.int64).tobytes() for each in (task.costs.edges, together))
        self._clusters = [_lists(label) for label in _cluster_labels(*graph)]
        self.moves: dict[str, Callable[[State], State]] = {"order": self._order}
        if len(task.devices) > 1:
            self.moves |= {
                "group": self._group, "around": self._around, "cluster": self._cluster, "stretch": self._stretch,
                "swap": self._swap, "follow": self._follow, "waited": self._waited, "unload": self._unload,
            }  # fmt: skip

    def state(self, plan: Plan, by_tail: bool) -> State:
        """Return a plan as a state, with its own priorities or the longest paths to the end. Nodes move that cannot run
        where they are, or are apart from their group where they must not be."""
        placement = plan.homes(self.task.names)
        if not self._free:
            placement = placement[_first_of_group(self.task.colocation)]
        stuck = ~self._able[placement, np.arange(len(placement))]
        placement = np.where(stuck, self._able.argmax(0), placement)
        if by_tail:
            return State(placement, np.zeros(len(placement)), True)
        span = self._tails_us(placement).max(initial=1.0)
        return State(placement, (1 - ranks(plan) / len(placement)) * span, False)

    def plan(self, state: State) -> Plan:
        """Return a state as a plan; its priorities are nanoseconds."""
        key = state.offset_us
        if state.by_tail:
            key = key + self._tails_us(state.placement)
        return Plan(self.task.names, state.placement, np.rint(1e3 * key).astype(np.int64))

    def look(self, plan: Plan) -> None:
        """Simulate a plan, and keep its `waits`."""
        costs, run = self.task.costs, self.task.simulator.run(plan)
        self.waits = critical_path(costs, run, copies_of(costs, run))

    def _tails_us(self, home: Int64[np.ndarray, " nodes"]) -> Float64[np.ndarray, " nodes"]:
        """Return the longest path from the begin of each operation to the end of the program, transfers included: the
        upward rank of Topcuoglu et al. (2002) of a placement."""
        return _tails(home, self._arrays)

    def _draw(self, count: int) -> int:
        return int(self.generator.random() * count)

    def _other(self, device: int) -> int:
        other = self._draw(len(self.task.devices) - 1)
        return other + (other >= device)

    def _put(self, state: State, nodes: Int64[np.ndarray, " some"], device: int) -> State:
        placement = state.placement.copy()
        placement[nodes[self._able[device, nodes]]] = device
        return replace(state, placement=placement)

    def _drawn_group(self) -> Int64[np.ndarray, " members"]:
        return _list(self._groups, int(self._group_sums.searchsorted(self.generator.random())))

    def _whole(self, nodes: Int64[np.ndarray, " some"]) -> Int64[np.ndarray, " members"]:
        groups = dict.fromkeys(self.task.colocation[nodes].tolist())
        return np.concatenate([_list(self._groups, group) for group in groups])

    def _group(self, state: State) -> State:
        nodes = self._drawn_group()
        return self._put(state, nodes, self._other(int(state.placement[nodes[0]])))

    def _neighbours(self, nodes: Int64[np.ndarray, " some"]) -> Int64[np.ndarray, " neighbours"]:
        return np.concatenate([_list(self._beside, int(node)) for node in nodes[:16]])

    def _around(self, state: State) -> State:
        nodes = self._drawn_group()
        device = self._other(int(state.placement[nodes[0]]))
        return self._put(state, self._whole(np.concatenate([nodes, self._neighbours(nodes)[:24]])), device)

    def _cluster(self, state: State) -> State:
        lists = self._clusters[self._draw(len(self._clusters))]
        nodes = _list(lists, self._draw(len(lists[0]) - 1))
        return self._put(state, nodes, self._other(int(state.placement[nodes[0]])))

    def _stretch(self, state: State) -> State:
        indptr, members = self._units
        units = len(indptr) - 1
        length = int(np.exp(self.generator.random() * np.log(units / 2 + 1)))
        first = self._draw(units - length + 1)
        nodes = members[indptr[first] : indptr[first + length]]
        if self.generator.random() < 0.5:
            return self._put(state, nodes, self._draw(len(self.task.devices)))
        return self._put(state, nodes, self._other(int(state.placement[nodes[-1]])))

    def _swap(self, state: State) -> State:
        one, other = self._drawn_group(), self._drawn_group()
        here, there = int(state.placement[one[0]]), int(state.placement[other[0]])
        return self._put(self._put(state, one, there), other, here)

    def _follow(self, state: State) -> State:
        """Move a group to where most bytes of what it reads and makes are."""
        nodes = self._drawn_group()
        near = self._neighbours(nodes)
        if not len(near):
            return self._group(state)
        votes = np.bincount(state.placement[near], 1.0 + self.task.costs.output_bytes[near])
        votes = votes * (np.arange(len(votes)) != state.placement[nodes[0]])
        return self._put(state, nodes, int(votes.argmax())) if votes.any() else self._group(state)

    def _unload(self, state: State) -> State:
        """Move a group of the busiest device to the idlest."""
        times = self.task.times_us[state.placement, np.arange(self.task.num_nodes)]
        busy = np.bincount(state.placement, times, len(self.task.devices))
        busiest, idlest = int(busy.argmax()), int(busy.argmin())
        for _ in range(8):
            nodes = self._drawn_group()
            if state.placement[nodes[0]] == busiest:
                return self._put(state, nodes, idlest)
        return self._group(state)

    def _waited(self, state: State) -> State:
        """Change the plan at a place of the chain of waits. Where a value crosses, one side goes to the device of the
        other. Where a device was busy, one of the two operations moves, or they change their order, or both move."""
        if self.waits is None:
            return self._group(state)
        chain, cause = self.waits.nodes, self.waits.cause
        places = np.flatnonzero((cause == CROSSING) | (cause == BUSY))
        if not len(places):
            return self._group(state)
        at = int(places[self._draw(len(places))])
        length = 1 + int(self.generator.exponential(3.0))
        later, earlier = chain[max(at + 1 - length, 0) : at + 1], chain[at + 1 : at + 1 + length]
        late, early = int(chain[at]), int(chain[at + 1])
        members, device = (later, early) if self.generator.random() < 0.5 else (earlier, late)
        if cause[at] == CROSSING:
            return self._put(state, self._some(members), int(state.placement[device]))
        if self._overlapping and self.generator.random() < 0.5:
            ends = self.generator.permutation(len(self.task.devices))[:2].tolist()
            state = self._put(state, self._some(chain[at : at + 1]), ends[0])
            return self._put(state, self._some(chain[at + 1 : at + 2]), ends[1])
        if self.generator.random() < 0.3:
            tails = self._tails_us(state.placement) if state.by_tail else np.zeros(len(state.placement))
            offset = state.offset_us.copy()
            offset[late] += 1.0 + max(tails[early] + offset[early] - tails[late] - offset[late], 0.0)
            return replace(state, offset_us=offset)
        return self._put(state, self._some(members), self._other(int(state.placement[late])))

    def _some(self, nodes: Int64[np.ndarray, " some"]) -> Int64[np.ndarray, " members"]:
        return nodes if self._free and self.generator.random() < 0.5 else self._whole(nodes)

    def _order(self, state: State) -> State:
        """Run some operations earlier or later; rarely, let priorities begin or cease to follow the placement."""
        tails = self._tails_us(state.placement)
        if self.generator.random() < 0.05:
            if state.by_tail:
                return replace(state, offset_us=state.offset_us + tails, by_tail=False)
            return replace(state, offset_us=np.zeros(len(tails)), by_tail=True)
        if self.waits is not None and len(self.waits.nodes) and self.generator.random() < 0.5:
            nodes = self.waits.nodes[self._draw(len(self.waits.nodes)) :][: 1 + self._draw(8)]
        else:
            nodes = self._drawn_group()
        offset = state.offset_us.copy()
        scale = tails.max() * 10 ** (-3 + 2.5 * self.generator.random())
        offset[nodes] += scale * self.generator.standard_normal()
        return replace(state, offset_us=offset)


def _first_of_group(colocation: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Return the first node of the group of each node."""
    _, first, inverse = np.unique(colocation, return_index=True, return_inverse=True)
    return first[inverse].astype(np.int64)


def in_order_of_first(colocation: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " nodes"]:
    """Number groups anew, in the order of their first nodes.

    Examples:
        >>> in_order_of_first(np.array([2, 0, 2, 1])).tolist()
        [0, 1, 0, 2]
    """
    return np.unique(_first_of_group(colocation), return_inverse=True)[1].astype(np.int64)


@lru_cache(maxsize=2)
def _cluster_labels(edge_bytes: bytes, colocation_bytes: bytes) -> list[Int64[np.ndarray, " nodes"]]:
    """Return METIS clusters of several sizes, none without pymetis; a group belongs to that of its first node. They do
    not depend on costs, so that a loop that corrects costs finds them once."""
    edges = np.frombuffer(edge_bytes, np.int64).reshape(2, -1)
    colocation = np.frombuffer(colocation_bytes, np.int64)
    labels, first = [in_order_of_first(colocation)], _first_of_group(colocation)
    for size in CLUSTER_NODES:
        if (parts := len(colocation) // size) > 1 and has_metis():
            part = partition(edges, len(colocation), parts, "metis", tolerance=1.0)
            labels.append(np.unique(part[first], return_inverse=True)[1].astype(np.int64))
    return labels


def _lists(label: Int64[np.ndarray, " nodes"]) -> Rows:
    """Return the nodes by label."""
    return rows(label, np.arange(len(label)), int(label.max()) + 1)


def _list(lists: Rows, number: int) -> Int64[np.ndarray, " members"]:
    indptr, members = lists
    return members[indptr[number] : indptr[number + 1]]


@compiled
@no_type_check
def _tails(home, arrays):
    tail = np.zeros(len(home))
    for node in range(len(home) - 1, -1, -1):
        longest = 0.0
        for position in range(arrays.indptr[node], arrays.indptr[node + 1]):
            consumer = arrays.consumers[position]
            longest = max(longest, moved(node, home[node], home[consumer], arrays) + tail[consumer])
        tail[node] = longest + arrays.times[home[node], node]
    return tail


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
        >>> import gst
        >>> next(random_plans(gst.placement.machine("gpus:2").task(gst.programs.traced("rnnlm:layers=1,steps=2"))))[0]
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
    return task.plan(generator.choice(len(task.devices), task.num_groups, p=shares)[task.colocation])


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
