"""Page of `gst demo`: a gain of each part in large type, then sections of the pages of `gst fit` and `gst place`."""

from __future__ import annotations

import math

from gst.reporting import page
from gst.reporting.charts import DASH, HEIGHT, WIDTH, Axis, brief, drawing, frame, mark, number, text, whole
from gst.reporting.headline import (
    PYTORCH,
    TOO_NOISY,
    again,
    busy,
    headline,
    plans_of,
    ratio,
    step_kind,
    time_of,
    winner_of,
)
from gst.reporting.page import Record, command_of, mapping, mappings
from gst.reporting.placement import plans, predictions
from gst.reporting.training import scores

NEXT = {
    "growth": ("Train on a graph that does not fit", "gst fit --config experiments/configs/giant_synthetic.yaml"),
    "ranking": ("Rank configurations of a real program", "gst fit --config experiments/configs/alexnet_layout.yaml"),
    "placement": ("Place a program on this machine", "gst place inception --out runs/place/inception"),
}
"""Title of each part, and the command to go on with."""
SENTENCE = {
    "growth": "trained on a giant graph in {}",
    "ranking": "ranked layouts of a real program with {}",
    "placement": "planned a step {} as fast as the best without a plan",
}
NO_GAIN = {
    "growth": "took {} to train on a giant graph",
    "ranking": "ranked layouts of a real program no better than linear regression ({})",
    "placement": "found no plan faster than the step without one ({})",
}
SUMS = "linear regression on sums"
TRAINED_ON = {"segments": "segments", "whole": "whole graph"}
Gain = tuple[str, str, str]
"""Value, words and tone of a tile; the words begin after the value in a sentence."""


def render_demo(record: Record) -> str:
    """Return the page of a record with the parts `growth`, `ranking` and `placement`; each may be missing.

    Examples:
        >>> "No part of the demo has finished" in render_demo({})
        True
    """
    growth, ranking, placement = (mapping(record.get(name)) for name in NEXT)
    taus = [(name, f"{number(tau):.2f}".replace("nan", DASH)) for name, tau in mapping(ranking.get("tau")).items()]
    table = page.rows("Kendall's tau", ("learned from the same layouts", "Kendall's tau"), taus) if taus else ""
    seconds = [(f"{name}, s", brief(mapping(record.get(name)).get("seconds"))) for name in NEXT]
    body = (
        (page.section("growth", NEXT["growth"][0], _growth(growth)) if growth else "")
        + scores(ranking, table)
        + (plans(placement) + predictions(placement) if placement else "")
        + page.section(
            "setting",
            "Machine and command",
            page.block("Machine", page.definitions([*mapping(record.get("machine")).items(), *seconds])),
            page.command_line(record),
        )
    )
    shown, command = gains(record), command_of(record)
    shown_soundly = {name: gain for name, gain in shown.items() if gain[0] != TOO_NOISY}
    sentences = (
        (SENTENCE if tone else NO_GAIN)[name].format(value) for name, (value, _, tone) in shown_soundly.items()
    )
    heading = "GST " + ", ".join(sentences)
    eyebrow = f"{command} · {len(shown)} of {len(NEXT)} parts in {brief(record.get('seconds'))} s"
    load = max(number(mapping(record.get(name)).get("smaller_at_load") or 0) for name in NEXT)
    eyebrow += f", smaller ones, as other processes took {load:.0%} of the cores" if load > 0 else ""
    head = (page.tiles(shown.values()) if shown else "") + page.next_steps(dict(NEXT.values()))
    return page.page("GST demo", heading if shown else "No part of the demo has finished", eyebrow, head, body, command)


def gains(record: Record) -> dict[str, Gain]:
    """Return the gain of each finished part by its name.

    Examples:
        >>> gains({"ranking": {"tau": {"GST": 0.8, "linear regression on sums": 0.5}, "num_held_out": 300}})["ranking"]
        ('tau 0.80', 'on 300 unseen layouts of AlexNet; linear regression on sums 0.50', 'good')
    """
    functions = {"growth": _growth_gain, "ranking": _ranking_gain, "placement": _placement_gain}
    return {name: gain(mapping(record[name])) for name, gain in functions.items() if mapping(record.get(name))}


def whole_mib(growth: Record) -> float:
    """Return the memory in MiB that training on the whole largest graph would take, on the line through two sizes.

    Examples:
        >>> whole_mib({"segments": [{"nodes": 4}], "whole": [{"nodes": 1, "peak_mib": 3}, {"nodes": 2, "peak_mib": 4}]})
        6.0
    """
    sizes = _sizes(growth.get("whole"))
    largest = [number(each.get("nodes")) for each in mappings(growth.get("segments"))]
    if len(sizes) < 2 or not largest or sizes[0][0] == sizes[-1][0]:
        return math.nan
    (less, less_mib), (more, more_mib) = sizes[0], sizes[-1]
    return more_mib + (more_mib - less_mib) / (more - less) * (largest[-1] - more)


def _sizes(entries: object) -> list[tuple[float, float]]:
    """Return the pairs (nodes, peak MiB) that are positive."""
    pairs = [(number(each.get("nodes")), number(each.get("peak_mib"))) for each in mappings(entries)]
    return [(nodes, mib) for nodes, mib in pairs if nodes > 0 and mib > 0]


def _memory(mib: float) -> str:
    return f"{brief(mib / 1024)} GiB" if mib >= 1024 else f"{brief(mib)} MiB"


def _growth_gain(growth: Record) -> Gain:
    sizes = _sizes(growth.get("segments")) or [(math.nan, math.nan)]
    (first, first_mib), (last, last_mib) = sizes[0], sizes[-1]
    words = f"to train on {whole(last)} nodes, {_memory(first_mib)} on {whole(first)}; the whole graph would take "
    return _memory(last_mib), f"{words}about {_memory(whole_mib(growth))}", "good" if last_mib < 1.5 * first_mib else ""


def _ranking_gain(ranking: Record) -> Gain:
    taus = {name: number(tau) for name, tau in mapping(ranking.get("tau")).items()}
    ours, sums = taus.get("GST", math.nan), taus.get(SUMS, math.nan)
    words = f"on {whole(ranking.get('num_held_out'))} unseen layouts of AlexNet; {SUMS} {sums:.2f}"
    return f"tau {ours:.2f}".replace("nan", DASH), words.replace("nan", DASH), "good" if ours > sums else ""


def _placement_gain(placement: Record) -> Gain:
    plans = {name: again(plan) for name, plan in plans_of(placement).items()}
    ran = [name for name in plans if step_kind(name) and not math.isnan(time_of(plans[name]))]
    fastest = min(ran, key=lambda name: time_of(plans[name]), default=PYTORCH)
    shown = ratio(plans.get(fastest, {}), plans.get(str(placement.get("best")), {}))
    words = f"compared with {fastest}, the fastest step without a plan. {headline(placement)}{busy(placement)}"
    is_gain = shown[0].isdigit() and not step_kind(winner_of(placement))
    return shown, words, "good" if is_gain else ""


def _growth(growth: Record) -> str:
    lines = [
        (name, whole(each.get("nodes")), *(brief(each.get(key)) for key in ("prepare_s", "step_ms", "peak_mib")))
        for key, name in TRAINED_ON.items()
        for each in mappings(growth.get(key))
    ]
    table = page.rows("Memory", ("training on", "nodes", "prepare, s", "step, ms", "peak, MiB"), lines)
    compared = {name: mapping(mapping(growth.get("compared")).get(key)) for key, name in TRAINED_ON.items()}
    errors = [
        (
            name, whole(each.get("steps")), brief(100 * number(each.get("wrong_pairs"))), brief(each.get("train_s")),
            brief(each.get("peak_mib")),
        )
        for name, each in compared.items()
    ]  # fmt: skip
    lead = (
        "<p>A step backpropagates through four segments of the graph and takes the embeddings of all others from a "
        "table. Its memory therefore does not grow with the graph.</p>"
    )
    words = (
        "<p>The same network, trained on segments and on the whole graph of "
        f"{whole(compared['segments'].get('nodes'))} nodes, where a step takes four times "
        "as long. The error is the share of unseen pairs of configurations that the model puts in the wrong order.</p>"
    )
    caption = "Most memory of the process that trains, its libraries included. Both axes are logarithmic."
    heads = ("training on", "steps", "wrong pairs, %", "seconds", "MiB")
    chart = page.figure(_memory_chart(growth), caption, table, heading="Memory of training")
    return lead + page.pair(
        chart, page.block("Error compared with whole graphs", words + page.rows("Errors", heads, errors))
    )


def _memory_chart(growth: Record) -> str:
    trained, segments, estimate = _sizes(growth.get("whole")), _sizes(growth.get("segments")), whole_mib(growth)
    if not segments:
        return ""
    nodes, memory = zip(*segments, *trained, strict=True)
    x = Axis.fit([at / 1000 for at in nodes], 62, WIDTH - 14)
    y = Axis.fit([*memory, 2 * estimate, min(memory) / 25], HEIGHT - 50, 14)
    out = [frame(x, y, "thousand nodes of the graph", "MiB")]
    ends = [*trained, (segments[-1][0], estimate)] if estimate > 0 else trained
    for kind, css, words, marked, line, below in (
        ("baseline", "c5 d1", f"whole graph, extrapolated: {_memory(estimate)}", trained, ends, -10),
        ("method", "c0", f"GST: {_memory(segments[-1][1])}", segments, segments, 22),
    ):
        path = "L".join(f"{x(at / 1000)} {y(mib)}" for at, mib in line)
        out += [f'<path class="line {css}" d="M{path}"/>'] * bool(line)
        out += [mark(kind, x(at / 1000), y(mib), f"{whole(at)} nodes: {brief(mib)} MiB") for at, mib in marked]
        out += [text(x(at / 1000) - 8, y(mib) + below, words, "end", "note") for at, mib in line[-1:]]
    seen = f"With segments {brief(segments[0][1])} to {brief(segments[-1][1])} MiB, else up to {brief(estimate)}."
    return drawing("Memory of training by size of the graph", "".join(out), description=seen)
