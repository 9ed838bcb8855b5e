"""Analytical cycles of an HLSyn design, composed over its loop tree, and the features of every loop that remains.

A pipelined loop of n iterations takes II * (n - 1) + depth cycles. Its initiation interval II is at least the latency
of what one iteration needs of an earlier one. Loops that are unrolled fully multiply operations and lengthen chains,
but take no iterations. Any other loop takes the sum of what is inside it, once for each iteration.

Copies of a loop that holds other loops run side by side at the top of the kernel, unless an iteration needs an array
element of an earlier one. Further inside, and in tiles, they bring what they touch onto the chip each time instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from experiments.reproductions.hlsyn.cycles.copies import copies_of
from experiments.reproductions.hlsyn.cycles.dependences import LoopFacts, facts
from experiments.reproductions.hlsyn.cycles.nest import LATENCY, Body, Interval, Nest, body_of, interval_of
from experiments.reproductions.hlsyn.cycles.transfers import PORT_BYTES
from experiments.reproductions.hlsyn.source.loop_tree import Kernel
from experiments.reproductions.hlsyn.source.pragmas import Point, Setting, canonical

ONE_FILL = 5  # cycles to enter and leave a pipeline
CALL = 2  # cycles of an iteration of a loop that holds others
START = 100  # cycles of the kernel itself
LOOP_FEATURES = (
    "log_trips", "log_parallel", "log_tile", "divides", "is_tiled", "is_pipelined", "is_exact", "level", "children",
    "is_carried", "is_sum_carried", "is_named", "is_order_carried", "log_recurrence", "log_interval",
    "log_interval_free", "log_ports", "log_depth", "log_body", "log_unrolled", "log_copies", "log_outer", "adds",
    "multiplies", "divides_by", "integers", "is_integer", "reads", "writes", "irregular", "log_elements", "log_bytes",
    "is_new_tool", "has_parallel", "has_pipeline", "power_of_two", "log_estimate", "share", "log_iterations",
    "height", "is_copied", "is_legal", "log_speed", "log_boxed", "log_exact", "log_moved", "is_moved", "log_bare",
    "is_coarse", "outer_speed", "outer_moved", "is_outer_tiled", "is_outer_copied", "is_whole_child", "is_plain",
    "log_movers", "is_guarded", "is_kept", "log_burst",
)  # fmt: skip
PROGRAM_FEATURES = (
    "composed", "optimistic", "serial", "wide_load", "narrow_load", "loops", "remaining", "operations", "is_new_tool",
    "log_parallel", "log_flattened", "most_ports", "arrays", "most_elements", "integers", "log_work", "plain",
    "coarse", "moved_exact", "ported", "log_moved", "log_moved_exact", "log_boxed_load", "height",
)  # fmt: skip
COLUMN = {name: place for place, name in enumerate(LOOP_FEATURES)}


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


class _Times(NamedTuple):
    """Cycles of a loop.

    Args:
        composed: the estimate; see the top of this file.
        optimistic: one iteration a cycle, children side by side.
        serial: copies wait for each other and for ports of memory.
        plain: copies of loops that hold others bring nothing, and nothing is moved.
        coarse: such copies always run side by side where they may, and nothing is moved.
        moved_exact: as composed, but only elements that are touched are moved.
        ported: as composed, but ports of memory bound the interval.
    """

    composed: float
    optimistic: float
    serial: float
    plain: float
    coarse: float
    moved_exact: float
    ported: float


def estimate(
    kernel: Kernel, point: Point, tool: str, known: dict[str, LoopFacts] | None = None,
    settings: dict[str, Setting] | None = None,
) -> Estimate:  # fmt: skip
    """Analytical cycles of a design, and features of the loops that remain.

    Args:
        tool: `v18` or `v20`.
        known: `facts(kernel)`, where many designs share them.
        settings: of each loop, if they are not the effective ones, `canonical(kernel, point)`.
    """
    known = facts(kernel) if known is None else known
    settings = canonical(kernel, point) if settings is None else settings
    remaining = [name for name in known if not settings[name].is_unrolled]
    nest = Nest(kernel, known, settings, LATENCY.get(tool, LATENCY["v20"]), remaining)
    row = {name: place for place, name in enumerate(remaining)}
    table = np.zeros((len(remaining), len(LOOP_FEATURES)), np.float32)
    times: dict[str, _Times] = {}
    heights: dict[str, int] = {}
    most_ports, work = 0.0, 0.0
    moved = [0.0, 0.0]
    for name in reversed(remaining):  # children before parents
        values, times[name], each_moved, body, heights[name] = _loop(nest, name, times, heights)
        moved = [total + one for total, one in zip(moved, each_moved, strict=True)]
        most_ports = max(most_ports, body.ports)
        iterations = math.ceil(known[name].loop.trip_count / nest.parallel(name))
        work += sum(body.operations.values()) * iterations
        for key, value in values.items():
            table[row[name], COLUMN[key]] = value
    tops = [name for name in remaining if nest.owner(name) == ""]
    sums = _Times(*(sum(getattr(times[name], kind) for name in tops) for kind in _Times._fields))
    owners = [nest.owner(name) for name in remaining]
    for name, owner in zip(remaining, owners, strict=True):
        whole = times[owner].composed if owner else sums.composed
        table[row[name], COLUMN["share"]] = times[name].composed / max(whole, 1.0)
    table[:, COLUMN["is_new_tool"]] = tool != "v18"
    elements = sum(kernel.arrays.values())
    total_bytes = sum(count * kernel.bytes_of[name] for name, count in kernel.arrays.items())
    table[:, COLUMN["log_elements"]] = math.log2(elements + 1)
    table[:, COLUMN["log_bytes"]] = math.log2(total_bytes + 1)
    loaded = total_bytes / PORT_BYTES + START
    program = {kind: math.log2(getattr(sums, kind) + loaded) for kind in _Times._fields} | {
        "wide_load": math.log2(total_bytes / PORT_BYTES + 1), "narrow_load": math.log2(elements + 1),
        "loops": len(known), "remaining": len(remaining), "operations": math.log2(work + 1),
        "is_new_tool": float(tool != "v18"),
        "log_parallel": sum(math.log2(max(settings[name].parallel, 1)) for name in remaining),
        "log_flattened": sum(math.log2(known[name].loop.trip_count) for name in known if settings[name].is_unrolled),
        "most_ports": math.log2(most_ports + 1), "arrays": len(kernel.arrays),
        "most_elements": math.log2(max(kernel.arrays.values(), default=1) + 1),
        "integers": float(not any(
            kind[0] == "f" for fact in known.values() for each, _ in fact.statements for kind in each.operations
        )),
        "log_work": math.log2(sum(
            math.prod(known[each].loop.trip_count for each in around)
            for fact in known.values() if not fact.parent for _, around in fact.statements
        ) + 1),
        "log_moved": math.log2(moved[0] + 1), "log_moved_exact": math.log2(moved[1] + 1),
        "log_boxed_load": math.log2(elements / 8 + 1), "height": max(heights.values(), default=0),
    }  # fmt: skip
    columns = np.array([program[name] for name in PROGRAM_FEATURES], np.float32)
    parents = np.array([row.get(owner, -1) for owner in owners], np.int64)
    return Estimate(sums.composed + loaded, columns, table, parents)


def _loop(
    nest: Nest, name: str, times: Mapping[str, _Times], heights: Mapping[str, int]
) -> tuple[dict[str, float], _Times, tuple[float, float], Body, int]:
    """Features of a loop that remains, its times, the elements moved for it in all, its body, and loops below it."""
    known, settings = nest.known, nest.settings
    fact, children = known[name], nest.children(name)
    loop = fact.loop
    trips, parallel = loop.trip_count, nest.parallel(name)
    below = {each.variable for child in children for each in known[child].loop.walk()}
    unrolled = {each.variable: each.trip_count for each in loop.walk() if settings[each.variable].is_unrolled}
    unrolled[name] = parallel
    body = body_of(nest, fact, unrolled, below)
    interval = interval_of(nest, fact, unrolled)
    outer = [each for each in nest.ancestors(name) if not settings[each].is_unrolled]
    height = 1 + max((heights[each] for each in children), default=-1)
    copies = copies_of(nest, fact, outer, height)
    iterations = math.ceil(trips / parallel)
    ordered = any(not each.is_sum for each in fact.recurrences)
    if not children:
        depth = body.depth + ONE_FILL
        bare = interval.bound * (iterations - 1) + depth
        ported = max(interval.bound, body.ports) * (iterations - 1) + depth
        time = _Times(
            composed=bare + copies.boxed,
            optimistic=iterations - 1 + depth,
            serial=ported + depth * (parallel - 1),
            plain=bare,
            coarse=bare,
            moved_exact=bare + copies.exact,
            ported=ported + copies.boxed,
        )
    else:
        inside = _Times(*(sum(getattr(times[each], kind) for each in children) for kind in _Times._fields))
        depth = body.depth
        rounds = math.ceil(trips / copies.speed)
        time = _Times(
            composed=rounds * (inside.composed + depth + CALL) + copies.boxed,
            optimistic=iterations * (max(times[each].optimistic for each in children) + CALL),
            serial=trips * (inside.serial + depth + CALL),
            plain=trips * (inside.plain + depth + CALL),
            coarse=(trips if ordered or not copies.is_legal else iterations) * (inside.coarse + depth + CALL),
            moved_exact=rounds * (inside.moved_exact + depth + CALL) + copies.exact,
            ported=rounds * (inside.ported + depth + CALL) + copies.boxed,
        )
    around = math.prod(known[each].loop.trip_count for each in outer)
    values = _features(nest, name, body, interval, unrolled, ordered, outer) | {
        "children": len(children), "is_pipelined": float(not children), "log_depth": math.log2(depth + 1),
        "log_estimate": math.log2(time.composed), "log_iterations": math.log2(iterations), "height": height,
        "is_copied": float(copies.is_copied), "is_legal": float(copies.is_legal),
        "log_speed": math.log2(copies.speed), "log_boxed": math.log2(copies.touched.boxed + 1),
        "log_exact": math.log2(copies.touched.exact + 1),
        "log_moved": math.log2(copies.boxed + 1), "is_moved": float(copies.is_moved), "log_bare": math.log2(time.plain),
        "is_coarse": float(copies.is_copied and bool(outer)),
        "is_outer_tiled": float(any(settings[each].tile > 1 for each in outer)),
        "is_outer_copied": float(any(settings[each].parallel > 1 for each in outer)),
        "outer_speed": sum(
            math.log2(nest.parallel(each)) for each in outer if nest.is_legal(each) and not known[each].parent
        ),
        "is_plain": float(copies.is_plain), "log_movers": math.log2(copies.movers),
        "is_kept": float(copies.is_kept), "log_burst": math.log2(copies.touched.cycles + 1),
        "is_guarded": float(copies.is_guarded),
        "outer_moved": math.log2(copies.touched.boxed + 1) * float(not copies.is_first),
        "is_whole_child": float(any(
            settings[each.variable].is_unrolled and each.trip_count > 32 for each in loop.walk() if each is not loop
        )),
    }  # fmt: skip
    return values, time, (copies.boxed * around, copies.exact * around), body, height


def _features(
    nest: Nest, name: str, body: Body, interval: Interval, unrolled: Mapping[str, float], ordered: bool,
    outer: list[str],
) -> dict[str, float]:  # fmt: skip
    fact, setting = nest.known[name], nest.settings[name]
    loop = fact.loop
    trips, parallel, carried = loop.trip_count, nest.parallel(name), fact.recurrences
    total = float(sum(body.operations.values()))
    floats = sum(count for kind, count in body.operations.items() if kind[0] == "f" or kind in ("sqrt", "pow"))
    return {
        "log_trips": math.log2(trips), "log_parallel": math.log2(parallel), "log_tile": math.log2(setting.tile),
        "divides": float(trips % parallel == 0), "is_tiled": float(setting.tile > 1),
        "is_exact": float(loop.is_exact), "level": fact.level, "is_carried": float(bool(carried)),
        "is_sum_carried": float(any(each.is_sum for each in carried)),
        "is_named": float(any(each.is_named for each in carried)), "is_order_carried": float(ordered),
        "log_recurrence": math.log2(interval.chain + 1), "log_interval": math.log2(interval.bound),
        "log_interval_free": math.log2(interval.free), "log_ports": math.log2(body.ports + 1),
        "log_body": math.log2(total + 1), "log_unrolled": math.log2(math.prod(unrolled.values())),
        "log_copies": sum(math.log2(nest.parallel(each)) for each in outer),
        "log_outer": sum(math.log2(nest.known[each].loop.trip_count) for each in outer),
        "adds": math.log2(body.operations["fadd"] + 1), "multiplies": math.log2(body.operations["fmul"] + 1),
        "divides_by": math.log2(body.operations["fdiv"] + body.operations["sqrt"] + body.operations["pow"] + 1),
        "integers": math.log2(total - floats + 1), "is_integer": float(not floats),
        "reads": math.log2(body.reads + 1), "writes": math.log2(body.writes + 1), "irregular": float(body.is_irregular),
        "has_parallel": float("PARA" in loop.pragmas), "has_pipeline": float("PIPE" in loop.pragmas),
        "power_of_two": float(math.log2(parallel) % 1 == 0),
    }  # fmt: skip
