"""Slow twin of the checker of stream programs: every interleaving of small ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from gst.lowering.calls import Storages
from gst.lowering.common_order import Work
from gst.lowering.lower import lowered
from gst.lowering.plan import COPY, FREE, RECORD, RUN, WAIT, StreamProgram

Value = tuple[int, int]  # node, memory


def random_work(rng: np.random.Generator, nodes: int, memories: int, lanes: int, fused: bool = True) -> StreamProgram:
    """A made-up program of some inputs, operations, views and groups, lowered onto `lanes` lanes of each memory."""
    inputs = int(rng.integers(1, 3))
    edges, held, made_by, size = [], [], [], []
    storages_of: list[list[int]] = [[] for _ in range(nodes)]
    for node in range(inputs, nodes):
        producers = rng.choice(node, size=min(node, int(rng.integers(1, 3))), replace=False)
        edges += [(int(producer), node) for producer in producers]
        base = int(producers[0])
        if rng.random() < 0.3 and storages_of[base]:
            storages_of[node] = [storages_of[base][int(rng.integers(len(storages_of[base])))]]
        else:
            for _ in range(int(rng.integers(1, 3))):
                storages_of[node].append(len(made_by))
                made_by.append(node)
                size.append(int(rng.integers(1, 10)))
        held += [(storage, node) for storage in storages_of[node]]
    group = np.full(nodes, -1)
    label = np.arange(nodes)
    for node in range(inputs + 1, nodes):
        if fused and rng.random() < 0.2:  # neighbours in a topological order, so that groups are in no circle
            label[node] = label[node - 1]
    group[inputs:] = np.unique(label[inputs:], return_inverse=True)[1]
    count = int(group.max()) + 1
    allocated = Storages(np.array(size), np.array(made_by), np.array(held).reshape(-1, 2).T)
    work = Work(
        np.array(edges).T, group, rng.integers(0, memories * lanes, count), rng.permutation(count),
        np.where(np.arange(nodes) < inputs, rng.integers(-1, memories, nodes), -1),
        np.unique(np.append(rng.choice(nodes, 1), nodes - 1)), rng.integers(1, 10, nodes), rng.integers(0, 5, count),
        allocated,
    )  # fmt: skip
    names = [f"{memory}/{lane}" for memory in range(memories) for lane in range(lanes)]
    return lowered(work, [str(memory) for memory in range(memories)], names, np.repeat(np.arange(memories), lanes))


def accesses(program: StreamProgram, step: int) -> tuple[list[Value], list[Value], list[Value]]:
    """Values that a step reads, writes and frees."""
    lane = int(np.searchsorted(program.bounds, step, "right")) - 1
    memory, argument = int(program.lane_memory[lane]), int(program.argument[step])
    if program.kind[step] == RUN:
        reads, writes = (lists.lists()[argument] for lists in (program.reads, program.writes))
        return [(node, memory) for node in reads], [(node, memory) for node in writes], []
    if program.kind[step] == COPY:
        return [(argument, memory)], [(argument, int(program.target[step]))], []
    return [], [], [(argument, memory)] if program.kind[step] == FREE else []


@dataclass
class Outcome:
    """What runs of a program may do.

    Args:
        luck: whether some run reads what is not there, never ends, or differs from another in what it makes, or in
            which step takes or gives back a buffer.
        peak: for each memory the most bytes at any moment of any run.
        states: how many were looked at.
    """

    luck: bool = False
    peak: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    states: int = 0


def explore(program: StreamProgram) -> Outcome:
    """Every state that any run can reach. Runs and copies take two moments each: they begin, then they end."""
    of_step = [accesses(program, step) for step in range(program.num_steps)]
    made = {(int(node), int(memory)): position for position, (node, memory) in enumerate(program.made.T)}
    holds = program.holds.lists()
    holders: dict[int, set[Value]] = defaultdict(set)
    for value, position in made.items():
        for buffer in holds[position]:
            holders[buffer].add(value)
    written_somewhere = {value for _, writes, _ in of_step for value in writes}
    holders = {buffer: values & written_somewhere for buffer, values in holders.items()}
    residents = {(int(node), int(memory)) for node, memory in program.residents.T}
    results = {(int(node), int(memory)) for node, memory in program.results.T}
    lanes = [range(program.bounds[lane], program.bounds[lane + 1]) for lane in range(len(program.lanes))]
    moments = [  # (step, whether it ends there)
        [(step, half) for step in steps for half in ((0, 1) if program.kind[step] in (RUN, COPY) else (1,))]
        for steps in lanes
    ]
    outcome = Outcome()
    takers: dict[int, set[int]] = defaultdict(set)
    givers: dict[int, set[int]] = defaultdict(set)
    empty = frozenset()
    start = (tuple(0 for _ in lanes), empty, empty, empty, empty)
    waiting, known = [start], {start[0]}
    while waiting:
        at, begun, written, freed, events = waiting.pop()
        outcome.states += 1
        present = (written | residents) - freed
        taken: dict[int, int] = defaultdict(int)
        for buffer, values in holders.items():
            if values & begun and not values <= freed:
                taken[next(iter(values))[1]] += int(program.buffer_bytes[buffer])
        for lane, position in enumerate(at):
            if position and moments[lane][position - 1][1] == 0:
                step = moments[lane][position - 1][0]
                if program.kind[step] == RUN:
                    taken[int(program.lane_memory[lane])] += int(program.transient_bytes[program.argument[step]])
        for memory, size in taken.items():
            outcome.peak[memory] = max(outcome.peak[memory], size)
        moved = False
        for lane, position in enumerate(at):
            if position == len(moments[lane]):
                continue
            step, half = moments[lane][position]
            kind, argument = int(program.kind[step]), int(program.argument[step])
            reads, writes, frees = of_step[step]
            if kind == WAIT and argument not in events:
                continue
            moved = True
            outcome.luck |= any(value not in present for value in [*reads, *frees])
            now = (begun, written, freed, events)
            if kind == RECORD:
                outcome.luck |= argument in events
                now = (begun, written, freed, events | {argument})
            if kind in (RUN, COPY) and half == 0:
                outcome.luck |= any(value in begun | residents for value in writes)
                for buffer, values in holders.items():
                    if values & set(writes) and not values & begun:
                        takers[buffer].add(step)
                now = (begun | set(writes), written, freed, events)
            if kind in (RUN, COPY) and half == 1:
                now = (begun, written | set(writes), freed, events)
            if kind == FREE:
                outcome.luck |= bool(set(frees) & residents)
                for buffer, values in holders.items():
                    if set(frees) & values and values <= freed | set(frees):
                        givers[buffer].add(step)
                now = (begun, written, freed | set(frees), events)
            then = (*at[:lane], position + 1, *at[lane + 1 :])
            if then not in known:
                known.add(then)
                waiting.append((then, *now))
        if not moved:
            outcome.luck |= any(position < len(moments[lane]) for lane, position in enumerate(at))
            outcome.luck |= not results <= present
        if outcome.luck:
            return outcome
    outcome.luck = any(len(steps) > 1 for steps in [*takers.values(), *givers.values()])
    return outcome


def mutants(program: StreamProgram, chosen: Iterable[int] | None = None) -> dict[str, StreamProgram]:
    """Programs with one mistake at one of the chosen steps, or at any: a wait dropped or for another event, two
    neighbours swapped, a free before the last step that does something, a copy on another lane or to another memory."""
    result: dict[str, StreamProgram] = {}
    lane = program.lane_of_step

    def rearranged(order: list[int], lanes: np.ndarray) -> StreamProgram:
        bounds = np.zeros(len(program.bounds), np.int64)
        np.cumsum(np.bincount(lanes[order], minlength=len(program.lanes)), out=bounds[1:])
        return replace(
            program, bounds=bounds, kind=program.kind[order], argument=program.argument[order],
            target=program.target[order],
        )  # fmt: skip

    steps = list(range(program.num_steps))
    for step in steps if chosen is None else chosen:
        where = program.place_words(step)
        if program.kind[step] == WAIT:
            result[f"without {where}"] = rearranged([each for each in steps if each != step], lane)
            other = program.argument.copy()
            other[step] = (other[step] + 1) % program.num_events
            result[f"another event at {where}"] = replace(program, argument=other)
        if step + 1 < len(steps) and lane[step] == lane[step + 1]:
            order = steps.copy()
            order[step : step + 2] = [step + 1, step]
            result[f"swapped {where} and the next"] = rearranged(order, lane)
        if program.kind[step] == FREE:
            earlier = step - 1
            while earlier > program.bounds[lane[step]] and program.kind[earlier] not in (RUN, COPY):
                earlier -= 1
            if earlier >= program.bounds[lane[step]]:
                order = [each for each in steps if each != step]
                order.insert(order.index(earlier), step)
                result[f"early {where}"] = rearranged(order, lane)
        if program.kind[step] == COPY:
            for another in range(len(program.lanes)):
                if another != lane[step]:
                    lanes = lane.copy()
                    lanes[step] = another
                    order = [each for each in steps if each != step]
                    offset = step - program.bounds[lane[step]]
                    behind = [each for each in order if lane[each] == another][:offset]
                    at = order.index(behind[-1]) + 1 if behind else sum(lane[each] < another for each in order)
                    order.insert(at, step)
                    result[f"on lane {another} {where}"] = rearranged(order, lanes)
            target = program.target.copy()
            target[step] = (target[step] + 1) % len(program.memories)
            result[f"to another memory {where}"] = replace(program, target=target)
    return result
