"""Analytical resources of an HLSyn design: operators, memory and logic of its copies, as fractions of the device.

An operator of a pipelined loop with an initiation interval of II does II operations of one iteration, one after the
other; copies of a loop have operators each. An array is in as many banks as copies of its accesses differ, and a bank
is at least one block of memory.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from experiments.reproductions.hlsyn.cycles.copies import copies_of
from experiments.reproductions.hlsyn.cycles.dependences import LoopFacts, facts
from experiments.reproductions.hlsyn.cycles.nest import LATENCY, Nest, body_of, interval_of
from experiments.reproductions.hlsyn.source.loop_tree import Kernel
from experiments.reproductions.hlsyn.source.pragmas import Point, canonical

RESOURCES = ("BRAM", "DSP", "LUT", "FF")
DEVICE = {"BRAM": 4320.0, "DSP": 6840.0, "LUT": 1_182_240.0, "FF": 2_364_480.0}  # of the Virtex UltraScale+ VU9P
BLOCK_BYTES = 2304  # of one block of memory, 18 Kbit
PER_OPERATION = {
    "DSP": {"fadd": 3, "fmul": 11, "pow": 50, "exp": 26, "log": 26, "mul": 3},
    "LUT": {
        "fadd": 700, "fmul": 300, "fdiv": 3200, "sqrt": 1800, "pow": 8000, "exp": 2000, "log": 2500, "add": 32,
        "mul": 50, "div": 1500, "logic": 32,
    },
    "FF": {
        "fadd": 900, "fmul": 500, "fdiv": 3500, "sqrt": 2000, "pow": 9000, "exp": 2500, "log": 3000, "add": 64,
        "mul": 100, "div": 2000, "logic": 32,
    },
}  # fmt: skip
"""Of one operator of double precision, or of 32-bit integers; round numbers."""
KINDS = {"adders": ("fadd",), "multipliers": ("fmul",), "costly": ("fdiv", "sqrt", "pow", "exp", "log", "div"),
         "integers": ("add", "mul", "logic")}  # fmt: skip
RESOURCE_FEATURES = (
    *(f"log_{name}" for name in RESOURCES), *(f"log_{name}" for name in KINDS), *(f"shared_{name}" for name in KINDS),
    "log_statements", "log_largest", "log_whole", "log_banks", "most_banks", "log_blocks", "log_buffers",
)  # fmt: skip


class Resources(NamedTuple):
    """Analytical resources of one design.

    Args:
        used: fraction of the device that each of `RESOURCES` takes; above 1 it does not fit.
        features: logarithms of counts, in the order of `RESOURCE_FEATURES`.
    """

    used: dict[str, float]
    features: Float32[np.ndarray, " features"]


def resources(kernel: Kernel, point: Point, tool: str, known: dict[str, LoopFacts] | None = None) -> Resources:
    """Analytical resources of a design.

    Args:
        tool: `v18` or `v20`.
        known: `facts(kernel)`, where many designs share them.

    Examples:
        >>> from experiments.reproductions.hlsyn.source import parse_kernel
        >>> kernel = parse_kernel('''
        ... void kernel(double a[64], double b[64]) {
        ...   #pragma ACCEL PARALLEL FACTOR=auto{__PARA__L0}
        ...   for (int i = 0; i < 64; i++) { b[i] = a[i] * 2.0; }
        ... }''')
        >>> [round(6840 * resources(kernel, {"__PARA__L0": copies}, "v20").used["DSP"]) for copies in (1, 8)]
        [11, 88]
    """
    known = facts(kernel) if known is None else known
    settings = canonical(kernel, point)
    remaining = [name for name in known if not settings[name].is_unrolled]
    nest = Nest(kernel, known, settings, LATENCY.get(tool, LATENCY["v20"]), remaining)
    every, shared, banks = Counter[str](), Counter[str](), Counter[str]()
    statements, largest, buffers = 0.0, 0.0, 0.0
    heights: dict[str, int] = {}
    for name in reversed(remaining):
        fact, children = known[name], nest.children(name)
        heights[name] = 1 + max((heights[each] for each in children), default=-1)
        below = {each.variable for child in children for each in known[child].loop.walk()}
        unrolled = {each.variable: each.trip_count for each in fact.loop.walk() if settings[each.variable].is_unrolled}
        unrolled[name] = nest.parallel(name)
        outer = [each for each in nest.ancestors(name) if not settings[each].is_unrolled]
        copies = math.prod(nest.parallel(each) for each in outer)
        interval = interval_of(nest, fact, unrolled).bound if not children else 1.0
        for kind, count in body_of(nest, fact, unrolled, below).operations.items():
            every[kind] += round(count * copies)
            shared[kind] += round(math.ceil(count / interval) * copies)
        own = [(statement, around) for statement, around in fact.statements if not below & set(around)]
        instances = sum(math.prod(unrolled.get(each, 1.0) for each in around) for _, around in own) * copies
        statements, largest = statements + instances, max(largest, instances)
        _count_banks(nest, own, unrolled | {each: nest.parallel(each) for each in outer}, banks)
        moved = copies_of(nest, fact, outer, heights[name])
        buffers += moved.touched.boxed * 8 * copies if moved.is_moved else 0.0
    blocks = sum(
        max(banks[name], math.ceil(count * kernel.bytes_of[name] / BLOCK_BYTES))
        for name, count in kernel.arrays.items()
    )
    blocks += math.ceil(buffers / BLOCK_BYTES)
    whole = sum(math.log2(known[name].loop.trip_count) for name in known if settings[name].is_unrolled)
    needs = {
        name: float(sum(shared[kind] * each for kind, each in costs.items())) for name, costs in PER_OPERATION.items()
    }
    needs["BRAM"] = float(blocks)
    used = {name: needs[name] / DEVICE[name] for name in RESOURCES}
    logs = [math.log2(used[name] + 0.001) for name in RESOURCES]
    logs += [
        math.log2(sum(counts[kind] for kind in kinds) + 1) for counts in (every, shared) for kinds in KINDS.values()
    ]
    logs += [math.log2(each + 1) for each in (statements, largest)] + [whole]
    logs += [math.log2(each + 1) for each in (sum(banks.values()), max(banks.values(), default=0), blocks, buffers)]
    return Resources(used, np.array(logs, np.float32))


def _count_banks(nest: Nest, statements: list, copies: dict[str, float], banks: Counter[str]) -> None:
    """Raise the banks of each array to what copies of these statements read or write at once."""
    for statement, _ in statements:
        for access in (statement.target, *(read for read, _ in statement.reads)):
            if access.subscripts and access.name in nest.kernel.arrays:
                used = {each for affine in access.subscripts if affine for each in affine}
                count = round(math.prod(each for name, each in copies.items() if name in used))
                banks[access.name] = max(banks[access.name], min(count, max(nest.kernel.arrays[access.name], 1)))
