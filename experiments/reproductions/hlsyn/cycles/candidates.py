"""Candidate designs of one HLSyn kernel: their features, and what synthesis said of each."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64

from experiments.reproductions.hlsyn.cycles.cycles import LOOP_FEATURES, Estimate, estimate, facts
from experiments.reproductions.hlsyn.source import HlsKernel, canonical
from experiments.reproductions.hlsyn.source.pragmas import Point

FAMILIES = {
    "2mm": "mm", "3mm": "mm", "gemm-blocked": "gemm", "gemm-ncubed": "gemm", "spmv-crs": "spmv", "syrk": "syr",
    "spmv-ellpack": "spmv", "stencil-3d": "stencil", "syr2k": "syr", "jacobi-1d": "jacobi", "jacobi-2d": "jacobi",
}  # fmt: skip
SIZES = ("-medium", "-large", "-red", "-opt")
COSTLIEST = 2  # loops whose features are columns


def family(name: str) -> str:
    """The family of a kernel: its sizes, versions and near relatives.

    Examples:
        >>> family("symm-opt-medium"), family("syr2k"), family("atax")
        ('symm', 'syr', 'atax')
    """
    for _ in SIZES:
        for ending in SIZES:
            name = name.removesuffix(ending)
    return FAMILIES.get(name, name)


class Candidates(NamedTuple):
    """Designs of one kernel among which a search chooses; designs of equal effective pragmas are one.

    Args:
        label: `v20/gemm-blocked`.
        points: value of each pragma of each design.
        pragmas: the same as numbers: log2 of factors, and 0, 1, 2 for `off`, `''`, `flatten`.
        columns: `PROGRAM_FEATURES` of the analytical estimate, and `LOOP_FEATURES` of the costliest loops.
        log_cycles: log2 of the latency in cycles; NaN where the design is not valid.
    """

    label: str
    points: tuple[Point, ...]
    pragmas: Float32[np.ndarray, "designs pragmas"]
    columns: Float32[np.ndarray, "designs columns"]
    log_cycles: Float64[np.ndarray, " designs"]

    @property
    def num_designs(self) -> int:
        """Number of designs."""
        return len(self.points)

    @property
    def is_valid(self) -> Bool[np.ndarray, " designs"]:
        """The design was synthesised and passed the checks of the authors."""
        return np.isfinite(self.log_cycles)


def costliest_loops(each: Estimate) -> Float32[np.ndarray, " values"]:
    """`LOOP_FEATURES` of the loops that take most time, zeros where there are fewer."""
    column = {name: place for place, name in enumerate(LOOP_FEATURES)}
    cost = each.loops[:, column["log_estimate"]] + each.loops[:, column["log_outer"]]
    order = np.argsort(-(cost - each.loops[:, column["log_copies"]]), kind="stable")[:COSTLIEST]
    result = np.zeros((COSTLIEST, len(LOOP_FEATURES)), np.float32)
    result[: len(order)] = each.loops[order]
    return result.ravel()


def candidates_of(kernel: HlsKernel, most: int | None = None, seed: int = 0) -> Candidates:
    """The designs of a kernel, one of each group of equal effective pragmas: the first valid one, if there is any.

    Args:
        most: keep so many, drawn by `seed`, for training; all of them without it.

    Raises:
        ValueError: it has no designs.
    """
    if not kernel.designs:
        raise ValueError(f"{kernel.label} has no designs; there is nothing to choose among")
    known = facts(kernel.kernel)
    groups: dict[tuple, int] = {}
    for place, design in enumerate(kernel.designs):
        key = tuple(sorted(canonical(kernel.kernel, design.point).items()))
        if key not in groups or (design.is_valid and not kernel.designs[groups[key]].is_valid):
            groups[key] = place
    places = np.array(list(groups.values()), np.int64)
    if most is not None and len(places) > most:
        places = np.sort(np.random.default_rng(seed).choice(places, most, replace=False))
    designs = [kernel.designs[place] for place in places]
    estimates = [estimate(kernel.kernel, design.point, kernel.tool, known) for design in designs]
    names = sorted({name for design in designs for name in design.point})
    return Candidates(
        kernel.label,
        tuple(design.point for design in designs),
        np.array([[_number(design.point.get(name, 1)) for name in names] for design in designs], np.float32),
        np.stack([np.concatenate([each.program, costliest_loops(each)]) for each in estimates]),
        np.array([math.log2(design.cycles) if design.is_valid else math.nan for design in designs]),
    )


def _number(value: int | str) -> float:
    return float(("off", "", "flatten").index(value)) if isinstance(value, str) else math.log2(value)
