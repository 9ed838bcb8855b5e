"""What was found, in a sentence, in a second one that holds it against the best baseline, and in a few numbers."""

from __future__ import annotations

import math

from gst.reporting.charts import DASH, brief, escape, number, span, whole
from gst.reporting.page import tiles
from gst.reporting.record import (
    PYTORCH,
    STEPS,
    Record,
    again,
    best_baseline,
    best_of,
    gap_percent,
    graph_arrays,
    kind_of,
    mapping,
    overlaps,
    plans_of,
    pytorch_of,
    runtime_of,
    time_of,
    winner_of,
)

BY = {"measured": "measured", "simulated": "simulated", "published": "by the published latency"}


def headline(record: Record) -> str:
    """What was found, in words, whoever wins: times beside what they are to be held against."""
    return _measured(record) if runtime_of(record) == "measured" else _computed(record)


def _measured(record: Record) -> str:
    best, base = again(best_of(record)), again(pytorch_of(record))
    found, plain, winner = time_of(best), time_of(base), winner_of(record)
    if math.isnan(found):
        return "No plan was measured to the end" + ("" if math.isnan(plain) else f"; plain PyTorch {brief(plain)} ms")
    if winner in STEPS:
        fastest = again(plans_of(record).get(winner) or base)
        name = "plain PyTorch" if winner == PYTORCH else "torch.compile"
        words = f"No plan beat {name}: {brief(time_of(fastest))} ms{_bracket(fastest)}"
        words += "" if winner == PYTORCH else f"; plain PyTorch {brief(plain)} ms{_bracket(base)}"
        return words if record.get("best") in STEPS else f"{words}; best plan {brief(found)} ms{_bracket(best)}"
    used = len(set(graph_arrays(record)[2].tolist()))
    where = f" on {used} device{'s' * (used != 1)}" if used else ""
    words = f"Best plan {brief(found)} ms{_bracket(best)}{where}"
    if math.isnan(plain):
        return f"{words}; plain PyTorch was not measured"
    words += f"; plain PyTorch {brief(plain)} ms{_bracket(base)}, so it is {plain / found:.2f}x as fast"
    if "winner" not in record and overlaps(best, base):
        return f"{words}, but the intervals overlap: not settled which is faster"
    return words if found <= plain else f"{words}: plain PyTorch is faster here"


def _computed(record: Record) -> str:
    by, found, bound = BY[runtime_of(record)], time_of(best_of(record)), number(record.get("lower_bound"))
    if math.isnan(found):
        return f"No plan was found that runs ({by}); nothing was measured"
    words, gap = f"Best plan {brief(found)} ms ({by})", gap_percent(record)
    if not math.isnan(gap):
        words += f", lower bound {brief(bound)} ms"
        words += f", so at most {brief(max(gap, 0.0))} % from the optimum" if gap > -0.01 else ", which it undercuts"
    name, baseline = best_baseline(record)
    if name:
        words += f"; best baseline {brief(time_of(baseline))} ms"
    return f"{words}. Nothing was measured"


def lead(record: Record) -> str:
    """A paragraph that says what the search was worth over the best baseline."""
    best, (name, baseline) = best_of(record), best_baseline(record)
    found, least = time_of(best), time_of(baseline)
    if math.isnan(found) or not name or record.get("best") in STEPS:
        return ""
    best_name, measured = str(record.get("best")), runtime_of(record) == "measured"
    if kind_of(best_name) == "baseline":
        searched = any(kind_of(other) == "method" for other in plans_of(record))
        words = f"The best plan is the baseline {best_name}"
        words += ": no search method improved on it." if searched else "; no search method was asked."
    else:
        words = f"The best plan was found by {best_name}. The best baseline, {name}, takes {brief(least)} ms"
        words += f"{_bracket(baseline)}, {least / found:.2f} times as long."
        if overlaps(best, baseline):
            words += " The two intervals overlap: these runs do not settle that the search gained anything."
    if measured:
        words += " The best plan is the one with the least median of all that were measured at the end."
    else:
        words += " No plan ran: these times are worth as much as the costs that they are computed from."
    return f'<p class="lead">{escape(words, 1000)}</p>'


def facts(record: Record) -> str:
    """The numbers of the headline, and how many plans they come from, as tiles."""
    return tiles(_measured_facts(record) if runtime_of(record) == "measured" else _computed_facts(record))


def _measured_facts(record: Record) -> list[tuple[str, str, str]]:
    model, best, (name, baseline) = mapping(record.get("cost_model")), again(best_of(record)), best_baseline(record)
    base = again(pytorch_of(record))
    ratio = time_of(base) / (time_of(best) or math.nan)
    settled = not math.isnan(ratio) and not overlaps(best, base)
    tone = "" if not settled else "good" if ratio > 1 else "bad"
    return [
        (f"{brief(time_of(best))} ms", f"best plan ({record.get('best') or 'none'})", ""),
        (f"{brief(time_of(base))} ms", "plain PyTorch, all threads", ""),
        (ratio_of(record, best), "plain PyTorch / best plan", tone),
        (f"{brief(time_of(baseline))} ms", f"best baseline ({name or 'none'})", ""),
        (f"{brief(record.get('lower_bound'))} ms", "lower bound, by profiled costs", ""),
        (whole(model.get("num_measured")), "plans measured in the search", ""),
        (whole(model.get("num_screened")), "plans screened before", ""),
    ]


def _computed_facts(record: Record) -> list[tuple[str, str, str]]:
    (name, baseline), gap = best_baseline(record), gap_percent(record)
    asked = sum(count for plan in plans_of(record).values() if (count := number(plan.get("evaluations"))) >= 0)
    by = BY[runtime_of(record)]
    return [
        (f"{brief(time_of(best_of(record)))} ms", f"best plan ({record.get('best') or 'none'}), {by}", ""),
        (f"{brief(record.get('lower_bound'))} ms", "lower bound", ""),
        (DASH if math.isnan(gap) else f"{brief(max(gap, 0.0))} %", "at most above the optimum", ""),
        (f"{brief(time_of(baseline))} ms", f"best baseline ({name or 'none'})", ""),
        (whole(asked), "plans evaluated", ""),
        ("0", "plans measured", ""),
    ]


def ratio_of(record: Record, plan: Record) -> str:
    """Plain PyTorch's time over the plan's, in words: above 1 the plan is faster."""
    ratio = time_of(pytorch_of(record)) / (time_of(plan) or math.nan)
    return DASH if math.isnan(ratio) else f"{ratio:.2f}x"


def _bracket(plan: Record) -> str:
    low, high = number(plan.get("low_ms")), number(plan.get("high_ms"))
    return "" if math.isnan(low) or math.isnan(high) else f" ({span(low, high)})"
