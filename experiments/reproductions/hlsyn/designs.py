"""HLSyn designs as arrays: analytical features of each design, its outcome, and which designs are alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64

from experiments.reproductions.hlsyn.cycles.cycles import LOOP_FEATURES, Estimate, estimate
from experiments.reproductions.hlsyn.cycles.dependences import LoopFacts, facts
from experiments.reproductions.hlsyn.source import HlsKernel, canonical
from experiments.reproductions.hlsyn.source.loop_tree import Kernel
from experiments.reproductions.hlsyn.source.pragmas import Point, Setting
from gst.util.progress import bar

NO_LOOP = -2  # parent of a row that holds no loop


class Designs(NamedTuple):
    """Synthesised designs of several programs.

    Args:
        program: `PROGRAM_FEATURES` of each design.
        loops: `LOOP_FEATURES` of the loops that remain, children after parents, padded with zeros.
        parents: row of the parent of each loop; -1 at the top, -2 where there is none.
        settings: pragmas of each loop of the source, in its order: effective ones (log2 of copies and of the tile,
            pipelined, unrolled), then as they are written (log2 of copies and of the tile; 0, 1, 2 for `off`, `''`,
            `flatten`); padded with zeros.
        log_cycles: what is predicted, log2 of the latency in cycles.
        group: program of each design, a number into `names`.
        twins: equal for designs of one program whose effective pragmas are equal.
        names: of the programs, `v18/atax`.
        skeletons: of the programs; equal for versions and sizes of one kernel.
    """

    program: Float32[np.ndarray, "designs values"]
    loops: Float32[np.ndarray, "designs loops values"]
    parents: Int64[np.ndarray, "designs loops"]
    settings: Float32[np.ndarray, "designs values"]
    log_cycles: Float64[np.ndarray, " designs"]
    group: Int64[np.ndarray, " designs"]
    twins: Int64[np.ndarray, " designs"]
    names: tuple[str, ...]
    skeletons: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.group)

    def where(self, chosen: Bool[np.ndarray, " designs"]) -> Designs:
        """The chosen designs."""
        return Designs(
            self.program[chosen], self.loops[chosen], self.parents[chosen], self.settings[chosen],
            self.log_cycles[chosen], self.group[chosen], self.twins[chosen], self.names, self.skeletons,
        )  # fmt: skip


Estimates = Callable[[Kernel, Point, str, dict[str, LoopFacts]], Estimate]


def designs_of(
    kernels: Sequence[HlsKernel], broken: dict[str, str] | None = None, estimates: Estimates = estimate
) -> Designs:  # fmt: skip
    """The designs of `kernels` that were synthesised and are valid.

    Args:
        broken: where it is given, a kernel that cannot be estimated is left out, and its label and what is wrong with
            it are written here, instead of an error for all.
        estimates: makes the estimate of a design.

    Raises:
        ValueError: there is none.
    """
    rows: list[_Row] = []
    readable: list[HlsKernel] = []
    for each in bar(kernels, desc="programs"):
        try:
            found = list(_rows(each, len(readable), len(rows), estimates))
        except (ValueError, ArithmeticError, LookupError, RecursionError) as error:
            if broken is None:
                raise
            broken[each.label] = f"no estimate: {type(error).__name__}: {error}"
            continue
        if not found and broken is not None:
            broken[each.label] = "none of its designs is valid, so that it has no cycles to compare with"
            continue
        readable.append(each)
        rows += found
    if not rows:
        raise ValueError("no design was synthesised; there is nothing to learn from or to score")
    most = max(len(each.estimate.parents) for each in rows)
    loops = np.zeros((len(rows), most, len(LOOP_FEATURES)), np.float32)
    parents = np.full((len(rows), most), NO_LOOP, np.int64)
    for place, each in enumerate(rows):
        loops[place, : len(each.estimate.loops)] = each.estimate.loops
        parents[place, : len(each.estimate.parents)] = each.estimate.parents
    width = max(len(each.settings) for each in rows)
    return Designs(
        np.stack([each.estimate.program for each in rows]), loops, parents,
        np.array([each.settings + [0.0] * (width - len(each.settings)) for each in rows], np.float32),
        np.array([each.log_cycles for each in rows]), np.array([each.group for each in rows]),
        np.array([each.twins for each in rows]), tuple(each.label for each in readable),
        tuple(skeleton(each.kernel) for each in readable),
    )  # fmt: skip


class _Row(NamedTuple):
    estimate: Estimate
    settings: list[float]
    log_cycles: float
    group: int
    twins: int


def _rows(kernel: HlsKernel, group: int, first: int, estimates: Estimates) -> Iterator[_Row]:
    known = facts(kernel.kernel)
    met: dict[tuple, tuple[int, Estimate]] = {}
    for place, design in enumerate(each for each in kernel.designs if each.is_valid):
        effective = canonical(kernel.kernel, design.point)
        key = tuple(sorted(effective.items()))
        if key not in met:
            met[key] = first + place, estimates(kernel.kernel, design.point, kernel.tool, known)
        settings = [
            number for name, fact in known.items()
            for number in (*_numbers(effective[name]), *_written(fact.loop.place, design.point))
        ]  # fmt: skip
        yield _Row(met[key][1], settings, float(np.log2(design.cycles)), group, met[key][0])


def _numbers(setting: Setting) -> tuple[float, ...]:
    return (np.log2(setting.parallel), np.log2(setting.tile), float(setting.is_pipelined), float(setting.is_unrolled))


def _written(place: str, point: Point) -> tuple[float, ...]:
    if not place:
        return 0.0, 0.0, 0.0
    copies, tile = (math.log2(int(point.get(f"__{kind}__{place}", 1))) for kind in ("PARA", "TILE"))
    return copies, tile, float(("off", "", "flatten").index(str(point.get(f"__PIPE__{place}", "off"))))


def skeleton(kernel: Kernel) -> str:
    """Nesting of the loops and operations in each, which versions and sizes of a kernel share."""
    parts = []
    for fact in facts(kernel).values():
        counts = sum((statement.operations for statement, _ in fact.statements), Counter())
        parts.append(f"{fact.level}:" + ",".join(f"{kind}{counts[kind]}" for kind in sorted(counts)))
    return " ".join(parts)


def chains(designs: Designs) -> Float32[np.ndarray, "designs columns"]:
    """Features of whole designs and of their two costliest loops, in columns for trees."""
    column = {name: place for place, name in enumerate(LOOP_FEATURES)}
    cost = designs.loops[..., column["log_estimate"]] + designs.loops[..., column["log_outer"]]
    cost = np.where(designs.parents > NO_LOOP, cost - designs.loops[..., column["log_copies"]], -1)
    width = designs.loops.shape[2]
    order = np.argsort(-cost, axis=1, kind="stable")[:, :2]
    costliest = np.take_along_axis(designs.loops, order[..., None].repeat(width, 2), axis=1)
    return np.concatenate([designs.program, costliest.reshape(len(designs), -1)], axis=1)
