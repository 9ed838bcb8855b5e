"""Result of a search in words: a headline, a comparison of the best plan with the best baseline, and a few numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from gst.reporting.charts import DASH, brief, escape, number, span, whole
from gst.reporting.page import Record, listed, mapping, tiles

LOOP = "loop"  # name of the plan that a search by measurements found
PYTORCH, COMPILED, ORDINARY = "pytorch", "compiled", "ordinary loop"
STEPS = {
    PYTORCH: "as written", ORDINARY: "as a loop", COMPILED: "compiled", "frozen": "frozen",
    "ahead of time": "compiled ahead of time", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO",
    "one graph": "recorded as one graph",
}  # fmt: skip
"""Kinds of steps that run without a plan, by the beginning of their name."""
RUNTIMES = ("measured", "simulated")


def step_kind(name: str) -> str:
    """Return one of the kinds of `STEPS`, empty for a plan.

    Examples:
        >>> step_kind("frozen, 1 thread"), step_kind("heft")
        ('frozen', '')
    """
    return STEPS.get(name.partition(", ")[0], "")


def plans_of(record: Record) -> dict[str, Record]:
    """Return the plans by name, in the order of the record."""
    return {str(name): mapping(plan) for name, plan in mapping(record.get("plans")).items()}


def runtime_of(record: Record) -> str:
    """Return the runtime that plans were compared by at the end, one of `RUNTIMES`; guessed if the record lacks it."""
    if record.get("runtime") in RUNTIMES:
        return str(record["runtime"])
    return "simulated" if any("latency" in plan for plan in plans_of(record).values()) else "measured"


def time_of(plan: Record) -> float:
    """Return the milliseconds of one step, measured or simulated; NaN if the plan failed or has no time."""
    failed = plan.get("feasible") is False
    return math.nan if failed else number(plan.get("median_ms", plan.get("latency")))


def is_left_out(plan: Record) -> bool:
    """True if the plan was not measured on purpose; its reason begins with "left out"."""
    return str(plan.get("reason") or "").startswith("left out")


def best_of(record: Record) -> Record:
    """Return the fastest plan."""
    return plans_of(record).get(str(record.get("best")), {})


def again(plan: Record) -> Record:
    """Return a plan with the times of its second set of runs, if it has one."""
    times = {key: plan.get(f"again_{key}") for key in ("median_ms", "low_ms", "high_ms")}
    return plan if math.isnan(number(times["median_ms"])) else {**plan, **times}


def pytorch_of(record: Record) -> Record:
    """Return the measurement of plain PyTorch, of a training step the faster of the step as written and its loop."""
    written = plans_of(record).get(PYTORCH) or {"median_ms": record.get("pytorch_ms")}
    loop = plans_of(record).get(ORDINARY, {})
    return loop if time_of(again(loop)) < time_of(again(written)) else written


def name_of(record: Record, name: str) -> str:
    """Return the name in sentences of a plan, or of a step without one.

    Examples:
        >>> name_of({}, "pytorch"), name_of({"plans": {"ordinary loop": {}}}, "pytorch")
        ('plain PyTorch', 'the step as written')
    """
    written = "the step as written" if ORDINARY in plans_of(record) else "plain PyTorch"
    return {PYTORCH: written, ORDINARY: "the ordinary loop", COMPILED: "torch.compile"}.get(name, name)


def baseline_name(record: Record) -> str:
    """Return the name in sentences of `pytorch_of`."""
    is_loop = pytorch_of(record) is plans_of(record).get(ORDINARY)
    return name_of(record, ORDINARY if is_loop else PYTORCH)


def winner_of(record: Record) -> str:
    """Return the name of the winner: a plan, or a step without one if no plan was faster beyond noise."""
    return str(record.get("winner") or record.get("best"))


def best_baseline(record: Record) -> tuple[str, Record]:
    """Return the name and the plan of the fastest baseline; no name if none ran."""
    ran = [
        (time_of(plan), name, plan)
        for name, plan in plans_of(record).items()
        if kind_of(record, name) == "baseline" and not step_kind(name) and not math.isnan(time_of(plan))
    ]
    _, name, plan = min(ran, key=lambda entry: entry[0], default=(math.nan, "", {}))
    return name, plan


def kind_of(record: Record, origin: Any) -> str:
    """Return the kind of a plan, which decides its mark: 'baseline', 'method' or 'mutation'. The record names its
    `methods`."""
    origin = str(origin).partition(":")[0]  # the rest names the operations that were fused before
    methods = (LOOP, *listed(record.get("methods")))
    return "method" if origin in methods else "mutation" if origin == "mutation" else "baseline"


def overlaps(one: Record, other: Record) -> bool:
    """True if the intervals of two plans have a time in common; False if one has no interval."""
    lows, highs = ([number(plan.get(key)) for plan in (one, other)] for key in ("low_ms", "high_ms"))
    return not any(map(math.isnan, lows + highs)) and max(lows) <= min(highs)


def device_names(record: Record, indices: Iterable[int] = ()) -> dict[int, str]:
    """Return the name of each device by index; a device without a description is named by its index."""
    names = {
        index: str(entry.get("name", index) if isinstance(entry, Mapping) else entry)
        for index, entry in enumerate(listed(record.get("devices")))
    }
    return {**{index: f"device {index}" for index in sorted(set(indices))}, **names}


# Headline -------------------------------------------------------------------------------------------------------

MOST_LOAD = 0.1  # share of the cores that others may take while variants are timed; beyond it the page warns
MOST_PROFILE_LOAD = 0.5  # likewise while operations are profiled: of several runs the shortest counts
MOST_SPREAD = 1.5  # upper end over lower end of the interval of a ratio that is shown
TOO_NOISY = "too noisy to say"


def headline(record: Record) -> str:
    """Return the result in one sentence of at most 14 words, whoever wins; `conditions` has the times behind it."""
    return (_measured if runtime_of(record) == "measured" else _computed)(record)


def conditions(record: Record) -> str:
    """Return sentences for below the headline: the times with their intervals, and a warning of busy cores."""
    if runtime_of(record) == "measured":
        plans = {PYTORCH: pytorch_of(record), **plans_of(record)}
        names = dict.fromkeys((str(record.get("best")), winner_of(record), ORDINARY, PYTORCH))
        timed = {name_of(record, name): plan for name in names if time_of(plan := again(plans.get(name, {}))) > 0}
        parts = [f"{name} {brief(time_of(each))} ms{_bracket(each)}" for name, each in timed.items()]
    else:
        (name, baseline), bound = best_baseline(record), number(record.get("lower_bound"))
        parts = ["Nothing was measured", *[f"lower bound {brief(bound)} ms"] * (bound > 0)]
        parts += [f"best baseline {brief(time_of(baseline))} ms"] * bool(name)
    return f"{'; '.join(parts)}{busy(record)}." if parts else ""


def busy(record: Record) -> str:
    """Return a warning if other processes took much of the cores during measurements or the profile, else nothing.

    Examples:
        >>> busy({"load": 0.4})
        '. Other processes took 40% of the cores meanwhile: place it again when they are done'
    """
    load, profile_load = (number(record.get(name)) for name in ("load", "profile_load"))
    shares = [f"{load:.0%} of the cores meanwhile"] if load > MOST_LOAD else []
    advice = "place it again"
    if profile_load > MOST_PROFILE_LOAD:
        shares.append(f"{profile_load:.0%} of the cores while operations were profiled")
        advice += " from the beginning"  # what was profiled before is used where a search goes on
    return f". Other processes took {' and '.join(shares)}: {advice} when they are done" if shares else ""


def undercut(record: Record) -> str:
    """Return a sentence if real runs took less than the lower bound by the profiled costs, else nothing.

    Examples:
        >>> plan = {"median_ms": 4.0, "feasible": True}
        >>> undercut({"best": "heft", "plans": {"heft": plan}, "certificate": {"lower_bound": 5.0}})[:46]
        'Measured, the best plan took 4.00 ms, which is'
    """
    certified = mapping(record.get("certificate"))
    bound = number(certified.get("lower_bound", record.get("lower_bound")))
    took = time_of(again(best_of(record)))
    if runtime_of(record) != "measured" or not took < bound:
        return ""
    measured = f"Measured, the best plan took {brief(took)} ms, which is less: "
    if certified.get("is_fused"):
        return f"{measured}it compiles operations into one, and the bound is one of plans that do not."
    return (
        f"{measured}these costs are higher than what operations take in real runs, as where others used the cores "
        "while they were profiled."
    )


def _measured(record: Record) -> str:
    best, base = again(best_of(record)), again(pytorch_of(record))
    found, winner, plain = time_of(best), winner_of(record), baseline_name(record)
    if math.isnan(found):
        return "No plan was measured to the end"
    if step_kind(winner):
        fastest, words = again(plans_of(record).get(winner) or base), name_of(record, winner)
        if time_of(base) < time_of(fastest):
            fastest, words = base, plain
        noise = " beyond noise" if found < time_of(fastest) else ""
        words = f"the step, {words}" if words == winner else words
        return f"No plan beat {words}{noise}: {brief(time_of(fastest))} ms"
    words, shown = f"Best plan {brief(found)} ms", ratio(base, best)
    if shown == DASH:
        return f"{words}; {plain} was not measured"
    if shown == TOO_NOISY:
        return f"{words}; gain over {plain}: {TOO_NOISY}"
    if "winner" not in record and overlaps(best, base):
        return f"{words}; not settled if {plain} is faster"
    if found > time_of(base):
        return f"{words}; {plain} is faster here: {brief(time_of(base))} ms"
    return f"{words}, {shown} as fast as {plain}"


def _computed(record: Record) -> str:
    by, found, bound = runtime_of(record), time_of(best_of(record)), number(record.get("lower_bound"))
    if math.isnan(found):
        return f"No plan was found that runs ({by}); nothing was measured"
    words, gap = f"Best plan {brief(found)} ms ({by})", 100 * (found / bound - 1) if bound > 0 else math.nan
    if math.isnan(gap):
        return words
    optimal = f"at most {brief(max(gap, 0.0))} % from the optimum"
    return f"{words}, {optimal if gap > -0.01 else 'less than the lower bound'}"


def lead(record: Record) -> str:
    """Return a paragraph of the conditions, and a comparison of the best plan with the best baseline."""
    best, (name, baseline) = best_of(record), best_baseline(record)
    is_again = all("again_median_ms" in plan and plan["again_median_ms"] for plan in (best, baseline))
    if is_again:  # only alternating runs can be compared
        best, baseline = again(best), again(baseline)
    found, least = time_of(best), time_of(baseline)
    if math.isnan(found) or not name or step_kind(str(record.get("best"))):
        return _paragraph(conditions(record))
    best_name, measured = str(record.get("best")), runtime_of(record) == "measured"
    searched = any(kind_of(record, other) == "method" for other in plans_of(record))
    if kind_of(record, best_name) == "baseline":
        words = f"The best plan is the baseline {best_name}"
        words += ": no search method improved on it." if searched else "; no search method was asked."
    else:
        words = f"The best plan was found by {best_name}. The best baseline, {name}, takes {brief(least)} ms"
        slower = ratio(baseline, best)
        words += _bracket(baseline)
        words += f"; the ratio is {TOO_NOISY}" if slower == TOO_NOISY else f", {slower[:-1]} times as long"
        words += " in the first set of runs." if not is_again and again(best) is not best else "."
        if overlaps(best, baseline):
            words += " The two intervals overlap: these runs do not settle that the search gained anything."
    if measured:
        unmeasured = searched and number(mapping(record.get("cost_model")).get("num_measured")) == 0
        words += " There was no time to measure plans during the search." * unmeasured
        words += " The best plan is the one with the least time in both sets of runs together."
        words += _faster_again(record)
    else:
        words += " No plan ran: these times are worth as much as the costs that they are computed from."
    return _paragraph(conditions(record)) + _paragraph(words)


def _paragraph(words: str) -> str:
    return f'<p class="lead">{escape(words, 1000)}</p>' * bool(words)


def _faster_again(record: Record) -> str:
    """Return a sentence on the fastest plan of the second set of runs, if that is not the best plan."""
    plans = plans_of(record)
    second = {
        name: time
        for name, plan in plans.items()
        if not step_kind(name) and not math.isnan(time := number(plan.get("again_median_ms")))
    }
    fastest = min(second, key=lambda name: second[name], default="")
    best_ms = second.get(str(record.get("best")), math.nan)
    if not second or not second[fastest] < best_ms:
        return ""
    plan = again(plans[fastest])
    settled = "; the two intervals overlap" if overlaps(plan, again(best_of(record))) else ""
    return f" In the second set {fastest} took less, {brief(second[fastest])} ms{_bracket(plan)}{settled}."


def facts(record: Record) -> str:
    """Return the numbers of the headline, and the numbers of plans behind them, as tiles."""
    best, (name, baseline), model = again(best_of(record)), best_baseline(record), mapping(record.get("cost_model"))
    is_fused, label = mapping(record.get("certificate")).get("is_fused"), "lower bound, by the costs"
    label += ", of plans that fuse nothing" if is_fused else ", which real runs undercut" if undercut(record) else ""
    is_first = number(best.get("again_median_ms")) > 0 and again(baseline) is baseline
    first = ", in the first set of runs" * is_first
    entries = [
        (f"{brief(time_of(best))} ms", f"best plan ({record.get('best') or 'none'}), {runtime_of(record)}", ""),
        (f"{brief(record.get('lower_bound'))} ms", label, ""),
        (f"{brief(time_of(again(baseline)))} ms", f"best baseline ({name or 'none'}){first}", ""),
    ]
    if runtime_of(record) == "simulated":
        asked = sum(count for plan in plans_of(record).values() if (count := number(plan.get("evaluations"))) >= 0)
        return tiles([*entries, (whole(asked), "plans evaluated", ""), ("0", "plans measured", "")])
    base = again(pytorch_of(record))
    shown, is_slower = ratio(base, best), time_of(best) > time_of(base)
    tone = "" if shown in (DASH, TOO_NOISY) or overlaps(best, base) else "bad" if is_slower else "good"
    entries[1:1] = [
        (f"{brief(time_of(base))} ms", f"{baseline_name(record)}, all threads", ""),
        (shown, f"{baseline_name(record)} / best plan", tone),
    ]
    counts = [("num_measured", "plans measured in the search"), ("num_screened", "plans predicted to choose these")]
    return tiles([*entries, *((whole(model.get(key)), words, "") for key, words in counts)])


def ratio_of(record: Record, plan: Record) -> str:
    """Return the `ratio` of plain PyTorch to the plan, both of the second set of runs if there is one."""
    base = pytorch_of(record)
    if number(base.get("again_median_ms")) > 0:
        base, plan = again(base), again(plan) if number(plan.get("again_median_ms")) > 0 else {}
    return ratio(base, plan)


def ratio(one: Record, other: Record) -> str:
    """Return the time of one plan over that of another, or words if the interval of this ratio is too wide.

    Examples:
        >>> plan = {"median_ms": 4.0, "low_ms": 3.9, "high_ms": 4.1}
        >>> ratio({"median_ms": 6.0, "low_ms": 5.9, "high_ms": 6.2}, plan)
        '1.50x'
        >>> ratio({"median_ms": 6.0, "low_ms": 4.0, "high_ms": 9.0}, plan)
        'too noisy to say'
    """
    value = time_of(one) / (time_of(other) or math.nan)
    highs, lows = ([number(plan.get(key)) for plan in (one, other)] for key in ("high_ms", "low_ms"))
    if math.isnan(value):
        return DASH
    return TOO_NOISY if math.prod(highs) > MOST_SPREAD * math.prod(lows) else f"{value:.2f}x"


def _bracket(plan: Record) -> str:
    low, high = number(plan.get("low_ms")), number(plan.get("high_ms"))
    return "" if math.isnan(low) or math.isnan(high) else f" ({span(low, high)})"
