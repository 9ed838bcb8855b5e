"""A bar for each program: how much faster it is as placed than the best of eager and compiled; below it S(t)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

BLUE, RED, GREY = "#0072B2", "#D55E00", "#666666"  # Okabe and Ito


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the programs of a result of `experiments.bench.strangers.bench` that ran, the fastest gain on top.

    Examples:
        >>> import tempfile
        >>> row = {"over_best": [1.2, 1.1, 1.3], "over_eager": [2.0, 1.9, 2.1], "winner": "frozen"}
        >>> path = Path(tempfile.mkdtemp()) / "bars.png"
        >>> draw({"programs": {"small": row}}, path)
        >>> path.stat().st_size > 1000
        True
    """
    ran = {name: row for name, row in result["programs"].items() if "failed" not in row}
    names = sorted(ran, key=lambda name: ran[name]["over_best"][0])
    scores = result.get("speedup_scores", {})
    figure = Figure(figsize=(8, (1.2 if not scores else 4.2) + 0.3 * len(names)), layout="constrained")
    parts = figure.subplots(2 if scores else 1, height_ratios=[0.3 * len(names) + 1, 3][: 2 if scores else 1])
    axes = parts[0] if scores else parts
    if scores:
        _draw_scores(parts[1], scores)
    for place, name in enumerate(names):
        ratio, low, high = ran[name]["over_best"]
        reach = [[max(ratio - low, 0.0)], [max(high - ratio, 0.0)]]
        axes.barh(place, ratio, xerr=reach, color=RED if high < 1 else BLUE, height=0.6, ecolor=GREY, capsize=3)
        axes.plot(ran[name]["over_eager"][0], place, "D", color=GREY, markersize=4)
        axes.text(0.02, place, ran[name]["winner"], color="white", va="center", fontsize=8)
    axes.axvline(1.0, color=GREY, linewidth=0.8)
    marks = {
        "not slower beyond noise": Patch(color=BLUE),
        "slower beyond noise": Patch(color=RED),
        "over eager": Line2D([], [], color=GREY, marker="D", markersize=4, linestyle=""),
        "equal": Line2D([], [], color=GREY, linewidth=0.8),
    }
    axes.legend(
        marks.values(),
        marks.keys(),
        fontsize=7,
        loc="upper center",
        bbox_to_anchor=(0.5, 1 + 0.8 / len(names)),
        ncols=3,
    )
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="times as fast as the best of eager and compiled (bar), as eager (diamond)", xlim=(0, None))
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=120)


def _draw_scores(axes: Any, scores: Mapping[str, Mapping[str, float]]) -> None:
    """GraphNet's speedup score over the tolerance, a line for each way."""
    for label, values in scores.items():
        wide = 2.5 if label == "placed" else 1.0
        axes.plot([int(t) for t in values], list(values.values()), "o-", markersize=3, linewidth=wide, label=label)
    axes.axhline(1.0, color=GREY, linewidth=0.8)
    axes.set(xlabel="tolerance t (outputs agree within 10^t)", ylabel="speedup score S(t)")
    axes.legend(fontsize=7, ncols=2, title="way:threads", title_fontsize=7)
