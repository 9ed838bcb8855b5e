"""Operations as rows of numbers: work, roofline time and features, of all cases of NeuSight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.reproductions.neusight.dataset import Case, Machine, Operation

FAMILIES = ("linear", "bmm", "elementwise", "softmax", "norm", "embedding", "copy", "select", "dropout")
PRODUCTS = 2  # the first families multiply matrices
FAMILY_OF = {
    "Linear": "linear", "addmm": "linear", "matmul": "bmm", "bmm": "bmm", "add": "elementwise", "sub": "elementwise",
    "mul": "elementwise", "truediv": "elementwise", "pow": "elementwise", "tanh": "elementwise", "Tanh": "elementwise",
    "gelu": "elementwise", "ReLU": "elementwise", "relu": "elementwise", "max": "elementwise", "softmax": "softmax",
    "LayerNorm": "norm", "Embedding": "embedding", "embedding": "embedding", "contiguous": "copy", "reshape": "copy",
    "where": "select", "masked_fill": "select", "Dropout": "dropout", "dropout": "dropout",
}  # fmt: skip
"""Family of each kind of operation that runs on the GPU; any other, such as `view`, takes no time there."""
FEATURES = ("intensity", "waves", "inner", "columns", "rows", "cache")
"""Logarithms of: flops_ms / bytes_ms, tiles for each core, summed dimension, sizes of a matrix, bytes / cache."""
TILE = 128  # rows and columns of the output that one core computes at a time
BYTES = 4  # of a float32
SLOW_OPERATORS = 1.15
"""Operators that take this much longer than the model of which they are parts were measured on a GPU that throttled."""
SLOW_WHOLE = 0.8
"""A model of which the operators take less was disturbed: they take 0.61 to 0.67 in five cases, 0.84 in all others."""


class Chip(NamedTuple):
    """Data-sheet values of a GPU other than its rates.

    Args:
        watts: limit of the power of the board.
        lanes: float32 multipliers of each warp scheduler. With 32, each multiplication takes the slot in which an
            instruction is issued; with 16, every other slot is free for loads and addresses.
        nanometres: name of the process.
    """

    watts: float
    lanes: int
    nanometres: float


CHIPS = {
    "NVIDIA_A100-PCIE-40GB": Chip(250, 16, 7), "NVIDIA_A100_80GB_PCIe": Chip(300, 16, 7),
    "NVIDIA_H100_80GB_HBM3": Chip(700, 32, 4), "NVIDIA_L4": Chip(72, 32, 4), "Tesla_P100-PCIE-16GB": Chip(250, 32, 16),
    "Tesla_P4": Chip(75, 32, 16), "Tesla_T4": Chip(70, 16, 12), "Tesla_V100-PCIE-32GB": Chip(250, 16, 12),
}  # fmt: skip
"""From the data sheets and architecture white papers of NVIDIA."""


class Operators(NamedTuple):
    """Operations of several cases, one row each.

    Args:
        family: (rows,) place in `FAMILIES`.
        kinds: (rows,) such as `addmm`.
        features: (rows, 6), see `FEATURES`.
        rates: (rows, 6), logarithms of flops and bytes of the operation, and of flops, bandwidth, cores and cache of
            its machine: inputs of a model without physics, with the features.
        flops_ms, bytes_ms: time at the peak rate of arithmetic and of memory.
        forward_ms, backward_ms: measured time of the operation alone; 0 where it has no backward pass.
        repeats: how often it occurs in its model.
        case: (rows,) place of its case.
        machines: (cases,) names.
        whole_ms: (cases,) measured time of the forward pass of each whole model.
        step_ms: (cases,) the same with the backward pass, in training.
        peaks: (cases,) float32 operations per second in matrix products.
    """

    family: np.ndarray
    kinds: tuple[str, ...]
    features: np.ndarray
    rates: np.ndarray
    flops_ms: np.ndarray
    bytes_ms: np.ndarray
    forward_ms: np.ndarray
    backward_ms: np.ndarray
    repeats: np.ndarray
    case: np.ndarray
    machines: tuple[str, ...]
    whole_ms: np.ndarray
    step_ms: np.ndarray
    peaks: np.ndarray

    def roofline_ms(self) -> np.ndarray:
        """The larger of both times, of each row."""
        return np.maximum(self.flops_ms, self.bytes_ms)

    def whole(self, times: np.ndarray) -> np.ndarray:
        """Time of each whole model from the times of its operations."""
        return np.bincount(self.case, times * self.repeats, len(self.whole_ms))

    def feature(self, name: str) -> np.ndarray:
        """One of `FEATURES`, not its logarithm."""
        return np.asarray(np.exp(self.features[:, FEATURES.index(name)]))

    def columns(self) -> np.ndarray:
        """(rows, 9 + 6): one column for each family, then the features."""
        return np.hstack([np.eye(len(FAMILIES))[self.family], self.features])

    def operators_count(self) -> np.ndarray:
        """(cases,) whether its operators were measured undisturbed (see `SLOW_OPERATORS`)."""
        return self.whole(self.forward_ms) < SLOW_OPERATORS * self.whole_ms

    def whole_counts(self) -> np.ndarray:
        """(cases,) whether its whole model was measured undisturbed (see `SLOW_WHOLE`)."""
        return self.whole(self.forward_ms) > SLOW_WHOLE * self.whole_ms


def operators_of(cases: Sequence[Case], machines: dict[str, Machine]) -> Operators:
    """Rows of all operations of `cases` that run on a GPU.

    Raises:
        ValueError: a machine is not in `CHIPS`, or no operation of a case is known.
    """
    rows: list[list[float]] = []
    kinds: list[str] = []
    whole: list[float] = []
    for number, case in enumerate(cases):
        if case.machine not in CHIPS:
            raise ValueError(f"{case.machine}: its power limit is unknown; add it to CHIPS in {__name__}")
        before = len(rows)
        for repeats, each in zip(case.repeats(), case.operations, strict=True):
            family = FAMILY_OF.get(each.kind)
            if family is None or math.prod(each.output_shape) <= 1 or (family == "dropout" and case.mode == "inf"):
                continue
            rows.append([
                number, repeats, each.forward_ms, each.backward_ms, *_row(each, family, machines[case.machine])
            ])  # fmt: skip
            kinds.append(each.kind)
        if len(rows) == before:
            raise ValueError(f"{case.machine}, {case.model}: none of its operations is known")
        whole.append(case.time_ms if case.mode == "inf" else case.forward_ms)
    table = np.array(rows)
    place, repeats, forward_ms, backward_ms, family_of_row, flops_ms, bytes_ms = table[:, :7].T
    return Operators(
        family_of_row.astype(np.int64), tuple(kinds), table[:, 13:], table[:, 7:13], flops_ms, bytes_ms, forward_ms,
        backward_ms, repeats, place.astype(np.int64), tuple(each.machine for each in cases), np.array(whole),
        np.array([each.time_ms for each in cases]), np.array([machines[each.machine].matrix_flops for each in cases]),
    )  # fmt: skip


def _row(operation: Operation, family: str, machine: Machine) -> list[float]:
    """Family, both times, rates and features."""
    output = math.prod(operation.output_shape)
    columns = operation.output_shape[-1]
    inputs = sum(math.prod(shape) for shape in operation.input_shapes)
    inner = 1
    if family in FAMILIES[:PRODUCTS]:
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
    features = (flops_ms / bytes_ms, tiles / machine.cores, inner, columns, rows, moved / machine.cache)
    return [FAMILIES.index(family), flops_ms, bytes_ms, *map(math.log, rates), *map(math.log, features)]
