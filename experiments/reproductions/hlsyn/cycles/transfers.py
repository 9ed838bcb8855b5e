"""Elements that a tile, or the copies of a loop, bring onto the chip each time, and the cycles that this takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from experiments.reproductions.hlsyn.source.loop_tree import Access, Assignment, Kernel

PORT_BYTES = 64  # that one cycle moves between memory and chip, at best
BURST = 16  # cycles before the first element of a run arrives


class Footprint(NamedTuple):
    """Array elements that a piece of a loop nest accesses; written arrays count twice.

    Args:
        boxed: elements from the first to the last of each array, as they lie in memory.
        exact: elements without what lies between.
        cycles: to move them, one element a cycle: whole boxes where the runs of neighbours are shorter than the port is
            wide, else run by run.
    """

    boxed: float
    exact: float
    cycles: float


def footprint(kernel: Kernel, statements: Iterable[Assignment], iterations: Mapping[str, float]) -> Footprint:
    """Return the array elements of `kernel` that `statements` access while some surrounding loops iterate.

    Args:
        iterations: of each loop variable that moves; the others stand still.

    Examples:
        >>> from experiments.reproductions.hlsyn.source.functions import parse_kernel
        >>> kernel = parse_kernel('''
        ... void kernel(double a[8][4], double s[8]) {
        ...   for (int i = 0; i < 8; i++) { s[i] = a[i][1]; }
        ... }''')
        >>> footprint(kernel, kernel.loops()[0].body, {"i#1": 3.0})  # a: 9 elements in a box, 3 of them; s: 3, written
        Footprint(boxed=15.0, exact=9.0, cycles=15.0)
    """
    touched: dict[str, Footprint] = {}
    written = set()
    for statement in statements:
        written.add(statement.target.name)
        for access in (statement.target, *(read for read, _ in statement.reads)):
            if access.name in kernel.arrays and access.subscripts:
                before = touched.get(access.name, Footprint(0.0, 0.0, 0.0))
                after = _touched(kernel, access, iterations)
                touched[access.name] = Footprint(*map(max, before, after))
    times = {name: 1 + (name in written) for name in touched}
    return Footprint(*(sum(times[name] * each[place] for name, each in touched.items()) for place in range(3)))


def _touched(kernel: Kernel, access: Access, iterations: Mapping[str, float]) -> Footprint:
    """Of one array, once."""
    whole = float(max(kernel.arrays[access.name], 1))
    shape = kernel.shapes.get(access.name, ())
    steps: dict[str, float] = {}  # of each variable, between the elements of two iterations
    for place, affine in enumerate(access.subscripts):
        if affine is None:
            return Footprint(whole, whole, whole)
        for name in affine.keys() & iterations.keys():
            steps[name] = steps.get(name, 0.0) + affine[name] * math.prod(shape[place + 1 :])
    run, runs, box = 1.0, 1.0, 1.0
    for step, count in sorted((abs(step), iterations[name]) for name, step in steps.items() if step):
        box += step * (count - 1)
        if step <= run and runs == 1:
            run += step * (count - 1)
        else:
            runs *= count
    box, exact = min(box, whole), min(run * runs, whole)
    is_wide = run * kernel.bytes_of[access.name] >= PORT_BYTES
    return Footprint(box, exact, min(box, runs * (BURST + run)) if is_wide else box)
