"""Analytical cycles of an HLSyn design, composed over its loop tree, and the features of every loop that remains.

A pipelined loop of n iterations takes II * (n - 1) + depth cycles. Its initiation interval II is at least the latency
of what one iteration needs of an earlier one. Loops that are unrolled fully multiply operations and lengthen chains,
but take no iterations. Any other loop takes the sum of what is inside it, once for each iteration.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gst.data.hlsyn.loops import Access, Affine, Assignment, Kernel, Loop
from gst.data.hlsyn.pragmas import Point, Setting, canonical

COMMON = {"fdiv": 31, "sqrt": 31, "pow": 60, "exp": 40, "log": 40, "add": 1, "mul": 3, "div": 20, "logic": 1}
LATENCY = {"v18": {"fadd": 14, "fmul": 8, **COMMON}, "v20": {"fadd": 7, "fmul": 7, **COMMON}}
"""Cycles of one operation by version of the tool; double addition as the designs of GESUMMV show it."""
PORT_BYTES = 64  # that one cycle moves between memory and chip, at best
MEMORY_PORTS = 2  # of one bank of memory on the chip
LOOP_FEATURES = (
    "log_trips", "log_parallel", "log_tile", "divides", "is_tiled", "is_pipelined", "is_exact", "level", "children",
    "is_carried", "is_sum_carried", "is_named", "is_order_carried", "log_recurrence", "log_interval",
    "log_interval_free", "log_ports", "log_depth", "log_body", "log_unrolled", "log_copies", "log_outer", "adds",
    "multiplies", "divides_by", "integers", "is_integer", "reads", "writes", "irregular", "log_elements", "log_bytes",
    "is_new_tool", "has_parallel", "has_pipeline", "power_of_two", "log_estimate", "share", "log_iterations",
)  # fmt: skip
PROGRAM_FEATURES = (
    "composed", "optimistic", "serial", "wide_load", "narrow_load", "loops", "remaining", "operations", "is_new_tool",
    "log_parallel", "log_flattened", "most_ports", "arrays", "most_elements", "integers", "log_work",
)  # fmt: skip


class Recurrence(NamedTuple):
    """What one iteration of a loop needs of an earlier one.

    Args:
        path: operations between the read and the write.
        distance: how many iterations earlier.
        through: loops between the carrier and the statement that carry it too; unrolling them lengthens the chain.
        is_sum: an accumulation, which a tree of additions can shorten.
        is_named: a `reduction=` pragma allows that.
    """

    path: tuple[str, ...]
    distance: float
    through: tuple[str, ...]
    is_sum: bool
    is_named: bool


class LoopFacts(NamedTuple):
    """What holds of a loop whatever its pragmas."""

    loop: Loop
    level: int
    parent: str
    recurrences: tuple[Recurrence, ...]
    statements: tuple[
        tuple[Assignment, tuple[str, ...]], ...
    ]  # of the subtree, with the loops around each, outer first


class Estimate(NamedTuple):
    """Analytical cycles of one design.

    Args:
        cycles: composed over the loop tree, and the time to load and store arrays.
        program: log2 of estimates under other assumptions, and sums, in the order of `PROGRAM_FEATURES`.
        loops: (remaining loops, `LOOP_FEATURES`), children after parents.
        parents: row of the parent of each; -1 at the top.
    """

    cycles: float
    program: np.ndarray
    loops: np.ndarray
    parents: np.ndarray


def distance(write: Access, read: Access, variable: str) -> float | None:
    """Iterations of `variable` from a write to the read of the same element; None if there is no such read.

    Examples:
        >>> distance(Access("a", ({"i": 1},)), Access("a", ({"i": 1, "": -2},)), "i")
        2.0
        >>> distance(Access("a", ({"i": 1},)), Access("a", ({"i": 1},)), "k")
        1.0
        >>> distance(Access("a", ({"i": 1},)), Access("a", ({"i": 1},)), "i") is None
        True
    """
    if write.name != read.name or len(write.subscripts) != len(read.subscripts):
        return None
    result: float | None = None
    for one, two in zip(write.subscripts, read.subscripts, strict=True):
        if one is None or two is None:
            continue
        apart = _apart(one, two, variable)
        if apart is None:
            continue
        if apart <= 0 or apart != int(apart) or (result is not None and apart != result):
            return None
        result = apart
    return 1.0 if result is None else result


def _apart(write: Affine, read: Affine, variable: str) -> float | None:
    """Iterations between equal values of two subscripts; None if the variable decides nothing."""
    step = write.get(variable, 0)
    if not step or read.get(variable, 0) != step:
        return None
    others = {name for name in write.keys() | read.keys() if name not in ("", variable)}
    same = all(write.get(name, 0) == read.get(name, 0) for name in others)
    gap = (write.get("", 0) - read.get("", 0)) / step
    if others and (not same or gap):
        return None  # an inner loop may make up the difference
    return gap


def facts(kernel: Kernel) -> dict[str, LoopFacts]:
    """`LoopFacts` of every loop by its variable, outer before inner."""
    result: dict[str, LoopFacts] = {}

    def statements(loop: Loop, around: tuple[str, ...]) -> Iterator[tuple[Assignment, tuple[str, ...]]]:
        for item in loop.body:
            if isinstance(item, Loop):
                yield from statements(item, (*around, item.variable))
            else:
                yield item, around

    by_name = {loop.variable: loop for loop in kernel.loops()}

    def visit(loop: Loop, level: int, parent: str) -> None:
        inside = tuple(statements(loop, (loop.variable,)))
        recurrences = []
        readers: dict[str, list[tuple[Access, tuple[str, ...]]]] = {}
        for statement, _ in inside:
            for read, path in statement.reads:
                readers.setdefault(read.name, []).append((read, path))
        for statement, around in inside:
            own = [pair for pair in statement.reads if pair[0].name == statement.target.name]
            others = [] if own or not statement.target.subscripts else readers.get(statement.target.name, [])[:8]
            for read, path in own or others:
                apart = distance(statement.target, read, loop.variable)
                if apart is None:
                    continue
                is_sum = bool(own) and read == statement.target and set(path) <= {"fadd", "add"}
                through = tuple(
                    name for name in around[1:] if distance(statement.target, read, name) is not None
                )  # fmt: skip
                named = any(by_name[name].reduction in ("*", statement.target.name) for name in around)
                chain = path if own else (*path, *statement.depth[:1])
                recurrences.append(Recurrence(chain, apart, through, is_sum, named and is_sum))
        result[loop.variable] = LoopFacts(loop, level, parent, tuple(recurrences[:64]), inside)
        for item in loop.body:
            if isinstance(item, Loop):
                visit(item, level + 1, loop.variable)

    for item in kernel.body:
        if isinstance(item, Loop):
            visit(item, 0, "")
    return result


class _Times(NamedTuple):
    composed: float
    optimistic: float
    serial: float


def _cost(path: tuple[str, ...], latency: dict[str, int]) -> float:
    return float(sum(latency.get(kind, 1) for kind in path))


def estimate(kernel: Kernel, point: Point, tool: str, known: dict[str, LoopFacts] | None = None) -> Estimate:
    """Analytical cycles of a design, and features of the loops that remain.

    Args:
        tool: `v18` or `v20`.
        known: `facts(kernel)`, where many designs share them.
    """
    known = facts(kernel) if known is None else known
    settings = canonical(kernel, point)
    latency = LATENCY.get(tool, LATENCY["v20"])
    remaining = [name for name in known if not settings[name].is_unrolled]
    row = {name: place for place, name in enumerate(remaining)}
    table = np.zeros((len(remaining), len(LOOP_FEATURES)), np.float32)
    times: dict[str, _Times] = {}
    column = {name: place for place, name in enumerate(LOOP_FEATURES)}
    elements, total_bytes = (
        sum(kernel.arrays.values()),
        sum(count * kernel.bytes_of[name] for name, count in kernel.arrays.items()),
    )
    most_ports, work = 0.0, 0.0
    for name in reversed(remaining):  # children before parents
        fact, setting = known[name], settings[name]
        loop = fact.loop
        trips, parallel = loop.trip_count, float(min(setting.parallel, loop.trip_count))
        unrolled = {each.variable: each.trip_count for each in loop.walk() if settings[each.variable].is_unrolled}
        unrolled[name] = parallel
        children = [each for each in remaining if _owner(known, settings, each) == name]
        operations: Counter[str] = Counter()
        ports: Counter[str] = Counter()
        depth, reads, writes, irregular = 0.0, 0, 0, 0
        below = {each.variable for child in children for each in known[child].loop.walk()}
        for statement, around in fact.statements:
            if any(each in below for each in around):
                continue
            copies = math.prod(unrolled.get(each, 1.0) for each in around)
            for kind, count in statement.operations.items():
                operations[kind] += round(count * copies)
            depth = max(depth, _cost(statement.depth, latency))
            reads += len(statement.reads)
            writes += 1
            for access in (statement.target, *(read for read, _ in statement.reads)):
                if access.subscripts:
                    irregular += any(each is None for each in access.subscripts)
                    used = {each for affine in access.subscripts if affine for each in affine}
                    ports[access.name] += round(math.prod(unrolled[each] for each in unrolled if each in used))
        for inner in unrolled.keys() - {name}:  # chains through loops that were unrolled fully
            if inner in below:
                continue
            for each in known[inner].recurrences[:4]:
                steps = unrolled[inner] / each.distance
                depth += _cost(each.path, latency) * (math.log2(steps + 1) if each.is_named else steps)
        interval, free, chain, carried = 1.0, 1.0, 0.0, list(fact.recurrences)
        for each in carried:
            cost = _cost(each.path, latency) + 1
            longer = parallel * math.prod(unrolled.get(inner, 1.0) for inner in each.through)
            interval = max(interval, cost / each.distance * (1.0 if each.is_named else longer))
            free = max(free, cost / each.distance if not each.is_sum else 1.0)
            chain = max(chain, cost)
        iterations = math.ceil(trips / parallel)
        ordered = any(not each.is_sum for each in carried)
        need = max(ports.values(), default=0) / MEMORY_PORTS
        most_ports = max(most_ports, need)
        if not children:
            depth += 5
            composed = interval * (iterations - 1) + depth
            optimistic = iterations - 1 + depth
            serial = max(interval, need) * (iterations - 1) + depth * parallel
        else:
            inside = [times[child] for child in children]
            slow = trips if ordered else iterations
            composed = slow * (sum(each.composed for each in inside) + depth + 2)
            optimistic = iterations * (max(each.optimistic for each in inside) + 2)
            serial = trips * (sum(each.serial for each in inside) + depth + 2)
        times[name] = _Times(composed, optimistic, serial)
        total = float(sum(operations.values()))
        work += total * iterations
        floats = sum(count for kind, count in operations.items() if kind[0] == "f" or kind in ("sqrt", "pow"))
        outer = _ancestors(known, name)
        values = {
            "log_trips": math.log2(trips), "log_parallel": math.log2(parallel), "log_tile": math.log2(setting.tile),
            "divides": float(trips % parallel == 0), "is_tiled": float(setting.tile > 1),
            "is_pipelined": float(not children), "is_exact": float(loop.is_exact), "level": fact.level,
            "children": len(children), "is_carried": float(bool(carried)),
            "is_sum_carried": float(any(each.is_sum for each in carried)),
            "is_named": float(any(each.is_named for each in carried)), "is_order_carried": float(ordered),
            "log_recurrence": math.log2(chain + 1), "log_interval": math.log2(interval),
            "log_interval_free": math.log2(free), "log_ports": math.log2(need + 1), "log_depth": math.log2(depth + 1),
            "log_body": math.log2(total + 1), "log_unrolled": math.log2(math.prod(unrolled.values())),
            "log_copies": sum(math.log2(min(settings[each].parallel, known[each].loop.trip_count)) for each in outer),
            "log_outer": sum(math.log2(known[each].loop.trip_count) for each in outer),
            "adds": math.log2(operations["fadd"] + 1), "multiplies": math.log2(operations["fmul"] + 1),
            "divides_by": math.log2(operations["fdiv"] + operations["sqrt"] + operations["pow"] + 1),
            "integers": math.log2(total - floats + 1), "is_integer": float(not floats),
            "reads": math.log2(reads + 1), "writes": math.log2(writes + 1), "irregular": float(irregular > 0),
            "log_elements": math.log2(elements + 1), "log_bytes": math.log2(total_bytes + 1),
            "is_new_tool": float(tool != "v18"), "has_parallel": float("PARA" in loop.pragmas),
            "has_pipeline": float("PIPE" in loop.pragmas), "power_of_two": float(math.log2(parallel) % 1 == 0),
            "log_estimate": math.log2(composed), "log_iterations": math.log2(iterations),
        }  # fmt: skip
        for key, value in values.items():
            table[row[name], column[key]] = value
    tops = [name for name in remaining if _owner(known, settings, name) == ""]
    sums = _Times(*(sum(getattr(times[name], kind) for name in tops) for kind in _Times._fields))
    parents = np.array([row.get(_owner(known, settings, name), -1) for name in remaining], np.int64)
    for name in remaining:
        owner = _owner(known, settings, name)
        whole = times[owner].composed if owner else sums.composed
        table[row[name], column["share"]] = times[name].composed / max(whole, 1.0)
    wide, narrow = total_bytes / PORT_BYTES, float(elements)
    cycles = sums.composed + wide + 100
    integers = float(
        not any(kind[0] == "f" for fact in known.values() for s, _ in fact.statements for kind in s.operations)
    )
    program = np.array(
        [
            math.log2(cycles), math.log2(sums.optimistic + wide + 100), math.log2(sums.serial + wide + 100),
            math.log2(wide + 1), math.log2(narrow + 1), len(known), len(remaining),
            math.log2(work + 1), float(tool != "v18"),
            sum(math.log2(max(settings[name].parallel, 1)) for name in remaining),
            sum(math.log2(known[name].loop.trip_count) for name in known if settings[name].is_unrolled),
            math.log2(most_ports + 1), len(kernel.arrays),
            math.log2(max(kernel.arrays.values(), default=1) + 1), integers,
            math.log2(sum(math.prod(known[e].loop.trip_count for e in around) for f in known.values() if not f.parent
                          for _, around in f.statements) + 1),
        ],
        np.float32,
    )  # fmt: skip
    return Estimate(cycles, program, table, parents)


def _ancestors(known: dict[str, LoopFacts], name: str) -> list[str]:
    result = []
    while name := known[name].parent:
        result.append(name)
    return result


def _owner(known: dict[str, LoopFacts], settings: dict[str, Setting], name: str) -> str:
    """The nearest loop around `name` that remains; empty at the top."""
    return next((each for each in _ancestors(known, name) if not settings[each].is_unrolled), "")
