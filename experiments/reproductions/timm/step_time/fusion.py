"""Groups of steps that TorchInductor runs as one kernel: pointwise operations and reductions between products."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from experiments.reproductions.graphnet.reader import Operation, Value
from experiments.reproductions.timm.step_time.steps import PRODUCTS, REDUCTIONS, SLICE, Step, groups_of

SPEEDUPS = {"grouped": 1.358, "small": 0.783, "narrowing": 0.725, "other": 0.823}
"""Time of convolutions in NHWC over that in NCHW which TorchInductor assumes (`GraphLowering.decide_layout_opt`)."""
MOST_JOINED = 8  # tensors of a concatenation that is computed where it is read
MOST_NODES = 300  # to a convolution, above which it leaves the layout alone


class Group(NamedTuple):
    """Steps that run as one kernel of the class `label`, and the values that cross its border, by name."""

    label: str
    steps: list[Step]
    reads: dict[int, Value]
    writes: dict[int, Value]


def prefers_channels_last(operations: Sequence[Operation]) -> bool:
    """True if TorchInductor runs the convolutions of a program on a GPU in NHWC, for inference."""
    convolutions = [each for each in operations if each.kind == "conv2d"]
    if not convolutions or len(operations) >= MOST_NODES * len(convolutions):
        return False
    before = after = 0.0
    for each in convolutions:
        weight = each.reads[1].shape
        flops = float(each.writes[0].numel * math.prod(weight[1:]))
        if groups_of(each.reads[0], weight) > 1 and weight[1] > 1:
            kind = "grouped"
        elif weight[0] * 2 <= weight[1] and weight[2] > 1:
            kind = "narrowing"
        else:
            kind = "small" if weight[0] <= 64 and weight[1] <= 64 else "other"
        before, after = before + flops, after + flops * SPEEDUPS[kind]
    return after <= before


def runs_channels_last(
    operations: Sequence[Operation], is_compiled: bool, is_channels_last: bool, is_cpu: bool
) -> bool:
    """True if the convolutions of a program run in NHWC: as its images lie, unless TorchInductor changes that."""
    if not is_compiled or is_channels_last:
        return is_channels_last
    return is_cpu or prefers_channels_last(operations)


def fused(steps: list[Step], is_cpu: bool = False) -> list[Group]:
    """Group steps to kernels: operations join their producers if no product lies between them.

    On a CPU, and of more than `MOST_JOINED` tensors, TorchInductor writes a concatenation to memory before it is read.
    """
    steps = [part for step in steps for part in _passes(step)]
    is_product = [step.operation.kind in PRODUCTS for step in steps]
    is_written = [
        step.operation.kind == SLICE or (step.label == "concatenate" and (is_cpu or len(step.reads) > MOST_JOINED))
        for step in steps
    ]
    level = _levels(steps, is_product)
    parent = list(range(len(steps)))
    writer = {value.name: place for place, step in enumerate(steps) for value in step.writes}

    def top(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    for place, step in enumerate(steps):
        if is_product[place] or step.label == "pool" or step.operation.kind == SLICE:
            continue  # the window of a pool would compute each of its producers again
        most = max(value.numel for value in step.writes)
        for value in step.reads:
            source = writer.get(value.name)
            if source is None or is_product[source] or level[source] != level[place]:
                continue
            if value.is_parameter != step.writes[0].is_parameter or is_written[source]:
                continue
            read = max((each.numel for each in steps[source].reads if not each.is_parameter), default=0)
            if steps[source].label == "reduction" and value.numel * 4 <= read and most > 4 * value.numel:
                continue  # a kernel that reduces is over before its result is broadcast
            parent[top(place)] = top(source)
    groups: dict[int, list[int]] = {}
    for place in range(len(steps)):
        groups.setdefault(top(place), []).append(place)
    return grouped(steps, groups.values())


def _passes(step: Step) -> list[Step]:
    """Split a normalization over groups of channels into two passes over its input, as compilers do."""
    if step.label != "group norm" or not step.reads:
        return [step]
    first, result = step.reads[0], step.writes[0]
    place = -(10**7) - result.name
    moments = Value(place, place, (2, max(1, first.shape[1] // 16)), (1, 2), result.dtype, False)
    return [
        Step(Operation("var", (first,), (moments,), {}, False), "reduction", (first,), (moments,)),
        step._replace(label="pointwise", reads=(*step.reads, moments)),
    ]


def grouped(steps: Sequence[Step], groups: Collection[Sequence[int]]) -> list[Group]:
    """Make kernels of groups, each given by the places of its steps; a product gives a kernel its label."""
    readers: dict[int, set[int]] = {}
    for number, places in enumerate(groups):
        for value in (value for place in places for value in steps[place].reads):
            readers.setdefault(value.name, set()).add(number)
    result = []
    for number, places in enumerate(groups):
        members = [steps[place] for place in places]
        made = {v.name for step in members for v in step.writes}
        reads = {v.name: v for step in members for v in step.reads if v.name not in made}
        writes = {
            v.name: v for step in members for v in step.writes
            if readers.get(v.name, set()) - {number} or v.name not in readers
        }  # fmt: skip
        writes = writes or {v.name: v for v in members[-1].writes}
        label = next((step.label for step in members if step.operation.kind in PRODUCTS), "")
        if not label:
            has_reduction = any(step.label in REDUCTIONS for step in members)
            label = "fused reduction" if has_reduction else "fused pointwise"
        result.append(Group(label, members, reads, writes))
    return result


def _levels(steps: list[Step], is_product: list[bool]) -> list[int]:
    """Count the products on the longest path to each step; a pointwise step with one reader counts as its reader."""
    depth: dict[int, int] = {}  # of each value
    readers: dict[int, set[int]] = {}
    level = []
    for place, step in enumerate(steps):
        level.append(max((depth.get(value.name, 0) for value in step.reads), default=0))
        for value in step.reads:
            readers.setdefault(value.name, set()).add(place)
        depth.update({value.name: level[place] + is_product[place] for value in step.writes})
    for place in range(len(steps) - 1, -1, -1):
        step = steps[place]
        after = {reader for value in step.writes for reader in readers.get(value.name, ())}
        if is_product[place] or step.label in REDUCTIONS or step.label == "pool" or len(after) != 1:
            continue
        (reader,) = after
        if not is_product[reader] and steps[reader].label != "pool":
            level[place] = level[reader]
    return level
