"""Table of searches: regret of the cost model's search and of its rivals, on kernels whose families it has not seen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reproductions.hlsyn.cycles import METHODS, candidates_of, family, regrets, search, train_prior
from experiments.reproductions.hlsyn.source import HlsKernel
from gst.util.progress import bar
from gst.util.writing import write_json

AFTER = (20, 50, 100)
FEWEST = 120  # effective designs of a kernel, so that 100 are not nearly all
FEWEST_VALID = 20
LEARNED_FROM = 200  # designs of each other kernel


def search_table(kernels: Sequence[HlsKernel], tool: str, seeds: int, path: Path | None) -> dict[str, Any]:
    """Regret in log2 cycles after `AFTER` designs, by method: of each kernel of a tool, and means over kernels.

    Kernels of at least `FEWEST` effective designs and `FEWEST_VALID` valid ones are searched. Written to `path` after
    each kernel; kernels that stand there with as many seeds are not searched again.
    """
    command = f"python -m experiments.reproductions.hlsyn search --tool {tool} --seeds {seeds}"
    result: dict[str, Any] = {"command": command, "tool": tool, "seeds": seeds, "kernels": {}}
    if path and path.exists():
        saved = json.loads(path.read_text())
        result = saved if (saved["tool"], saved["seeds"]) == (tool, seeds) else result
    known = [
        (family(each.name), candidates_of(each, LEARNED_FROM)) for each in bar(kernels, desc="read") if each.designs
    ]
    for kernel in bar([each for each in kernels if each.tool == tool and each.designs], desc="kernels"):
        designs = candidates_of(kernel)
        few = designs.num_designs < FEWEST or designs.is_valid.sum() < FEWEST_VALID
        if few or designs.label in result["kernels"]:
            continue
        prior = train_prior([other for name, other in known if name != family(kernel.name)])
        row: dict[str, Any] = {"designs": designs.num_designs, "valid": int(designs.is_valid.sum())}
        for method in METHODS:
            runs = [
                list(regrets(designs, search(designs, method, max(AFTER), seed, prior), AFTER).values())
                for seed in range(1 if method == "exhaustive" else seeds)
            ]
            row[method] = np.round(np.mean(runs, axis=0), 4).tolist()
        result["kernels"][designs.label] = row
        _summarise(result)
        if path:
            write_json(path, result)
        print(designs.label, row, flush=True)
    for method, row in result["means"].items():
        print(f"{method:12}" + "".join(f"{value:8.2f}" for value in row["regret"]) + f"  {row['interval']}")
    return result


def _summarise(result: dict[str, Any]) -> None:
    """Means over kernels, and their 95 % interval by drawing kernels anew."""
    rows = list(result["kernels"].values())
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(rows), size=(2000, len(rows)))
    result["after"], result["means"] = list(AFTER), {}
    for method in METHODS:
        table = np.array([row[method] for row in rows])
        low, high = np.quantile(table[drawn].mean(1), [0.025, 0.975], axis=0)
        result["means"][method] = {
            "regret": np.round(table.mean(0), 3).tolist(),
            "interval": np.round(np.stack([low, high], 1), 3).tolist(),
        }
