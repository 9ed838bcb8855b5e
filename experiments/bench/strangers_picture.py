"""A bar for each program: how much faster it is as placed than the best of eager and compiled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

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
    figure = Figure(figsize=(8, 1.2 + 0.3 * len(names)), layout="constrained")
    axes = figure.subplots()
    for place, name in enumerate(names):
        ratio, low, high = ran[name]["over_best"]
        reach = [[max(ratio - low, 0.0)], [max(high - ratio, 0.0)]]
        axes.barh(place, ratio, xerr=reach, color=RED if high < 1 else BLUE, height=0.6, ecolor=GREY, capsize=3)
        axes.plot(ran[name]["over_eager"][0], place, "D", color=GREY, markersize=4)
        axes.text(0.02, place, ran[name]["winner"], color="white", va="center", fontsize=8)
    axes.axvline(1.0, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="times as fast as the best of eager and compiled (bar), as eager (diamond)", xlim=(0, None))
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=120)
