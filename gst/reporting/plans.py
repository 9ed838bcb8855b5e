"""The plans beside each other, and how each method came by its own."""

from __future__ import annotations

import math
from typing import Any

from gst.reporting import charts
from gst.reporting.charts import brief, escape, number, span, whole
from gst.reporting.headline import ratio_of
from gst.reporting.page import empty, figure, pair, rows, section
from gst.reporting.record import (
    PYTORCH,
    STEPS,
    Record,
    kind_of,
    mapping,
    plans_of,
    pytorch_of,
    runtime_of,
    time_of,
    winner_of,
)
from gst.reporting.staircases import Curve, staircases

AFTER = (1, 10, 100, 1_000)
"""Numbers of plans asked at which the table beneath the curves says the best so far."""

TITLE = {
    "measured": "Plans, measured again at the end",
    "simulated": "Plans, simulated",
    "published": "Plans, by the published latency",
}

TOLD = {
    "measured": "Runs of all plans took turns, so that a busy moment of the machine hits them alike. Intervals are "
    "95 % bootstrap intervals of the median. The ratio is plain PyTorch's time over the plan's: above 1 the plan is "
    "faster, below 1 it is slower. The fastest were "
    "measured once more, so that luck did not choose the times of the headline. Simulated is what the simulator "
    "expects from profiled costs. Plans that lose are listed too.",
    "simulated": "All times are simulated: each operation takes what the costs say, and so does each value that "
    "changes device. Above the bound is by how much a plan exceeds what no plan can beat by these costs. Plans that "
    "lose are listed too.",
    "published": "All times are the latency that the publishers of the cost graph define, computed from their costs. "
    "Above the bound is by how much a plan exceeds what no plan can beat by these costs. Plans that lose are listed "
    "too.",
}


def plans(record: Record) -> str:
    """The table of all plans, their times as a chart, and a curve of each method's best so far."""
    runtime, known = runtime_of(record), plans_of(record)
    title = TITLE[runtime]
    curve = _curves(record)
    if not known:
        judged = "measured again" if runtime == "measured" else "judged"
        return section("plans", title, empty(f"No plan was {judged} at the end."), curve)
    names = sorted(known, key=lambda name: math.inf if math.isnan(time := time_of(known[name])) else time)
    best = names.index(winner_of(record)) if winner_of(record) in names else None
    heads, line = (_measured_heads, _measured_line) if runtime == "measured" else (_computed_heads, _computed_line)
    table = rows("All plans", heads(record), (line(record, name) for name in names), best)
    chart = _times(record, [name for name in names if not math.isnan(time_of(known[name]))])
    return section("plans", title, f"<p>{TOLD[runtime]}</p>", table, _failures(known), pair(chart, curve))


def _measured_heads(record: Record) -> list[str]:
    words = ("plan", "median ms", "95 % interval", "once more, ms", "PyTorch / plan", "simulated ms", "seconds to plan")
    return [*words, "measured for it", "runs", "kind"]


def _measured_line(record: Record, name: str) -> list[Any]:
    plan = plans_of(record)[name]
    return [
        name, brief(time_of(plan), "failed"), span(plan.get("low_ms"), plan.get("high_ms")),
        brief(plan.get("again_median_ms")), ratio_of(record, plan), brief(plan.get("simulated_ms")),
        brief(plan.get("seconds_to_plan")),
        whole(plan.get("measurements")), whole(plan.get("runs")), _kind(name),
    ]  # fmt: skip


def _computed_heads(record: Record) -> list[str]:
    by = "published latency ms" if runtime_of(record) == "published" else "simulated ms"
    return ["plan", by, "above the bound", "seconds to plan", "plans asked", "kind"]


def _computed_line(record: Record, name: str) -> list[Any]:
    plan, bound = plans_of(record)[name], number(record.get("lower_bound"))
    above = 100 * (time_of(plan) / bound - 1) if bound > 0 else math.nan
    return [
        name, brief(time_of(plan), "does not fit"), f"{brief(above)} %" if above == above else charts.DASH,
        brief(plan.get("seconds_to_plan")), whole(plan.get("evaluations")), _kind(name),
    ]  # fmt: skip


def _kind(name: str) -> str:
    return STEPS.get(name) or ("baseline" if kind_of(name) == "baseline" else "search")


def _failures(known: dict[str, Record]) -> str:
    told = [f"{name}: {plan['reason']}" for name, plan in known.items() if plan.get("reason")]
    if not told:
        return ""
    return f'<ul class="reasons">{"".join(f"<li>{escape(words)}</li>" for words in told)}</ul>'


def _times(record: Record, names: list[str]) -> str:
    if not names:
        return ""
    known, measured = plans_of(record), runtime_of(record) == "measured"
    bars = [
        (
            name,
            number(known[name].get("low_ms")),
            time_of(known[name]),
            number(known[name].get("high_ms")),
            "best" if name == winner_of(record) else "pytorch" if name == PYTORCH else "",
        )
        for name in names
    ]
    reference = time_of(pytorch_of(record)) if measured else number(record.get("lower_bound"))
    what = "Median time and interval" if measured else "Time, not measured,"
    svg = charts.intervals(bars, reference, f"{what} of {len(bars)} plans")
    caption = "Median and 95 % interval; dashed: plain PyTorch." if measured else "Dashed: the lower bound."
    return figure(svg, f"{caption} The axis need not start at zero.", heading="Times")


def _curves(record: Record) -> str:
    curves = {str(name): kept for name, points in mapping(record.get("curves")).items() if (kept := _points(points))}
    if not curves:
        return f"<div><h3>How the methods got there</h3>{empty('No account was kept of what the methods tried.')}</div>"
    known, most = plans_of(record), max(points[-1][0] for points in curves.values())
    drawn = [Curve(name, points, _asked(known.get(name, {}), points, most)) for name, points in curves.items()]
    least, name = min(_asked_baselines(record), default=(math.nan, ""))
    by = "published latency" if runtime_of(record) == "published" else "simulated time"
    label = f"Best {by} so far of {len(drawn)} methods over the plans they asked about"
    svg = staircases(drawn, least, name, label)
    heads = ["method", *(f"after {count:,}" for count in AFTER), "at the end", "found after"]
    table = rows("Best so far", heads, (_curve_line(name, points) for name, points in curves.items()))
    caption = (
        f"The best {by} so far over the number of plans asked about (a logarithmic axis). Dashed: the best "
        "baseline. Lines along the upper edge are above it. These times are not measured."
    )
    return figure(svg, caption, table, heading="How the methods got there")


def _asked_baselines(record: Record) -> list[tuple[float, str]]:
    """Time of each baseline by what the methods asked, and its name."""
    times = [
        (number(plan.get("simulated_ms", plan.get("latency"))), name)
        for name, plan in plans_of(record).items()
        if kind_of(name) == "baseline" and name not in STEPS
    ]
    return [each for each in times if not math.isnan(each[0])]


def _points(value: Any) -> list[tuple[float, float]]:
    """The pairs (plans asked, ms) that are numbers, in order."""
    listed = value if isinstance(value, list | tuple) else []
    pairs = [entry for entry in listed if isinstance(entry, list | tuple) and len(entry) == 2]
    points = [(number(asked), number(best)) for asked, best in pairs]
    return sorted((asked, best) for asked, best in points if asked >= 1 and not math.isnan(best))


def _asked(plan: Record, points: list[tuple[float, float]], most: float) -> float:
    """How many plans a method asked about: what its plan says, else as many as any method did."""
    asked = number(plan.get("evaluations"))
    return most if math.isnan(asked) else max(asked, points[-1][0])


def _curve_line(name: str, points: list[tuple[float, float]]) -> list[Any]:
    def after(count: float) -> str:
        return brief(min((best for asked, best in points if asked <= count), default=math.nan))

    least = min(best for _, best in points)
    found = next(asked for asked, best in points if best == least)
    return [name, *map(after, AFTER), brief(least), whole(found)]
