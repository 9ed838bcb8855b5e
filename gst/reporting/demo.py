"""Page of `gst demo`: three gains on the first screen, then a section with a picture and a command for each."""

from __future__ import annotations

import math

from gst.reporting.charts import (
    DASH,
    HEIGHT,
    WIDTH,
    Axis,
    brief,
    drawing,
    escape,
    frame,
    mark,
    number,
    square,
    text,
    whole,
)
from gst.reporting.headline import PYTORCH, again, plans_of, step_kind, time_of, winner_of
from gst.reporting.page import (
    Record,
    block,
    command_line,
    command_of,
    definitions,
    empty,
    figure,
    listed,
    mapping,
    mappings,
    page,
    pair,
    rows,
    section,
    tiles,
)

NEXT = {
    "growth": ("Train on a graph that does not fit", "gst fit --config experiments/configs/giant_synthetic.yaml"),
    "ranking": ("Rank configurations of a real program", "gst rank runs/alexnet_layout/checkpoints/best.ckpt FILE.npz"),
    "placement": ("Place a program on this machine", "gst place inception --out runs/place/inception"),
}
"""Title of each part, and the command to go on with."""
SENTENCE = {
    "growth": "trained on a giant graph in {}",
    "ranking": "ranked layouts of a real program with {}",
    "placement": "planned a step at {} the speed of PyTorch",
}
SUMS = "linear regression on sums"
MODELS = {"gst": "GST cost model", "linear": SUMS}
NOTHING = "No part of the demo has finished"
UNFINISHED = "This part has not finished. <code>gst demo --resume</code> goes on."
Gain = tuple[str, str, str]
"""Value, words and tone of a tile; the words begin after the value in a sentence."""


def render_demo(record: Record) -> str:
    """Return the page of a record with the parts `growth`, `ranking` and `placement`; each may be missing.

    Examples:
        >>> "No part of the demo has finished" in render_demo({})
        True
    """
    sections = {"growth": _growth, "ranking": _ranking, "placement": _placement}
    body = ""
    for name, draw in sections.items():
        part, (title, command) = mapping(record.get(name)), NEXT[name]
        shown = draw(part) if part else empty(UNFINISHED)
        body += section(name, title, shown, f"<h3>Go on with</h3><pre><code>{escape(command)}</code></pre>")
    seconds = [(f"{name}, s", brief(mapping(record.get(name)).get("seconds"))) for name in sections]
    machine = block("Machine", definitions([*mapping(record.get("machine")).items(), *seconds]))
    body += section("setting", "Machine and command", machine, command_line(record))
    found = gains(record)
    heading = "GST " + ", ".join(SENTENCE[name].format(value) for name, (value, _, _) in found.items())
    eyebrow = f"{command_of(record)} · {len(found)} of {len(NEXT)} parts in {brief(record.get('seconds'))} s"
    head = tiles(found.values()) if found else ""
    return page("GST demo", heading if found else NOTHING, eyebrow, head, body, command_of(record))


def gains(record: Record) -> dict[str, Gain]:
    """Return the gain of each finished part by its name.

    Examples:
        >>> gains({"ranking": {"tau": {"GST": 0.8, "linear regression on sums": 0.5}, "num_held_out": 300}})["ranking"]
        ('tau 0.80', 'on 300 unseen layouts of AlexNet; linear regression on sums 0.50', 'good')
    """
    functions = {"growth": _growth_gain, "ranking": _ranking_gain, "placement": _placement_gain}
    return {name: gain(mapping(record[name])) for name, gain in functions.items() if mapping(record.get(name))}


# 1. Training on a graph that grows -----------------------------------------------------------------------------------


def whole_mib(growth: Record) -> float:
    """Return the memory in MiB that training on the whole largest graph would take, on the line through two sizes.

    Examples:
        >>> whole_mib({"segments": [{"nodes": 4}], "whole": [{"nodes": 1, "peak_mib": 3}, {"nodes": 2, "peak_mib": 4}]})
        6.0
    """
    sizes, largest = (
        _sizes(growth.get("whole")),
        [number(each.get("nodes")) for each in mappings(growth.get("segments"))],
    )
    if len(sizes) < 2 or not largest or sizes[0][0] == sizes[-1][0]:
        return math.nan
    (less, less_mib), (more, more_mib) = sizes[0], sizes[-1]
    return more_mib + (more_mib - less_mib) / (more - less) * (largest[-1] - more)


def _sizes(entries: object) -> list[tuple[float, float]]:
    """Return the pairs (nodes, peak MiB) that are positive."""
    pairs = [(number(each.get("nodes")), number(each.get("peak_mib"))) for each in mappings(entries)]
    return [each for each in pairs if min(each) > 0]


def _memory(mib: float) -> str:
    return f"{brief(mib / 1024)} GiB" if mib >= 1024 else f"{brief(mib)} MiB"


def _growth_gain(growth: Record) -> Gain:
    sizes = _sizes(growth.get("segments")) or [(math.nan, math.nan)]
    (first, first_mib), (last, last_mib) = sizes[0], sizes[-1]
    words = f"to train on {whole(last)} nodes, {_memory(first_mib)} on {whole(first)}; the whole graph would take "
    return _memory(last_mib), f"{words}about {_memory(whole_mib(growth))}", "good" if last_mib < 1.5 * first_mib else ""


def _growth(growth: Record) -> str:
    names = (("segments", "segments"), ("whole", "whole graph"))
    lines = [
        (name, whole(each.get("nodes")), *(brief(each.get(key)) for key in ("prepare_s", "step_ms", "peak_mib")))
        for key, name in names
        for each in mappings(growth.get(key))
    ]
    table = rows("Memory", ("training on", "nodes", "prepare, s", "step, ms", "peak, MiB"), lines)
    compared = {name: mapping(mapping(growth.get("compared")).get(key)) for key, name in names}
    keys = ("train_s", "peak_mib")
    errors = [
        (name, whole(each.get("steps")), _percent(each.get("wrong_pairs")), *(brief(each.get(key)) for key in keys))
        for name, each in compared.items()
    ]
    nodes = whole(compared["segments"].get("nodes"))
    told = (
        f"<p>The same network, trained on segments and on the whole graph of {nodes} nodes. The error is the share of "
        "unseen pairs of configurations that the model puts in the wrong order.</p>"
    )
    heads = ("training on", "steps", "wrong pairs", "seconds", "MiB")
    lead = (
        "<p>A step backpropagates through two segments of the graph and takes the embeddings of all others from a "
        "table. Its memory therefore does not grow with the graph.</p>"
    )
    caption = "Most memory of the process that trains, its libraries included. Both axes are logarithmic."
    chart = figure(_memory_chart(growth), caption, table, heading="Memory of training")
    return lead + pair(chart, block("Error compared with whole graphs", told + rows("Errors", heads, errors)))


def _memory_chart(growth: Record) -> str:
    trained, segments, estimate = _sizes(growth.get("whole")), _sizes(growth.get("segments")), whole_mib(growth)
    if not segments:
        return empty("No memory was measured.")
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
    told = f"With segments {brief(segments[0][1])} to {brief(segments[-1][1])} MiB, else up to {brief(estimate)}."
    return drawing("Memory of training by size of the graph", "".join(out), description=told)


def _percent(value: object) -> str:
    share = 100 * number(value)
    return DASH if math.isnan(share) else f"{brief(share)} %"


# 2. A cost model of a real program -----------------------------------------------------------------------------------


def _ranking_gain(ranking: Record) -> Gain:
    taus = {name: number(tau) for name, tau in mapping(ranking.get("tau")).items()}
    ours, sums = taus.get("GST", math.nan), taus.get(SUMS, math.nan)
    words = f"on {whole(ranking.get('num_held_out'))} unseen layouts of AlexNet; {SUMS} {sums:.2f}"
    return f"tau {ours:.2f}".replace("nan", DASH), words.replace("nan", DASH), "good" if ours > sums else ""


def _ranking(ranking: Record) -> str:
    places = zip(listed(ranking.get("predicted")), listed(ranking.get("measured")), strict=False)
    points = [(number(a), number(b)) for a, b in places if not math.isnan(number(a) + number(b))]
    x, y, axes, diagonal = square([0.0, 100.0], 62, "predicted place, %", "measured place, %")
    dots = "".join(f"M{x(a)} {y(b)}h.01" for a, b in points)
    svg = drawing(f"Places of {len(points)} layouts", f'{axes}<path class="cloud c0" d="{dots}"/>{diagonal}')
    taus = [(name, f"{number(tau):.2f}".replace("nan", DASH)) for name, tau in mapping(ranking.get("tau")).items()]
    counts = [whole(ranking.get(key)) for key in ("nodes", "num_train", "num_held_out")]
    words = (
        f"<p>AlexNet in training on a TPU v3, {counts[0]} operations, with runtimes of TpuGraphs. The model learned "
        f"from {counts[1]} layouts and ranks {counts[2]} others. The layout it puts first takes "
        f"{_percent(ranking.get('slowdown'))} more time than the fastest, the median layout "
        f"{_percent(ranking.get('median_slowdown'))}.</p><p>Regression on sums knows what GST knows: features that any "
        "program has. Regression on each node serves this one program alone.</p>"
    )
    table = rows("Kendall's tau", ("learned from the same layouts", "Kendall's tau"), taus)
    chart = figure(svg, "Place 0 is the fastest. On the diagonal prediction and measurement agree.")
    return pair(chart, f"<div>{words}{table}</div>")


# 3. The placement loop -----------------------------------------------------------------------------------------------


def _placement_gain(placement: Record) -> Gain:
    times = {name: time_of(again(plan)) for name, plan in plans_of(placement).items()}
    steps = {name: ms for name, ms in times.items() if step_kind(name) and not math.isnan(ms)}
    best, fastest = (
        times.get(str(placement.get("best")), math.nan),
        min(steps, key=lambda name: steps[name], default=""),
    )
    compiled = min((ms for name, ms in steps.items() if "compiled" in name), default=math.nan)
    no_plan = bool(step_kind(winner_of(placement)))
    words = (
        f"as fast as {_named(fastest) or 'PyTorch'}, the best without a plan (eager {_ratio(times.get(PYTORCH), best)}"
    )
    words += f", torch.compile {_ratio(compiled, best)})"
    words += "" if not no_plan else ", within noise" if steps.get(fastest, best) > best else "; no plan won here"
    return _ratio(steps.get(fastest), best), words, "" if no_plan else "good"


def _named(name: str) -> str:
    return name.replace("compiled", "torch.compile").replace("pytorch", "eager PyTorch")


def _ratio(other: float | None, best: float) -> str:
    ratio = number(other) / best if best > 0 else math.nan
    return DASH if math.isnan(ratio) else f"{ratio:.2f}x"


def _placement(placement: Record) -> str:
    plans = plans_of(placement)
    ran = sorted((name for name in plans if time_of(plans[name]) > 0), key=lambda name: time_of(plans[name]))
    keys = ("median_ms", "again_median_ms", "simulated_ms")
    lines = [(_named(name), *(brief(plans[name].get(key)) for key in keys)) for name in ran]
    best = ran.index(winner_of(placement)) if winner_of(placement) in ran else None
    reasons = [
        f"{_named(name)}: {plan.get('reason') or 'did not run'}" for name, plan in plans.items() if name not in ran
    ]
    table = rows("Plans", ("plan or step", "measured, ms", "again, ms", "simulated, ms"), lines, best)
    failures = f'<ul class="reasons">{"".join(f"<li>{escape(each)}</li>" for each in reasons)}</ul>' if reasons else ""
    words = f"<p>{escape(placement.get('program') or 'A program')}: {escape(placement.get('headline') or '')}.</p>"
    measured = block("Measured on this machine", table + failures)
    return words + pair(measured, block("Part of the cost model", _cost_model(placement)))


def _cost_model(placement: Record) -> str:
    model, trials = mapping(placement.get("cost_model")), mappings(placement.get("measurements"))
    first = {each.get("label") for each in trials if each.get("round") == 0}
    chosen = {each.get("label") for each in trials} - first
    ran = [each for each in trials if number(each.get("median_ms")) > 0]
    fastest = min(ran, key=lambda each: number(each.get("median_ms")), default={})
    entries = [
        ("model", MODELS.get(str(model.get("name")), "none")),
        ("predicted", f"{whole(model.get('num_screened'))} plans"),
        ("measured", f"{len(chosen)} of these, after {len(first)} plans to learn from"),
        ("tau", f"{brief(model.get('tau'))} between predictions and measurements"),
        (
            "used",
            f"the fastest plan of the search is {'' if fastest.get('label') in chosen else 'not '}one of its choice",
        ),
        ("best plan", f"found by {placement.get('best') or 'no method'}"),
    ]
    words = "The model learns from measured plans how far the simulator is off, and chooses the plans to measure next."
    return f"<p>{words}</p>{definitions(entries)}"
