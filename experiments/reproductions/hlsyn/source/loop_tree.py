"""The loop tree of a kernel: loops with trip counts, pragmas and bodies, and statements with their reads and writes.

`functions.py` builds it from a C source; `experiments.reproductions.hlsyn.cycles` estimates cycles and resources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from experiments.reproductions.hlsyn.source.affine import Affine


@dataclass(frozen=True)
class Access:
    """One element that a statement reads or writes: an array with a subscript for each dimension, or a scalar.

    Args:
        subscripts: of each dimension, the coefficient of each loop variable, "" being the constant; None where the
            subscript is not affine (an element that data names).
    """

    name: str
    subscripts: tuple[Affine | None, ...] = ()


@dataclass(frozen=True)
class Assignment:
    """One statement that writes `target`.

    Args:
        reads: what the written value depends on, each with the operations between the read and the write.
        operations: how often each operation occurs: `fadd`, `fmul`, `fdiv`, `sqrt`, `pow`, `add`, `mul`, `div`,
            `logic`.
        depth: the longest chain of operations.
        is_guarded: an `if` stands around it.
    """

    target: Access
    reads: tuple[tuple[Access, tuple[str, ...]], ...]
    operations: Counter[str]
    depth: tuple[str, ...]
    is_guarded: bool = False


@dataclass(frozen=True)
class Loop:
    """One loop.

    Args:
        variable: its counter, unique in the kernel.
        trip_count: iterations; the mean where an outer loop decides, 1 and not `is_exact` where only data does.
        place: the place that its pragmas name (`L0_1` of `__PARA__L0_1`), empty without any.
        pragmas: kinds of its pragmas: `PARA`, `PIPE`, `TILE`.
        reduction: the variable that its parallel pragma names; "*" if it names none; empty if it is no reduction.
        body: statements and inner loops, in order.
    """

    variable: str
    trip_count: float
    is_exact: bool
    place: str
    pragmas: frozenset[str]
    reduction: str
    body: tuple[Loop | Assignment, ...]

    def walk(self) -> Iterator[Loop]:
        """This loop, then all inside it, outer before inner."""
        yield self
        for item in self.body:
            if isinstance(item, Loop):
                yield from item.walk()


@dataclass(frozen=True)
class Kernel:
    """One kernel.

    Args:
        name: of the function.
        arrays: elements of each parameter that is an array.
        bytes_of: bytes of one element of each.
        body: statements and loops at its top.
        shapes: sizes of the dimensions of each, outer first; empty where the source gives none.
    """

    name: str
    arrays: dict[str, int]
    bytes_of: dict[str, int]
    body: tuple[Loop | Assignment, ...]
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def loops(self) -> list[Loop]:
        """All loops, outer before inner, in the order of the source."""
        return [loop for item in self.body if isinstance(item, Loop) for loop in item.walk()]
