"""Importance of each part of the analytical estimate: models trained and scored with estimates that lack it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reproductions.hlsyn.cycles.cycles import Estimate, estimate
from experiments.reproductions.hlsyn.cycles.dependences import LoopFacts
from experiments.reproductions.hlsyn.designs import Estimates, designs_of
from experiments.reproductions.hlsyn.model import Settings, folds_of, scores, train
from experiments.reproductions.hlsyn.source import HlsKernel
from experiments.reproductions.hlsyn.source.loop_tree import Kernel, Loop
from experiments.reproductions.hlsyn.source.pragmas import Point, Setting
from gst.util.writing import write_json


def without_recurrences(kernel: Kernel, point: Point, tool: str, known: dict[str, LoopFacts]) -> Estimate:
    """No iteration waits for an earlier one."""
    return estimate(kernel, point, tool, {name: fact._replace(recurrences=()) for name, fact in known.items()})


def without_transfers(kernel: Kernel, point: Point, tool: str, known: dict[str, LoopFacts]) -> Estimate:
    """Nothing is moved between memory and chip."""
    return estimate(replace(kernel, arrays={}, bytes_of={}, shapes={}), point, tool, known)


def without_canonical_pragmas(kernel: Kernel, point: Point, tool: str, known: dict[str, LoopFacts]) -> Estimate:
    """Pragmas as they are written: factors alone act, and on their own loop alone."""
    return estimate(kernel, point, tool, known, {name: _written(fact.loop, point) for name, fact in known.items()})


def _written(loop: Loop, point: Point) -> Setting:
    whole = max(int(-(-loop.trip_count // 1)), 1)
    copies, tile = (int(point.get(f"__{kind}__{loop.place}", 1)) if loop.place else 1 for kind in ("PARA", "TILE"))
    is_innermost = not any(isinstance(each, Loop) for each in loop.body)
    return Setting(min(copies, whole), tile, is_innermost, is_innermost and copies >= whole and loop.is_exact)


PARTS: dict[str, Estimates] = {
    "all": estimate,
    "without recurrences": without_recurrences,
    "without transfers": without_transfers,
    "without canonical pragmas": without_canonical_pragmas,
}


def importance(kernels: Sequence[HlsKernel], seeds: int, path: Path | None) -> dict[str, Any]:
    """Score estimates that lack one part, and write the table to `path` after each part.

    rmse and tau on unseen families are those of the estimate alone, of one network alone and of their mean, for every
    seed and as means over seeds.
    """
    command = f"python -m experiments.reproductions.hlsyn importance --seeds {seeds}"
    result: dict[str, Any] = {"command": command, "parts": {}}
    for name, estimates in PARTS.items():
        designs = designs_of(kernels, estimates=estimates)
        runs: dict[str, list[dict[str, float]]] = {}
        for seed in range(seeds):
            folds = folds_of(designs, 5, seed)
            means = {row: np.zeros(len(designs)) for row in ("estimate", "network", "both")}
            means["estimate"] = designs.program[:, 0].astype(np.float64)
            for fold in range(5):
                rest = designs.where(folds == fold)
                base, _ = train(designs.where(folds != fold), Settings(members=1), seed, calibrated=False).base(rest)
                means["both"][folds == fold] = base
                means["network"][folds == fold] = 2 * base - rest.program[:, 0]
            for row, mean in means.items():
                score = scores(designs, mean)
                runs.setdefault(row, []).append({key: score[key] for key in ("rmse", "tau")})
        result["parts"][name] = {
            row: {key: float(np.mean([run[key] for run in each])) for key in ("rmse", "tau")} | {"seeds": each}
            for row, each in runs.items()
        }
        print(
            name, {row: (round(each["rmse"], 2), round(each["tau"], 2)) for row, each in result["parts"][name].items()}
        )
        if path:
            write_json(path, result)
    return result
