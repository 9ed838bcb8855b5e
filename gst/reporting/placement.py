"""Page of a placement (`gst place`, `gst demo`): its plans, searches, predictions, and where numbers come from."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np

from gst.reporting import charts, page
from gst.reporting.charts import DASH, brief, escape, number, span, whole
from gst.reporting.headline import (
    MOST_PROFILE_LOAD,
    PYTORCH,
    again,
    baseline_name,
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
from gst.reporting.page import Record, mapping, mappings
from gst.reporting.timeline import timeline

KINDS = {"baseline": "baseline", "method": "search method", "mutation": "mutation"}
TITLE = {"measured": "Plans, measured again at the end", "simulated": "Plans, simulated"}

TOLD = {
    "measured": "Operations were profiled on each device; by these costs the simulator judged plans, the search ran "
    "some. At the end all ran in turns, plain PyTorch in a process of its own, and the fastest in a second set, "
    "which gives the times of the headline; its plans come first. Intervals are 95 % bootstrap intervals of the median."
    " Simulated is what the simulator expects, measured how many plans ran.",
    "simulated": "No plan was run. A device of the simulator starts each operation when it is free and the inputs have "
    "arrived. Above the bound is by how much a plan exceeds what no plan can beat by these costs.",
}


def render(record: Record) -> str:
    """Return the page of a search: one HTML file that needs no network, fonts or scripts.

    Args:
        record: the result of `gst place`, see `gst.placement.planning.placed_result` and
            `gst.placement.api.drawing.plan_drawing`. Any part may be missing; a sentence takes its place.

    Examples:
        >>> "No plan was measured" in render({"program": "rnnlm"})
        True
    """
    title, program = headline(record), str(record.get("program") or "program")
    size = f"{whole(record.get('num_nodes'))} nodes, {whole(record.get('num_edges'))} edges"
    command = page.command_of(record)
    eyebrow = f"{command} · <strong>{escape(program)}</strong> · {size}"
    measured = runtime_of(record) == "measured" or mappings(record.get("measurements"))
    middle = predictions(record) if measured else ""
    body = f"{plans(record)}{timeline(record)}{middle}{setting(record)}"
    head = lead(record) + page.next_steps(_next(record)) + facts(record)
    return page.page(f"{program}: {title}", title, eyebrow, head, body, command)


def _next(record: Record) -> dict[str, str]:
    command = str(record.get("command") or "").replace(" --resume", "")
    simulated = _without(command, "machine", "runtime")
    if simulated != command:
        return {"measure on this machine": f"{_without(simulated, 'out')} --out runs/measured"}
    if number(record.get("profile_load")) > MOST_PROFILE_LOAD:
        return {"place it again when the cores are free": f"{_without(command, 'out')} --out runs/again"}
    longer = f"{_without(command, 'seconds')} --resume --seconds 300"
    return {} if not command or "--workers" in command else {"search for longer": longer}


def _without(command: str, *options: str) -> str:
    """Return a command without options and their values, which may be quoted."""
    return re.sub(rf" --({'|'.join(options)})[ =]('[^']*'|\S)+", "", command)


def plans(record: Record) -> str:
    """Return the table of all plans, a chart of their times, and the lower bound."""
    runtime, known = runtime_of(record), plans_of(record)
    title = TITLE[runtime]
    if not known:
        return ""
    times = {name: time_of(again(plan)) for name, plan in known.items()}
    twice = {name: not math.isnan(number(plan.get("again_median_ms"))) for name, plan in known.items()}
    names = sorted(known, key=lambda name: (not twice[name], math.inf if math.isnan(times[name]) else times[name]))
    best = names.index(winner_of(record)) if winner_of(record) in names else None
    columns = _measured_columns(record) if runtime == "measured" else _computed_columns(record)
    searched = {name: "baseline" if kind_of(record, name) == "baseline" else "search" for name in names}
    kinds = {name: step_kind(name) or kind for name, kind in searched.items()}
    lines = [[name, kinds[name], *(value(known[name]) for value in columns.values())] for name in names]
    table = page.rows("All plans", ["plan", "kind", *columns], lines, best, words=2)
    words = mapping(record.get("words"))
    told = page.definitions((name, words[name]) for name in names if name in words)
    methods, lead_in = page.details(told, "Methods and their sources"), f"<p>{TOLD[runtime]}</p>"
    chart = _times(record, [name for name in names if not math.isnan(times[name])])
    return page.section("plans", title, lead_in, table, methods, _failures(known), _bound(record), chart)


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
    words = f"By these costs {others} takes less than {brief(bound)} ms{above}. {undercut(record)}"
    return f"<p>{escape(words, 1000)} Most memory, simulated: {escape(peaks, 1000)}.</p>"


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
        f"Median and 95 % interval, of the second set of runs where a plan has one; dashed: {baseline_name(record)}."
        if measured
        else "Dashed: the lower bound."
    )
    return page.figure(svg, f"{caption} The axis need not start at zero.", heading="Times")


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
    marks = [
        (kind_of(record, origin), f"{label} ({origin}): predicted {brief(a)} ms, measured {brief(b)} ms")
        for a, b, origin, label in points
    ]
    predicted, measured = (np.array([each[place] for each in points]) for place in (0, 1))
    name = f"Measured against predicted time of {len(points)} plans"
    svg = charts.compared(predicted, measured, "predicted ms", "measured ms", name, marks)
    lines = [(label, origin, brief(said), brief(found)) for said, found, origin, label in points]
    table = page.rows("Predicted and measured", ("plan", "origin", "predicted ms", "measured ms"), lines, words=2)
    told = (
        f"<p>The simulator, corrected by what was measured until then, named a time for {len(points)} plans before "
        f"they ran. Kendall's tau between what it said and what was measured {agree}.</p>"
    )
    caption = "On the dashed diagonal a prediction is exact; above it the plan was slower than predicted."
    title = "Predicted before, measured after"
    shapes = page.legend(("", charts.mark(kind, 0, 0), words) for kind, words in KINDS.items() if kind in dict(marks))
    return page.section("predictions", title, told, page.figure(svg, caption, table, shapes))


# Where the numbers come from ------------------------------------------------------------------------------------------


def setting(record: Record) -> str:
    """Return the machine, the devices and the command."""
    measured = runtime_of(record) == "measured"
    machine = {**mapping(record.get("machine")), "seconds in all": brief(record.get("seconds"))}
    where = "Machine" if measured else "Machine that computed this"
    return page.section(
        "setting",
        "Machine, devices, command",
        page.pair(
            page.block(where, page.definitions(machine.items())),
            page.block("Devices" if measured else "Devices of the costs", _devices(record)),
        ),
        page.command_line(record),
    )


def _devices(record: Record) -> str:
    names = device_names(record)
    if not names:
        return ""
    told = [mapping(entry).get("description", "") for entry in record["devices"]]
    return page.rows("Devices", ("device", "what it is"), zip(names.values(), told, strict=True), words=2)
