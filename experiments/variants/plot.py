"""Draw what `experiments.variants.compare` found: score, step and memory of every variant, one row for each task.

    python -m experiments.variants.plot experiments/results/variants_*.json --out docs/variants.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SCORES = {"runtime": "Kendall's tau", "number": "Kendall's tau over graphs", "class": "accuracy"}
COLUMNS = (("step_ms", "milliseconds of a step"), ("peak_mib", "peak memory, MiB"))
INK, PAPER = "#0b5394", "#cfe2f3"


def draw(results: list[dict[str, Any]], out: Path) -> None:
    figure, axes = plt.subplots(len(results), 3, figsize=(11, 2.6 * len(results)), squeeze=False, layout="constrained")
    for row, result in zip(axes, results, strict=True):
        names = list(result["variants"])[::-1]
        variants = [result["variants"][name] for name in names]
        for place, variant in enumerate(variants):
            row[0].plot(variant["scores"], [place] * len(variant["scores"]), "o", color=PAPER, markersize=5)
            row[0].errorbar(variant["score_mean"], place, xerr=variant["score_deviation"], fmt="D", color=INK)
        row[0].set_yticks(range(len(names)), names)
        row[0].set_title(f"{result['task']}: {SCORES[result['kind']]}", loc="left", fontsize=10)
        for axis, (key, title) in zip(row[1:], COLUMNS, strict=True):
            bars = axis.barh(names, [variant[key] for variant in variants], color=INK, height=0.6)
            axis.bar_label(bars, fmt="%.4g", padding=3, fontsize=8)
            axis.margins(x=0.15)
            axis.set_yticks(range(len(names)), [""] * len(names))
            axis.set_title(title, loc="left", fontsize=10)
        for axis in row:
            axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/variants.png"))
    options = parser.parse_args()
    draw([json.loads(file.read_text()) for file in options.files], options.out)


if __name__ == "__main__":
    main()
