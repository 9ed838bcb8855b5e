"""The pictures of the documents. Each carries, as `Source`, a fingerprint of the results it shows.

Colours are those of Okabe and Ito, distinct for colour-blind readers; shapes repeat the distinction.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from experiments.figures.documents import result
from experiments.figures.measured import VARIANT_TASKS
from experiments.figures.worlds import WORLDS

BLUE, ORANGE, GREEN, PURPLE, SKY, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#666666"
SCORES = {"runtime": "Kendall's tau", "number": "Kendall's tau over graphs", "class": "accuracy"}
COUNTED = range(8, 51)  # measurements that are drawn
WHOLE = "whole graph"
CURVES = {
    WHOLE: (ORANGE, "s"), "GST": (GREEN, "D"), "GST+E": (PURPLE, "v"), "GST+EFD": (SKY, "^"),
    "GST+E, difference": (BLUE, "o"),
}  # fmt: skip
WAYS = {
    "none": (GREY, "s", "simulator as it is"), "linear": (ORANGE, "v", "linear regression"),
    "ten parameters": (PURPLE, "^", "ten parameters fitted"), "fitted": (BLUE, "o", "all costs fitted"),
    "true costs": (GREEN, "D", "costs of the world itself"),
}  # fmt: skip


def figure_of(size: tuple[float, float], rows: int = 1, columns: int = 1, **shared: Any) -> tuple[Figure, Any]:
    """Return a figure without a frame on the right and above, and its axes, (rows, columns)."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def against_full(found: Mapping[str, Any]) -> Figure:
    figure, ((axes,),) = figure_of((7, 3.6))
    for name, label, colour, line in (("gst", "segments, table", BLUE, "-"), ("full", "whole graph", ORANGE, "--")):
        for seed, curve in enumerate(found["curves"][name]):
            best = np.maximum.accumulate([tau for _, tau in curve])
            axes.step([seconds for seconds, _ in curve], best, color=colour, linestyle=line, where="post", alpha=0.8,
                      label=f"{label}, 3 seeds" if not seed else None)  # fmt: skip
    axes.set(xscale="log", xlabel="seconds of training on one core", ylabel="best tau, 32 held out", ylim=(0.2, 1))
    axes.set_xticks([1, 10, 100], ["1", "10", "100"])
    axes.legend(frameon=False)
    return figure


def placement(found: Mapping[str, Any]) -> Figure:
    rows = dict(reversed(found["workloads"].items()))
    shown = {"pytorch": "plain PyTorch, 2 threads", "compile": "torch.compile", "heft": "HEFT", "fused": "with fusion"}
    figure, ((axes,),) = figure_of((8, 4.2))
    for number, ((key, label), colour, shape) in enumerate(
        zip(shown.items(), (GREY, ORANGE, GREEN, BLUE), "sv^o", strict=True)
    ):
        medians, low, high = ([each[f"{key}{end}_ms"] for each in rows.values()] for end in ("", "_low", "_high"))
        places = [place + 0.24 - 0.16 * number for place in range(len(rows))]
        bars = np.abs(np.subtract([low, high], medians))
        axes.errorbar(medians, places, xerr=bars, fmt=shape, color=colour, capsize=3, label=label)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set(xlabel="ms of a training step, median of 25 and 95 % interval", xlim=(0, None))
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def variants(*results: Mapping[str, Any]) -> Figure:
    """Draw the validation score over the processor time of a training: median of the seeds, and all of them."""
    figure, grid = figure_of((10, 3.2 * math.ceil(len(results) / 2)), math.ceil(len(results) / 2), 2)
    for axes, found in zip(grid.flat, results, strict=False):
        for name, (colour, shape) in CURVES.items():
            rate = found["variants"].get(name, {}).get("rate")
            curves = [each["curve"] for each in found["runs"].values()
                      if each["variant"] == name and each["rate"] == rate and each["curve"]]  # fmt: skip
            if curves:
                seconds, scores = (np.array([[look[at] for look in curve] for curve in curves]) for at in (1, 2))
                middle = np.median(seconds, 0)
                axes.fill_between(middle, scores.min(0), scores.max(0), color=colour, alpha=0.15, lw=0)
                axes.plot(middle, np.median(scores, 0), color=colour, marker=shape, markersize=4, label=name)
        axes.axhline(found["goal"], color=GREY, linewidth=0.8, linestyle=":")
        axes.set_title(f"{VARIANT_TASKS[found['task']]}: {SCORES[found['kind']]}", loc="left", fontsize=10)
        axes.set(xscale="log", xlabel="seconds of training, one core")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    for axes in grid.flat[len(results) :]:
        axes.axis("off")
    labels = {label: mark for axes in grid.flat for mark, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    labels[f"99 % of {WHOLE}, or of GST where that takes over 2 GiB"] = grid[0, 0].lines[-1]
    figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def worlds(found: Mapping[str, Any]) -> Figure:
    """Draw the runtime of the best plan so far over the number of measurements: mean, and the middle half of cases."""
    rows = [row for row in found["rows"] if row["budget"] == 50]
    names = list(found["over_none"])
    figure, (grid,) = figure_of((4 * len(names) + 1, 3.6), 1, len(names))
    for axes, name in zip(grid, names, strict=True):
        for way, (colour, shape, label) in WAYS.items():
            curves = [_course(row, rows) for row in rows if row["world"] == name and row["way"] == way]
            if curves:
                middle = [statistics.geometric_mean(column) for column in zip(*curves, strict=True)]
                axes.fill_between(COUNTED, *np.quantile(curves, (0.25, 0.75), axis=0), color=colour, alpha=0.15, lw=0)
                axes.plot(COUNTED, middle, color=colour, marker=shape, markevery=10, markersize=4, label=label)
        axes.set_title(WORLDS[name], loc="left", fontsize=10)
        axes.set(xlabel="measurements", ylabel="runtime / that without a cost model" if name == names[0] else "")
    labels = {label: mark for axes in grid for mark, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(labels.values(), labels.keys(), frameon=False, fontsize=8, loc="outside right upper")
    return figure


def _course(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the runtime of the best plan after each number of measurements, over the end of the same case by none."""
    same = ("world", "program", "seed")
    end = next(each["ms"] for each in rows if each["way"] == "none" and all(each[key] == row[key] for key in same))
    best = [next(ms for number, ms in reversed(row["curve"]) if number <= count or number == row["curve"][0][0])
            for count in COUNTED]  # fmt: skip
    return [ms / end for ms in best]


PICTURES: dict[str, tuple[Callable[..., Figure], tuple[str, ...]]] = {
    "docs/worlds.png": (worlds, ("worlds",)),
    "docs/variants.png": (variants, tuple(f"convergence_{task}" for task in VARIANT_TASKS)),
    "experiments/bench/placement.png": (placement, ("placement",)),
    "experiments/reproductions/gst/against_full.png": (against_full, ("against_full",)),
}


def fingerprint(sources: Sequence[str]) -> str:
    """Return a fingerprint of the content of results, independent of the layout of their files."""
    content = json.dumps([result(name) for name in sources], sort_keys=True)
    return f"{', '.join(sources)} {hashlib.sha256(content.encode()).hexdigest()[:16]}"


def draw(name: str, path: Path) -> None:
    """Write one of `PICTURES` as a PNG of 256 colours, a third of the size of one of all."""
    make, sources = PICTURES[name]
    file, source = BytesIO(), PngInfo()
    make(*map(result, sources)).savefig(file, dpi=110)
    source.add_text("Source", fingerprint(sources))
    Image.open(file).convert("RGB").quantize().save(path, optimize=True, pnginfo=source)
