"""Effect of loop copies and tiles on time: parallel execution of copies, and the data moved for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from experiments.reproductions.hlsyn.cycles.dependences import LoopFacts
from experiments.reproductions.hlsyn.cycles.nest import MEMORY_PORTS, Nest
from experiments.reproductions.hlsyn.cycles.transfers import Footprint, footprint


class Copies(NamedTuple):
    """Copies and tile of one loop.

    Args:
        speed: how many copies of a loop that holds others run side by side.
        movers: copies of loops around it that move what they need each.
        touched: what one piece (a tile, or the copies) touches.
        boxed, exact: cycles and elements that are moved in one run of the loop; 0 where nothing is.
        is_copied: the loop holds others and has copies.
        is_legal: no iteration needs an array element of an earlier one.
        is_plain: it holds one level of loops, and none unrolled.
        is_kept: copies of a loop around keep arrays on the chip.
        is_first: no loop around is tiled.
        is_guarded: an `if` stands around one of its statements.
        is_moved: pieces bring along what they touch.
    """

    speed: float
    movers: float
    touched: Footprint
    boxed: float
    exact: float
    is_copied: bool
    is_legal: bool
    is_plain: bool
    is_kept: bool
    is_first: bool
    is_guarded: bool
    is_moved: bool


def copies_of(nest: Nest, fact: LoopFacts, outer: Sequence[str], height: int) -> Copies:
    """The copies and the tile of a loop.

    Args:
        outer: loops around it that remain.
        height: levels of loops that remain inside it.
    """
    known, settings, loop = nest.known, nest.settings, fact.loop
    name, trips = loop.variable, loop.trip_count
    parallel, tile = nest.parallel(name), settings[name].tile
    is_copied, is_legal = height > 0 and parallel > 1, nest.is_legal(name)
    is_plain = height == 1 and not any(settings[each.variable].is_unrolled for each in loop.walk())
    is_beside = is_copied and is_legal and is_plain and not outer
    # Copies of a loop around, where they are some and not all of its iterations, share out what is moved. Where their
    # number divides the trip count, arrays stay on the chip for all of them, and a tile inside has nothing to fetch.
    shared = [each for each in outer if 1 < nest.parallel(each) < known[each].loop.trip_count and nest.is_legal(each)]
    movers = math.prod(nest.parallel(each) for each in shared)
    is_kept = any(known[each].loop.trip_count % nest.parallel(each) == 0 for each in shared)
    is_first = not any(settings[each].tile > 1 for each in outer)
    # Accesses under a condition are not fetched ahead for copies.
    is_guarded = any(statement.is_guarded for statement, _ in fact.statements)
    is_moved = ((tile > 1 and not is_kept) or (is_copied and bool(outer) and not is_guarded)) and is_first
    together = parallel * tile
    # Copies without a tile fetch one after the other, as many at a time as there are ports.
    pieces = max(math.ceil(trips / (together if tile > 1 else min(parallel, MEMORY_PORTS))), 1)
    moving = {each.variable: each.trip_count for each in loop.walk()} | {name: min(together, trips)}
    touched = footprint(nest.kernel, [statement for statement, _ in fact.statements], moving)
    boxed, exact = (pieces * each / movers if is_moved else 0.0 for each in (touched.cycles, touched.exact))
    return Copies(
        parallel if is_beside else 1.0, movers, touched, boxed, exact, is_copied, is_legal, is_plain, is_kept,
        is_first, is_guarded, is_moved,
    )  # fmt: skip
