"""Operations as rows of numbers: work, roofline time and features, of all cases of NeuSight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gst.data.neusight import Case, Machine, Operation

FAMILIES = ("linear", "bmm", "elementwise", "softmax", "norm", "embedding", "copy", "select", "dropout")
FAMILY_OF = {
    "Linear": "linear", "addmm": "linear", "matmul": "bmm", "bmm": "bmm", "add": "elementwise", "sub": "elementwise",
    "mul": "elementwise", "truediv": "elementwise", "pow": "elementwise", "tanh": "elementwise", "Tanh": "elementwise",
    "gelu": "elementwise", "ReLU": "elementwise", "relu": "elementwise", "max": "elementwise", "softmax": "softmax",
    "LayerNorm": "norm", "Embedding": "embedding", "embedding": "embedding", "contiguous": "copy", "reshape": "copy",
    "where": "select", "masked_fill": "select", "Dropout": "dropout",
}  # fmt: skip
"""Family of each kind of operation that runs on the GPU; any other, such as `view`, takes no time there."""
WATTS = {
    "AMD_Instinct_MI100": 300, "AMD_Instinct_MI210": 300, "AMD_Instinct_MI250": 280, "NVIDIA_A100-PCIE-40GB": 250,
    "NVIDIA_A100_80GB_PCIe": 300, "NVIDIA_A100-SXM4-40GB": 400, "NVIDIA_H100_80GB_HBM3": 700, "NVIDIA_L4": 72,
    "Tesla_P100-PCIE-16GB": 250, "Tesla_P4": 75, "Tesla_T4": 70, "Tesla_V100-PCIE-32GB": 250,
}  # fmt: skip
"""Power limit of each GPU by its data sheet; of an MI250, of one of its two dies, which is what a program sees."""
TILE = 128  # rows and columns of the output that one core computes at a time
BYTES = 4  # of a float32
CONSISTENT = 0.15  # operators that miss the time of their model by more were measured on a machine that throttled


class Operators(NamedTuple):
    """Operations of several cases, one row each.

    Args:
        columns: (rows, features), float64: one column for each family, then the shape, then the machine.
        rates: (rows, 6), logarithms of flops and bytes of the operation, and of flops, bandwidth, cores and cache of
            its machine: what a model without physics is told beside `columns`.
        flops_ms, bytes_ms: time at the peak rate of arithmetic and of memory.
        measured_ms: of the operation alone.
        repeats: how often it occurs in its model.
        case: position of its case.
        whole_ms: (cases,) measured forward time of each whole model.
        is_consistent: (cases,) the measured operations sum up to the whole within 15 %.
    """

    columns: np.ndarray
    rates: np.ndarray
    flops_ms: np.ndarray
    bytes_ms: np.ndarray
    measured_ms: np.ndarray
    repeats: np.ndarray
    case: np.ndarray
    whole_ms: np.ndarray
    is_consistent: np.ndarray

    def roofline_ms(self) -> np.ndarray:
        """The larger of both times, of each row."""
        return np.maximum(self.flops_ms, self.bytes_ms)

    def whole(self, times: np.ndarray) -> np.ndarray:
        """Time of each whole model from the times of its operations."""
        return np.bincount(self.case, times * self.repeats, len(self.whole_ms))


FEATURES = ("intensity", "waves", "inner", "columns", "rows", "cache", "balance", "lanes", "watts")
"""Six of a shape on its machine; of the machine, flops a byte, flops of a core in a cycle, and watts a flop."""


def operators_of(cases: Sequence[Case], machines: dict[str, Machine]) -> Operators:
    """Rows of all operations of `cases` that run on a GPU.

    Raises:
        ValueError: the power limit of a machine is unknown, or no operation of a case is known.
    """
    rows: list[list[float]] = []
    whole: list[float] = []
    for number, case in enumerate(cases):
        machine = machines[case.machine]
        if case.machine not in WATTS:
            raise ValueError(f"{case.machine}: its power limit is unknown; add it to WATTS in {__name__}")
        before = len(rows)
        for repeats, each in zip(case.repeats(), case.operations, strict=True):
            family = FAMILY_OF.get(each.kind)
            if family is None or math.prod(each.output_shape) <= 1 or (family == "dropout" and case.mode == "inf"):
                continue
            rows.append([number, repeats, each.forward_ms, *_row(each, family, machine)])
        if len(rows) == before:
            raise ValueError(f"{case.machine}, {case.model}: none of its operations is known")
        whole.append(case.time_ms if case.mode == "inf" else case.forward_ms)
    table = np.array(rows)
    place, repeats, measured, flops_ms, bytes_ms = table[:, :5].T
    operators = Operators(
        table[:, 11:], table[:, 5:11], flops_ms, bytes_ms, measured, repeats, place.astype(np.int64), np.array(whole),
        np.ones(len(cases), bool),
    )  # fmt: skip
    return operators._replace(is_consistent=np.abs(operators.whole(measured) / operators.whole_ms - 1) < CONSISTENT)


def _row(operation: Operation, family: str, machine: Machine) -> list[float]:
    """Both times, rates, families and features."""
    output = math.prod(operation.output_shape)
    columns = operation.output_shape[-1]
    inputs = sum(math.prod(shape) for shape in operation.input_shapes)
    inner = 1
    if family in ("linear", "bmm"):
        inner = operation.input_shapes[1 if operation.kind == "addmm" else 0][-1]
        if operation.kind == "Linear":
            inputs += inner * columns  # its weights
        flops, peak = 2.0 * output * inner, machine.matrix_flops
    else:
        flops, peak = float(output), machine.vector_flops
        if family == "embedding":
            inputs = output
    matrices = math.prod(operation.output_shape[:-2]) if family == "bmm" else 1
    rows = output // columns // matrices
    tiles = matrices * math.ceil(rows / TILE) * math.ceil(columns / TILE)
    moved = BYTES * (inputs + output)
    flops_ms, bytes_ms = 1e3 * flops / peak, 1e3 * moved / machine.bandwidth
    rates = (flops, moved, machine.matrix_flops, machine.bandwidth, machine.cores, machine.cache)
    features = (
        flops_ms / bytes_ms, tiles / machine.cores, inner, columns, rows, moved / machine.cache,
        machine.matrix_flops / machine.bandwidth, machine.matrix_flops / machine.cores / machine.clock,
        WATTS[machine.name] / machine.matrix_flops,
    )  # fmt: skip
    is_family = [float(family == each) for each in FAMILIES]
    return [flops_ms, bytes_ms, *map(math.log, rates), *is_family, *map(math.log, features)]
