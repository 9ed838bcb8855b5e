"""The pictures of the documents. Each carries, as `Source`, a fingerprint of the results it shows.

Colours are those of Okabe and Ito, distinct for colour-blind readers; shapes repeat the distinction.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from experiments.figures.cost_models import ALEXNET, HELD_OUT, TASKS, UNIQUE
from experiments.figures.documents import result
from experiments.figures.gpu import HOST_PARTS
from experiments.figures.method import VARIANT_TASKS
from experiments.figures.published import COLUMNS, FOLDER, NAMES, milliseconds
from experiments.figures.worlds import WORLDS

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, GREY = "#CC79A7", "#56B4E9", "#666666"
COLOURS, SHAPES = (GREY, ORANGE, GREEN, PURPLE, SKY, RED), "sv^P*X"
SCORES = {
    "runtime": "Kendall's tau", "number": "Kendall's tau over graphs", "class": "accuracy",
}  # fmt: skip
MEAN = "mean and its 95 % interval"
SHOWN = 0.008  # of a difference of tau; what is worse is written out


def against_full(found: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for (name, label), colour, line in zip(
        (("gst", "GST+ED"), ("full", "whole graph")), (BLUE, ORANGE), ("-", "--"), strict=True
    ):
        for seed, curve in enumerate(found["curves"][name]):
            best = [max(tau for _, tau in curve[: place + 1]) for place in range(len(curve))]
            axes.step([seconds for seconds, _ in curve], best, color=colour, linestyle=line, where="post", alpha=0.8,
                      label=f"{label}, five seeds" if not seed else None)  # fmt: skip
    axes.set(xscale="log", xlabel="seconds of training", ylabel="best tau so far, 32 held out", ylim=(0.2, 0.87))
    starts = [curve[0][1] for curves in found["curves"].values() for curve in curves]
    if min(starts) < 0.2:
        axes.text(0.265, 0.21, f"from {min(starts):.2f}, below the axis", color=BLUE, fontsize=8)
    axes.set_xticks([0.1, 1, 10], ["0.1", "1", "10"])
    axes.legend(frameon=False)
    return _plain(figure)


def alexnet(found: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.subplots()
    counts = [UNIQUE - HELD_OUT if key == "all" else int(key) for key in found["labels"]]
    for place, (key, label) in enumerate(ALEXNET.items()):
        other = key.removesuffix("_tau")
        taus = [
            each["taus"] if key == "tau_mean"
            else [tau - gain for tau, gain in zip(each["taus"], each["paired"][other]["each"], strict=True)]
            for each in found["labels"].values()
        ]  # fmt: skip
        moved = [count * 1.06 ** (place - 1.5) for count in counts]
        middle, bars = _ranges(taus)
        colour, shape = (BLUE, *COLOURS[1:])[place], "oD^v"[place]
        axes.errorbar(moved, middle, yerr=bars, color=colour, marker=shape, capsize=3, label=label.strip("`"))
    ceiling = next(iter(found["labels"].values()))["ceiling"]
    axes.axhline(ceiling, color=GREY, linestyle=":", label="a perfect model, for the noise of repeats")
    axes.set(xscale="log", xlabel="labels to learn from", ylabel="Kendall's tau, 1,000 held out", ylim=(0.25, 0.9))
    axes.set_xticks(counts, [f"{count:,}" for count in counts], minor=False)
    axes.minorticks_off()
    axes.legend(frameon=False)
    return _plain(figure)


def _ranges(values: Sequence[Sequence[float]]) -> tuple[list[float], list[list[float]]]:
    """Return the medians, and the distances from them to the least and to the greatest value."""
    middle = [statistics.median(each) for each in values]
    below = [place - min(each) for place, each in zip(middle, values, strict=True)]
    return middle, [below, [max(each) - place for place, each in zip(middle, values, strict=True)]]


def system(learner: str, found: Mapping[str, Any]) -> Figure:
    """Draw times over the lower bound, one line for each program and machine."""
    rows = dict(reversed(found["rows"].items()))
    figure = Figure(figsize=(8, 0.9 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    others = zip(COLUMNS[learner].items(), COLOURS, SHAPES, strict=False)
    for number, ((label, names), colour, shape) in enumerate(others):
        times = [statistics.median(milliseconds(each, names)) / each["lower_bound_ms"] for each in rows.values()]
        apart = [place + 0.3 - 0.1 * number for place in range(len(rows))]  # so that none hides another
        axes.plot(times, apart, shape, color=colour, markersize=6, label=label)
    seeds = [[ms / each["lower_bound_ms"] for ms in milliseconds(each, (learner,))] for each in rows.values()]
    middle, bars = _ranges(seeds)
    below = [place - 0.3 for place in range(len(rows))]
    axes.errorbar(middle, below, xerr=bars, fmt="o", color=BLUE, capsize=3, label=NAMES[learner])
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set(xscale="log", xlabel="simulated time of a step over the lower bound (logarithmic; left is faster)")
    ticks = [1, 1.5, 2, 3, 5, 8]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axes.minorticks_off()
    _between(axes, len(rows))
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return _plain(figure)


def placement(found: Mapping[str, Any]) -> Figure:
    rows = dict(reversed(found["workloads"].items()))
    shown = {"pytorch": "plain PyTorch, 2 threads", "compile": "torch.compile", "heft": "HEFT", "fused": "with fusion"}
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, ((key, label), colour, shape) in enumerate(
        zip(shown.items(), (GREY, ORANGE, GREEN, BLUE), "sv^o", strict=True)
    ):
        medians = [each[f"{key}_ms"] for each in rows.values()]
        bars = [[each[f"{key}_ms"] - each[f"{key}_low_ms"] for each in rows.values()],
                [each[f"{key}_high_ms"] - each[f"{key}_ms"] for each in rows.values()]]  # fmt: skip
        places = [place + 0.24 - 0.16 * number for place in range(len(rows))]
        axes.errorbar(medians, places, xerr=bars, fmt=shape, color=colour, capsize=3, label=label)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set(xlabel="ms of a training step, median of 25 and 95 % interval", xlim=(0, None))
    _between(axes, len(rows))
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return _plain(figure)


def simulator(found: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(9, 5.6), layout="constrained")
    for axes, (name, each) in zip(figure.subplots(2, 3).flat, found["workloads"].items(), strict=True):
        axes.plot(each["measured_ms"], each["simulated_ms"], "o", color=BLUE, markersize=3, alpha=0.6)
        least, most = min(each["measured_ms"] + each["simulated_ms"]), max(each["measured_ms"] + each["simulated_ms"])
        axes.plot([least, most], [least, most], color=GREY, linewidth=0.8)
        axes.set_title(f"{name}: Spearman {each['spearman']:.2f}", loc="left", fontsize=10)
        axes.set_aspect("equal")
    figure.supxlabel("measured, ms", fontsize=10)
    figure.supylabel("simulated, ms", fontsize=10)
    return _plain(figure)


def _between(axes: Axes, rows: int) -> None:
    """Draw a thin line between each row and the next."""
    axes.hlines(
        [place + 0.5 for place in range(rows - 1)], 0, 1, "#dddddd", linewidth=0.6, transform=axes.get_yaxis_transform()
    )
    axes.set_ylim(-0.5, rows - 0.5)
    axes.tick_params(axis="y", length=0)


def ablation(found: Mapping[str, Any]) -> Figure:
    rows = found["techniques"]
    base, names = rows["base"], [name for name in rows if name != "base"][::-1]
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 1))
    for place, name in enumerate(names):
        each = rows[name]
        _difference(left, place, each, [tau - other for tau, other in zip(each["taus"], base["taus"], strict=True)])
        if each["difference"] < -SHOWN:
            beyond = f"  {each['difference']:.2f} ± {each['interval']:.2f}, left of this"
            left.text(-SHOWN, place, beyond, va="center", fontsize=8)
    left.set_xlim(-SHOWN, SHOWN)
    left.axvline(0, color=GREY, linewidth=0.8)
    left.set_yticks(range(len(names)), names)
    left.set_ylim(-0.6, len(names) - 0.4)
    left.set_title(f"Kendall's tau over the base ({base['tau_mean']:.3f}); right is better", loc="left", fontsize=10)
    _bars(right, [rows[name]["step_ms"] for name in names], f"ms of a step (base {base['step_ms']:.3g})")
    _below(figure, left, "a seed", MEAN)
    return _plain(figure)


def features(found: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(TASKS)), TASKS, strict=True):
        row = found["tasks"][task]
        names = [name for name in row if name != "all"][::-1]
        for place, name in enumerate(names):
            gains = [value - other for value, other in zip(row[name]["values"], row["all"]["values"], strict=True)]
            _difference(axes, place, row[name], gains)
        axes.axvline(0, color=GREY, linewidth=0.8)
        axes.set_yticks(range(len(names)), names)
        better = "left" if "error" in TASKS[task] else "right"
        axes.set_title(f"{TASKS[task]} (all: {row['all']['mean']:.3f})", loc="left", fontsize=10)
        axes.set_xlabel(f"{better} is better", fontsize=9)
        axes.locator_params(axis="x", nbins=5)
    _below(figure, figure.axes[0], "a seed", f"difference from all features: {MEAN}")
    return _plain(figure)


def _difference(axes: Axes, place: int, each: Mapping[str, Any], gains: Sequence[float]) -> None:
    """Draw seeds as dots and their mean with its 95 % interval, see `_below`."""
    axes.plot(gains, [place] * len(gains), "o", color=SKY, markersize=5, alpha=0.6)
    axes.errorbar(each["difference"], place, xerr=each["interval"], fmt="D", color=BLUE, capsize=3)


def _below(figure: Figure, axes: Axes, dot: str, diamond: str) -> None:
    """Draw a legend of the two marks below the picture."""
    dots, *_ = axes.lines
    figure.legend(
        [dots, axes.containers[0]], [dot, diamond], loc="outside lower center", ncols=2, frameon=False, fontsize=9
    )


def variants(*results: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(11, 2.6 * len(results)), layout="constrained")
    for row, found in zip(figure.subplots(len(results), 3, squeeze=False), results, strict=True):
        names = list(found["variants"])[::-1]
        each = [found["variants"][name] for name in names]
        for place, variant in enumerate(each):
            row[0].plot(variant["scores"], [place] * len(variant["scores"]), "o", color=SKY, markersize=5, alpha=0.6)
            row[0].errorbar(variant["score_mean"], place, xerr=variant["score_deviation"], fmt="D", color=BLUE)
        row[0].set_yticks(range(len(names)), names)
        row[0].set_ylim(-0.6, len(names) - 0.4)
        row[0].set_title(f"{VARIANT_TASKS[found['task']]}: {SCORES[found['kind']]}", loc="left", fontsize=10)
        _bars(row[1], [variant["step_ms"] for variant in each], "milliseconds of a step")
        _bars(row[2], [variant["peak_mib"] for variant in each], "peak memory, MiB")
    _below(figure, figure.axes[0], "a seed", "mean and standard deviation; right is better")
    return _plain(figure)


def _bars(axes: Axes, values: Sequence[float], title: str) -> None:
    bars = axes.barh(range(len(values)), values, color=BLUE, height=0.6)
    axes.bar_label(bars, fmt="%.3g" if max(values) < 100 else "%.0f", padding=3, fontsize=8)
    axes.set_yticks(range(len(values)), [""] * len(values))
    axes.margins(x=0.2)
    axes.set_ylim(-0.6, len(values) - 0.4)
    axes.set_title(title, loc="left", fontsize=10)


def _plain(figure: Figure) -> Figure:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    return figure


WAYS = {
    "none": (GREY, "s", "simulator as it is"), "linear": (ORANGE, "v", "linear regression"),
    "ten parameters": (PURPLE, "^", "ten parameters fitted"), "fitted": (BLUE, "o", "all costs fitted"),
    "true costs": (GREEN, "D", "costs of the world itself"),
}  # fmt: skip


def worlds(found: Mapping[str, Any]) -> Figure:
    """Draw the runtime of the best plan so far over the number of measurements: mean, and the middle half of cases."""
    rows = [row for row in found["rows"] if row["budget"] == 50]
    names = list(found["over_none"])
    figure = Figure(figsize=(4 * len(names) + 1, 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for way, (colour, shape, label) in WAYS.items():
            curves = [_course(row, rows) for row in rows if row["world"] == name and row["way"] == way]
            if not curves:
                continue
            middle = [statistics.geometric_mean(column) for column in zip(*curves, strict=True)]
            low, high = np.quantile(curves, (0.25, 0.75), axis=0)
            axes.fill_between(COUNTED, low, high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(COUNTED, middle, color=colour, marker=shape, markevery=10, markersize=4, label=label)
        axes.set_title(WORLDS[name], loc="left", fontsize=10)
        axes.set(xlabel="measurements", ylabel="runtime / that without a cost model" if name == names[0] else "")
    labelled = {
        label: mark for axes in figure.axes for mark, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(labelled.values(), labelled.keys(), frameon=False, fontsize=8, loc="outside right upper")
    return _plain(figure)


def host_work(found: Mapping[str, Any]) -> Figure:
    """Draw the milliseconds of each thread of the host in a step, part after part."""
    cases = found["cases"]
    parts = dict(zip(HOST_PARTS, (BLUE, *COLOURS), strict=False))
    figure = Figure(figsize=(9, 1.1 + 0.9 * len(cases)), layout="constrained")
    axes = figure.subplots()
    lanes = [
        (f"{name}, {lane}", [(part, ms) for part, ms in cases[name][kind].items() if part in own])
        for name in cases
        for kind, lane, own in (
            ("eager", "before: training thread", parts),
            ("padded", "padded: training thread", ("draw", "fill", "finish")),
            ("padded", "padded: reading thread", ("count rows", "read")),
        )
    ]
    for place, (_, spans) in enumerate(lanes):
        start = 0.0
        for part, ms in spans:
            axes.barh(place, ms, left=start, color=parts[part], height=0.6)
            start += ms
        axes.text(start, place, f" {start:.1f}", va="center", fontsize=8)
    for part, colour in parts.items():
        axes.barh(0, 0, color=colour, label=part)
    axes.set_yticks(range(len(lanes)), [label for label, _ in lanes])
    axes.invert_yaxis()
    axes.set(xlabel="milliseconds of the host's work in a step, without launches")
    figure.legend(frameon=False, fontsize=8, loc="outside upper center", ncols=len(parts))
    return _plain(figure)


COUNTED = range(8, 51)  # measurements that are drawn


def _course(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the runtime of the best plan after each number of measurements, over the end of the same case by none."""
    same = ("world", "program", "seed")
    end = next(each["ms"] for each in rows if each["way"] == "none" and all(each[key] == row[key] for key in same))
    best = [next(ms for number, ms in reversed(row["curve"]) if number <= count or number == row["curve"][0][0])
            for count in COUNTED]  # fmt: skip
    return [ms / end for ms in best]


PICTURES: dict[str, tuple[Callable[..., Figure], tuple[str, ...]]] = {
    "docs/ablation.png": (ablation, ("tpugraphs_ablation",)),
    "docs/host_work.png": (host_work, ("host_work",)),
    "docs/hlo_features.png": (features, ("hlo_features",)),
    "docs/worlds.png": (worlds, ("worlds",)),
    "docs/variants.png": (variants, tuple(f"variants_{task}" for task in VARIANT_TASKS)),
    "experiments/bench/placement.png": (placement, ("placement",)),
    "experiments/bench/simulator.png": (simulator, ("simulator",)),
    f"{FOLDER}/gst/against_full.png": (against_full, ("against_full",)),
    f"{FOLDER}/tpugraphs/alexnet.png": (alexnet, ("tpugraphs_alexnet",)),
    **{f"{FOLDER}/{name}/{name}.png": (partial(system, name), (name,)) for name in COLUMNS},
}


def fingerprint(sources: Sequence[str]) -> str:
    """Return a fingerprint of the content of results, independent of the layout of their files."""
    told = json.dumps([result(name) for name in sources], sort_keys=True)
    return f"{', '.join(sources)} {hashlib.sha256(told.encode()).hexdigest()[:16]}"


def draw(name: str, path: Path) -> None:
    """Write one of `PICTURES` as a PNG of 256 colours, a third of the size of one of all."""
    of, sources = PICTURES[name]
    drawn = BytesIO()
    of(*map(result, sources)).savefig(drawn, dpi=110)
    told = PngInfo()
    told.add_text("Source", fingerprint(sources))
    Image.open(drawn).convert("RGB").quantize().save(path, optimize=True, pnginfo=told)
