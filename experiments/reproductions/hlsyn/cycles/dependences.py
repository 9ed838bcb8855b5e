"""Dependences of one loop iteration on earlier ones, from the subscripts of reads and writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from experiments.reproductions.hlsyn.source.affine import Affine
from experiments.reproductions.hlsyn.source.loop_tree import Access, Assignment, Kernel, Loop


class Recurrence(NamedTuple):
    """Dependence of one loop iteration on an earlier one.

    Args:
        path: operations between the read and the write.
        distance: how many iterations earlier.
        through: loops between the carrier and the statement that carry it too; unrolling them lengthens the chain.
        is_sum: an accumulation, which a tree of additions can shorten.
        is_named: a `reduction=` pragma allows that.
        is_scalar: through a variable that is no array, of which copies of an iteration may have one each.
    """

    path: tuple[str, ...]
    distance: float
    through: tuple[str, ...]
    is_sum: bool
    is_named: bool
    is_scalar: bool


class LoopFacts(NamedTuple):
    """Properties of a loop that do not depend on its pragmas."""

    loop: Loop
    level: int
    parent: str
    recurrences: tuple[Recurrence, ...]
    statements: tuple[
        tuple[Assignment, tuple[str, ...]], ...
    ]  # of the subtree, with the loops around each, outer first


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


def _fresh(inside: tuple[tuple[Assignment, tuple[str, ...]], ...]) -> set[str]:
    """Variables that every iteration of a loop sets before it reads them."""
    met: set[str] = set()
    fresh = set()
    for statement, _ in inside:
        read = {access.name for access, _ in statement.reads}
        target = statement.target.name
        if target not in met | read and not statement.is_guarded:
            fresh.add(target)
        met |= read | {target}
    return fresh


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
        fresh = _fresh(inside)
        recurrences = []
        readers: dict[str, list[tuple[Access, tuple[str, ...]]]] = {}
        for statement, _ in inside:
            for read, path in statement.reads:
                readers.setdefault(read.name, []).append((read, path))
        for statement, around in inside:
            if statement.target.name in fresh and not statement.target.subscripts:
                continue
            own = [pair for pair in statement.reads if pair[0].name == statement.target.name]
            others = [] if own or not statement.target.subscripts else readers.get(statement.target.name, [])[:8]
            for read, path in own or others:
                apart = distance(statement.target, read, loop.variable)
                if apart is None:
                    continue
                is_sum = bool(own) and read == statement.target and set(path) <= {"fadd", "add"}
                through = tuple(
                    name for name in around[1:] if own and distance(statement.target, read, name) is not None
                )  # fmt: skip
                named = any(by_name[name].reduction == statement.target.name for name in around)
                chain = path if own else (*path, *statement.depth[:1])
                is_scalar = not statement.target.subscripts
                recurrences.append(Recurrence(chain, apart, through, is_sum, named and is_sum, is_scalar))
        result[loop.variable] = LoopFacts(loop, level, parent, tuple(recurrences[:64]), inside)
        for item in loop.body:
            if isinstance(item, Loop):
                visit(item, level + 1, loop.variable)

    for item in kernel.body:
        if isinstance(item, Loop):
            visit(item, 0, "")
    return result
