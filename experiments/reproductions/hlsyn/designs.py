"""HLSyn designs as arrays: analytical features of each design, its outcome, and which designs are alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64

from gst.cost.hlsyn.cycles import LOOP_FEATURES, Estimate, estimate, facts
from gst.data.hlsyn import HlsKernel, canonical
from gst.process.progress import bar

NO_LOOP = -2  # parent of a row that holds no loop


class Designs(NamedTuple):
    """Synthesised designs of several programs.

    Args:
        program: `PROGRAM_FEATURES` of each design.
        loops: `LOOP_FEATURES` of the loops that remain, children after parents, padded with zeros.
        parents: row of the parent of each loop; -1 at the top, -2 where there is none.
        log_cycles: what is predicted, log2 of the latency in cycles.
        group: program of each design, a number into `names`.
        twins: equal for designs of one program whose effective pragmas are equal.
        names: of the programs, `v18/atax`.
    """

    program: Float32[np.ndarray, "designs values"]
    loops: Float32[np.ndarray, "designs loops values"]
    parents: Int64[np.ndarray, "designs loops"]
    log_cycles: Float64[np.ndarray, " designs"]
    group: Int64[np.ndarray, " designs"]
    twins: Int64[np.ndarray, " designs"]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.group)

    def where(self, chosen: Bool[np.ndarray, " designs"]) -> Designs:
        """The chosen designs."""
        return Designs(*(array[chosen] for array in self[:-1]), self.names)  # type: ignore[arg-type]


def designs_of(kernels: Sequence[HlsKernel]) -> Designs:
    """The designs of `kernels` that were synthesised and are valid.

    Raises:
        ValueError: there is none.
    """
    estimates: list[Estimate] = []
    log_cycles, group, twins = [], [], []
    for number, each in enumerate(bar(kernels, desc="programs")):
        known = facts(each.kernel)
        met: dict[tuple, tuple[int, Estimate]] = {}
        for design in each.designs:
            if not design.is_valid:
                continue
            key = tuple(sorted(canonical(each.kernel, design.point).items()))
            if key not in met:
                met[key] = len(estimates), estimate(each.kernel, design.point, each.tool, known)
            estimates.append(met[key][1])
            twins.append(met[key][0])
            log_cycles.append(np.log2(design.cycles))
            group.append(number)
    if not estimates:
        raise ValueError("no design was synthesised; there is nothing to learn from or to score")
    most = max(len(each.parents) for each in estimates)
    loops = np.zeros((len(estimates), most, len(LOOP_FEATURES)), np.float32)
    parents = np.full((len(estimates), most), NO_LOOP, np.int64)
    for row, each in enumerate(estimates):
        loops[row, : len(each.loops)], parents[row, : len(each.parents)] = each.loops, each.parents
    return Designs(
        np.stack([each.program for each in estimates]), loops, parents, np.array(log_cycles), np.array(group),
        np.array(twins), tuple(each.label for each in kernels),
    )  # fmt: skip


def chains(designs: Designs) -> Float32[np.ndarray, "designs columns"]:
    """Features of whole designs and of their two costliest loops, in columns for trees."""
    column = {name: place for place, name in enumerate(LOOP_FEATURES)}
    cost = designs.loops[..., column["log_estimate"]] + designs.loops[..., column["log_outer"]]
    cost = np.where(designs.parents > NO_LOOP, cost - designs.loops[..., column["log_copies"]], -1)
    width = designs.loops.shape[2]
    order = np.argsort(-cost, axis=1, kind="stable")[:, :2]
    costliest = np.take_along_axis(designs.loops, order[..., None].repeat(width, 2), axis=1)
    return np.concatenate([designs.program, costliest.reshape(len(designs), -1)], axis=1)
