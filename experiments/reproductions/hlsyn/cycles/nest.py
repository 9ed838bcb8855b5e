"""A kernel under one setting of its pragmas: which loops remain, what an iteration does, and how long it must wait."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from experiments.reproductions.hlsyn.cycles.dependences import LoopFacts
from experiments.reproductions.hlsyn.source.loop_tree import Kernel
from experiments.reproductions.hlsyn.source.pragmas import Setting

COMMON = {"fdiv": 31, "sqrt": 31, "pow": 60, "exp": 40, "log": 40, "add": 1, "mul": 3, "div": 20, "logic": 1}
LATENCY = {"v18": {"fadd": 14, "fmul": 8, **COMMON}, "v20": {"fadd": 7, "fmul": 7, **COMMON}}
"""Cycles of one operation by version of the tool; double addition as the designs of GESUMMV show it."""
MEMORY_PORTS = 2  # of one bank of memory on the chip


class Body(NamedTuple):
    """Work of one loop iteration outside the loops that remain in it."""

    operations: Counter[str]
    ports: float
    depth: float
    reads: int
    writes: int
    is_irregular: bool


class Interval(NamedTuple):
    """Cycles between two iterations of a pipelined loop.

    Args:
        bound: as recurrences demand.
        free: the same without sums.
        chain: the longest of the recurrences.
    """

    bound: float
    free: float
    chain: float


class Nest(NamedTuple):
    """A kernel under one setting of its pragmas."""

    kernel: Kernel
    known: dict[str, LoopFacts]
    settings: dict[str, Setting]
    latency: dict[str, int]
    remaining: list[str]

    def ancestors(self, name: str) -> list[str]:
        """Loops around a loop, inner first."""
        result = []
        while name := self.known[name].parent:
            result.append(name)
        return result

    def owner(self, name: str) -> str:
        """The nearest loop around `name` that remains; empty at the top."""
        return next((each for each in self.ancestors(name) if not self.settings[each].is_unrolled), "")

    def children(self, name: str) -> list[str]:
        """Loops that remain whose owner is `name`."""
        return [each for each in self.remaining if self.owner(each) == name]

    def parallel(self, name: str) -> float:
        """Copies of the body of a loop."""
        return float(min(self.settings[name].parallel, self.known[name].loop.trip_count))

    def cost(self, path: tuple[str, ...]) -> float:
        """Cycles of a chain of operations."""
        return float(sum(self.latency.get(kind, 1) for kind in path))

    def is_legal(self, name: str) -> bool:
        """Iterations need no array element of an earlier one."""
        return all(each.is_scalar for each in self.known[name].recurrences)


def body_of(nest: Nest, fact: LoopFacts, unrolled: Mapping[str, float], below: set[str]) -> Body:
    """Return the work of one loop iteration.

    Args:
        unrolled: copies of the loop itself and of each loop inside that is unrolled, by variable.
        below: variables of loops that remain inside, and of all in them.
    """
    operations: Counter[str] = Counter()
    ports: Counter[str] = Counter()
    depth, reads, writes, irregular = 0.0, 0, 0, False
    for statement, around in fact.statements:
        if any(each in below for each in around):
            continue
        copies = math.prod(unrolled.get(each, 1.0) for each in around)
        for kind, count in statement.operations.items():
            operations[kind] += round(count * copies)
        depth = max(depth, nest.cost(statement.depth))
        reads += len(statement.reads)
        writes += 1
        for access in (statement.target, *(read for read, _ in statement.reads)):
            if access.subscripts:
                irregular |= any(each is None for each in access.subscripts)
                used = {each for affine in access.subscripts if affine for each in affine}
                ports[access.name] += round(math.prod(unrolled[each] for each in unrolled if each in used))
    for inner in unrolled.keys() - {fact.loop.variable} - below:  # chains through loops that were unrolled fully
        for each in nest.known[inner].recurrences[:4]:
            steps = unrolled[inner] / each.distance
            depth += nest.cost(each.path) * (math.log2(steps + 1) if each.is_named else steps)
    return Body(operations, max(ports.values(), default=0) / MEMORY_PORTS, depth, reads, writes, irregular)


def interval_of(nest: Nest, fact: LoopFacts, unrolled: Mapping[str, float]) -> Interval:
    """Cycles between iterations of a loop; `unrolled` as for `body_of`."""
    bound, free, chain = 1.0, 1.0, 0.0
    for each in fact.recurrences:
        cost = nest.cost(each.path) + 1
        longer = unrolled[fact.loop.variable] * math.prod(unrolled.get(inner, 1.0) for inner in each.through)
        bound = max(bound, cost / each.distance * (1.0 if each.is_named else longer))
        free = max(free, cost / each.distance if not each.is_sum else 1.0)
        chain = max(chain, cost)
    return Interval(bound, free, chain)
