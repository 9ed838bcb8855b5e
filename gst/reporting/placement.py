"""Page of a placement (`gst place`, `gst demo`): its plans, searches, predictions, and where numbers come from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gst.reporting import charts
from gst.reporting.charts import DASH, Curve, brief, escape, number, span, whole
from gst.reporting.graph import graph
from gst.reporting.headline import (
    PYTORCH,
    again,
    device_names,
    facts,
    headline,
    is_left_out,
    kind_of,
    lead,
    plans_of,
    pytorch_of,
    ratio_of,
    runtime_of,
    step_kind,
    time_of,
    undercut,
    winner_of,
)
from gst.reporting.page import (
    Record,
    block,
    command_line,
    command_of,
    definitions,
    figure,
    kind_legend,
    listed,
    mapping,
    mappings,
    page,
    pair,
    rows,
    section,
)
from gst.reporting.timeline import timeline

AFTER = (1, 10, 100, 1_000)
"""Numbers of plans asked, at which the table under the curves shows the best so far."""

TITLE = {"measured": "Plans, measured again at the end", "simulated": "Plans, simulated"}

TOLD = {
    "measured": "Runs of all plans took turns, so that a busy moment of the machine hits them alike. Intervals are "
    "95 % bootstrap intervals of the median. The fastest were measured again, in a second set of runs, which gives "
    "the times of the headline, of the picture and of the order here: luck did not choose them. The ratio is plain "
    "PyTorch's time over the plan's, of that set where the plan has it: above 1 the plan is faster, below 1 it is "
    "slower. Simulated is what the simulator expects from profiled costs, measured how many plans the search ran. "
    "Plans that lose are listed too.",
    "simulated": "All times are simulated: each operation takes what the costs say, and so does each value that "
    "changes device. Above the bound is by how much a plan exceeds what no plan can beat by these costs. Plans that "
    "lose are listed too.",
}

HOW = {
    "measured": (
        "How it was measured",
        "Operations were profiled on each device. From these costs the simulator judged the plans of all baselines "
        "and methods; simulated times and the timeline come from it. The search then measured the most promising "
        "plans and a few uncertain ones for real, after writing down what it expected of each. At the end the plan of"
        " the search, those of the best baselines and of all methods, and plain PyTorch (in a process of its own, all "
        "threads, nothing changed) ran again in turns, and the fastest of them a second time: the headline uses this "
        "second set alone, the median of each and its 95 % bootstrap interval. Measured times are wall-clock times of "
        "one step, run for real on these devices. They hold for this program on this machine; another machine needs "
        "its own run.",
    ),
    "simulated": (
        "How it was computed",
        "No plan was run. Every time on this page comes from a simulator of the devices, which starts each operation "
        "when its device is free and its inputs have arrived; operations and transfers take what the costs say. The "
        "lower bound is what no plan can beat by the same costs. A real machine has other times, and may put the "
        "plans in another order: measure before you rely on them.",
    ),
}


def render(record: Record) -> str:
    """Return the page of a search: one HTML file that needs no network, no fonts and, but for zooming, no scripts.

    Args:
        record: the result of `gst place`, see `gst.placement.planning.placed_result` and
            `gst.placement.api.drawing.plan_drawing`. Any part may be missing; a sentence takes its place.

    Examples:
        >>> "No plan was measured" in render({"program": "rnnlm"})
        True
    """
    title, program = headline(record), str(record.get("program") or "program")
    size = f"{whole(record.get('num_nodes'))} nodes, {whole(record.get('num_edges'))} edges"
    command = command_of(record)
    eyebrow = f"{command} · <strong>{escape(program)}</strong> · {size}"
    measured = runtime_of(record) == "measured" or mappings(record.get("measurements"))
    middle = pair(predictions(record), search(record)) if measured else ""
    body = f"{plans(record)}{timeline(record)}{middle}{graph(record)}{setting(record)}"
    return page(f"{program}: {title}", title, eyebrow, lead(record) + facts(record), body, command)


def plans(record: Record) -> str:
    """Return the table of all plans, a chart of their times, the lower bound, and a curve of each method."""
    runtime, known = runtime_of(record), plans_of(record)
    title = TITLE[runtime]
    curve = _curves(record)
    if not known:
        return section("plans", title, curve)
    times = {name: time_of(again(plan)) for name, plan in known.items()}
    names = sorted(known, key=lambda name: math.inf if math.isnan(times[name]) else times[name])
    best = names.index(winner_of(record)) if winner_of(record) in names else None
    columns = _measured_columns(record) if runtime == "measured" else _computed_columns(record)
    searched = {name: "baseline" if kind_of(record, name) == "baseline" else "search" for name in names}
    kinds = {name: step_kind(name) or kind for name, kind in searched.items()}
    lines = [[name, *(value(known[name]) for value in columns.values()), kinds[name]] for name in names]
    table = rows("All plans", ["plan", *columns, "kind"], lines, best)
    chart = _times(record, [name for name in names if not math.isnan(times[name])])
    told = f"<p>{TOLD[runtime]}</p>"
    return section("plans", title, told, table, _failures(known), _bound(record), pair(chart, curve))


def _bound(record: Record) -> str:
    """Return the lower bound, the gap to it, and the memory of the plan in a paragraph."""
    certified = mapping(record.get("certificate"))
    bound, gap = number(certified.get("lower_bound")), number(certified.get("gap"))
    if math.isnan(bound):
        return ""
    others = "no plan without fusion" if certified.get("is_fused") else "no plan"
    above = "" if math.isnan(gap) else f"; by the same costs the plan is at most {brief(100 * gap)} % above it"
    sizes = mapping(certified.get("peak_bytes")).items()
    peaks = ", ".join(f"{name} {brief(number(size) / 2**20)} MiB" for name, size in sizes)
    by = "proved by the checker for every run" if certified.get("memory_by") == "checker" else "simulated"
    words = f"By these costs {others} takes less than {brief(bound)} ms{above}. {undercut(record)}"
    return f"<p>{escape(words, 1000)} Most memory, {by}: {escape(peaks, 1000)}.</p>"


def _measured_columns(record: Record) -> dict[str, Callable[[Record], str]]:
    """Return the heads of the table, and functions from a plan to its cell."""
    return {
        "median ms": lambda plan: brief(time_of(plan), DASH if is_left_out(plan) else "failed"),
        "95 % interval": lambda plan: span(plan.get("low_ms"), plan.get("high_ms")),
        "again, ms": lambda plan: brief(plan.get("again_median_ms")),
        "PyTorch / plan": lambda plan: ratio_of(record, plan),
        "simulated ms": lambda plan: brief(plan.get("simulated_ms")),
        "planning, s": lambda plan: brief(plan.get("seconds_to_plan")),
        "measured": lambda plan: whole(plan.get("measurements")),
        "runs": lambda plan: whole(plan.get("runs")),
    }


def _computed_columns(record: Record) -> dict[str, Callable[[Record], str]]:
    bound = number(record.get("lower_bound"))

    def above(plan: Record) -> str:
        percent = 100 * (time_of(plan) / bound - 1) if bound > 0 else math.nan
        return DASH if math.isnan(percent) else f"{brief(percent)} %"

    return {
        "simulated ms": lambda plan: brief(time_of(plan), "does not fit"),
        "above the bound": above,
        "planning, s": lambda plan: brief(plan.get("seconds_to_plan")),
        "plans asked": lambda plan: whole(plan.get("evaluations")),
    }


def _failures(known: dict[str, Record]) -> str:
    told = [f"{name}: {plan['reason']}" for name, plan in known.items() if plan.get("reason")]
    if not told:
        return ""
    return f'<ul class="reasons">{"".join(f"<li>{escape(words)}</li>" for words in told)}</ul>'


def _times(record: Record, names: list[str]) -> str:
    if not names:
        return ""
    known, measured = {name: again(plan) for name, plan in plans_of(record).items()}, runtime_of(record) == "measured"
    bars = []
    for name in names:
        low, middle, high = number(known[name].get("low_ms")), time_of(known[name]), number(known[name].get("high_ms"))
        kind = "best" if name == winner_of(record) else "pytorch" if name == PYTORCH else ""
        bars.append((name, low, middle, high, kind))
    reference = time_of(again(pytorch_of(record))) if measured else number(record.get("lower_bound"))
    what = "Median time and interval" if measured else "Time, not measured,"
    svg = charts.intervals(bars, reference, f"{what} of {len(bars)} plans")
    caption = (
        "Median and 95 % interval, of the second set of runs where a plan has one; dashed: plain PyTorch."
        if measured
        else "Dashed: the lower bound."
    )
    return figure(svg, f"{caption} The axis need not start at zero.", heading="Times")


def _curves(record: Record) -> str:
    curves = {str(name): kept for name, points in mapping(record.get("curves")).items() if (kept := _points(points))}
    if not curves:
        return ""
    known, most = plans_of(record), max(points[-1][0] for points in curves.values())
    drawn = [Curve(name, points, _asked(known.get(name, {}), points, most)) for name, points in curves.items()]
    least, name = min(_asked_baselines(record), default=(math.nan, ""))
    label = f"Best simulated time so far of {len(drawn)} methods over the plans they asked about"
    svg = charts.staircases(drawn, least, name, label)
    heads = ["method", *(f"after {count:,}" for count in AFTER), "at the end", "found after"]
    table = rows("Best so far", heads, (_curve_line(name, points) for name, points in curves.items()))
    caption = (
        "The best simulated time so far over the number of plans asked about (a logarithmic axis). Dashed: the best "
        "baseline. Lines along the upper edge are above it. These times are not measured."
    )
    return figure(svg, caption, table, heading="How the methods got there")


def _asked_baselines(record: Record) -> list[tuple[float, str]]:
    """Return the simulated time of each baseline, and its name."""
    times = [
        (number(plan.get("simulated_ms", plan.get("latency"))), name)
        for name, plan in plans_of(record).items()
        if kind_of(record, name) == "baseline" and not step_kind(name)
    ]
    return [each for each in times if not math.isnan(each[0])]


def _points(value: Any) -> list[tuple[float, float]]:
    """Return the pairs (plans asked, ms) that are numbers, in order."""
    points = [(number(entry[0]), number(entry[1])) for entry in listed(value) if len(listed(entry)) == 2]
    return sorted((asked, best) for asked, best in points if asked >= 1 and not math.isnan(best))


def _asked(plan: Record, points: list[tuple[float, float]], most: float) -> float:
    """Return the number of plans that a method asked about; if it is unknown, the most of any method."""
    asked = number(plan.get("evaluations"))
    return most if math.isnan(asked) else max(asked, points[-1][0])


def _curve_line(name: str, points: list[tuple[float, float]]) -> list[Any]:
    def after(count: float) -> str:
        return brief(min((best for asked, best in points if asked <= count), default=math.nan))

    least = min(best for _, best in points)
    found = next(asked for asked, best in points if best == least)
    return [name, *map(after, AFTER), brief(least), whole(found)]


# Predictions and the search -------------------------------------------------------------------------------------------


def predictions(record: Record) -> str:
    """Return measured against predicted times of all plans that have both."""
    points = []
    for entry in mappings(record.get("measurements")):
        said, found = number(entry.get("predicted_ms")), number(entry.get("median_ms"))
        if not (math.isnan(said) or math.isnan(found)) and entry.get("outcome", "ok") == "ok":
            points.append((said, found, str(entry.get("origin")), str(entry.get("label"))))
    if not points:
        return ""
    tau = number(mapping(record.get("cost_model")).get("tau"))
    agree = (
        "was not computed" if math.isnan(tau) else f"is <b>{tau:.2f}</b> (1: same order, 0: none, \u22121: reversed)"
    )
    shown = [
        (a, b, kind_of(record, origin), f"{label} ({origin}): predicted {brief(a)} ms, measured {brief(b)} ms")
        for a, b, origin, label in points
    ]
    svg = charts.scatter(
        shown, "predicted ms", "measured ms", f"Measured against predicted time of {len(points)} plans"
    )
    lines = [(label, origin, brief(said), brief(found)) for said, found, origin, label in points]
    table = rows("Predicted and measured", ("plan", "origin", "predicted ms", "measured ms"), lines, words=2)
    told = (
        f"<p>The simulator, corrected by what was measured until then, named a time for {len(points)} plans before "
        f"they ran. Kendall's tau between what it said and what was measured {agree}.</p>"
    )
    caption = "On the dashed diagonal a prediction is exact; above it the plan was slower than predicted."
    title = "Predicted before, measured after"
    return section("predictions", title, told, figure(svg, caption, table, kind_legend({each[2] for each in shown})))


def search(record: Record) -> str:
    """Return every measurement of the search in order, and the best so far."""
    entries = mappings(record.get("measurements"))
    if not entries:
        return ""
    steps, lines, failures = [], [], 0
    for count, entry in enumerate(entries, 1):
        ok = entry.get("outcome", "ok") == "ok"
        time = number(entry.get("median_ms")) if ok else math.nan
        failures += math.isnan(time)
        found = f"{brief(time)} ms" if time == time else "failed"
        origin = str(entry.get("origin"))
        told = f"{count}. {entry.get('label')} ({origin}, round {entry.get('round')}): {found}"
        steps.append((time, kind_of(record, origin), told))
        interval = span(entry.get("low_ms"), entry.get("high_ms")) if ok else DASH
        lines.append((count, entry.get("label"), origin, entry.get("round"), brief(time, "failed"), interval))
    base = time_of(pytorch_of(record))
    svg = charts.search_curve(steps, base, f"Best time so far over {len(steps)} measured plans")
    best = min((time for time, _, _ in steps if time == time), default=math.nan)
    told = (
        f"<p>{len(steps)} plans ran for real, {failures} of them failed; the fastest single measurement was "
        f"{brief(best)} ms. Lucky measurements look fast, so section 1 measures the winners again.</p>"
    )
    caption = "Each mark is one plan, in the order measured; the line is the best so far."
    heads = ("#", "plan", "origin", "round", "median ms", "interval")
    table = rows("All measurements", heads, lines, words=3)
    shown = figure(svg, caption, table, kind_legend({step[1] for step in steps}, failures > 0))
    return section("search", "The search on real devices", told, shown)


# Where the numbers come from ------------------------------------------------------------------------------------------


def setting(record: Record) -> str:
    """Return the machine, the devices, the command and the method of this runtime."""
    measured = runtime_of(record) == "measured"
    machine = {**mapping(record.get("machine")), "seconds in all": brief(record.get("seconds"))}
    title, words = HOW[runtime_of(record)]
    where = "Machine" if measured else "Machine that computed this"
    return section(
        "setting",
        "Machine, devices, command",
        pair(
            block(where, definitions(machine.items())),
            block("Devices" if measured else "Devices of the costs", _devices(record)),
        ),
        command_line(record),
        f"<h3>{title}</h3><p>{words}</p>",
    )


def _devices(record: Record) -> str:
    names = device_names(record)
    if not names:
        return ""
    told = [mapping(entry).get("description", "") for entry in record["devices"]]
    return rows("Devices", ("device", "what it is"), zip(names.values(), told, strict=True), words=2)
