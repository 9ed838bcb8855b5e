"""Page of `gst demo`: three gains on the first screen, then a section with a picture and a command for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gst.reporting.charts import HEIGHT, WIDTH, Axis, brief, drawing, escape, frame, mark, number, square, text, whole
from gst.reporting.headline import again, plans_of, pytorch_of, step_kind, time_of, winner_of
from gst.reporting.page import (
    Record,
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

PARTS = ("growth", "ranking", "placement")
TITLES = (
    "Train on a graph that does not fit",
    "Rank configurations of a real program",
    "Place a program on this machine",
)
NEXT = (
    "gst fit --config experiments/configs/giant_synthetic.yaml",
    "gst rank runs/alexnet_layout/checkpoints/best.ckpt FILE.npz",
    "gst place inception --out runs/place/inception --cost-model network",
)
UNFINISHED = "This part has not finished. Run <code>gst demo --resume</code> to go on."


def render_demo(record: Record) -> str:
    """Return the page of a record with the parts `growth`, `ranking` and `placement`; each may be missing."""
    parts = [mapping(record.get(name)) for name in PARTS]
    finished = [part for part in parts if part]
    gains = [gain(part) for gain, part in zip(GAINS, parts, strict=True)]
    body = tiles((value, words, tone) for value, words, tone in gains)
    for draw, part, title, name, command in zip(SECTIONS, parts, TITLES, PARTS, NEXT, strict=True):
        shown = draw(part) if part else empty(UNFINISHED)
        body += section(name, title, shown, f"<h3>Go on with</h3><pre><code>{escape(command)}</code></pre>")
    machine = mapping(record.get("machine"))
    body += section("machine", "Command and machine", _machine(record, machine, parts))
    count = "" if len(finished) == len(PARTS) else f" · {len(finished)} of {len(PARTS)} parts finished"
    eyebrow = f"{command_of(record)} · {whole(record.get('seconds'))} s{count}"
    return page("GST demo", heading(record), eyebrow, "", body, command_of(record))


def heading(record: Record) -> str:
    """Return one sentence with the gain of each finished part."""
    growth, ranking, placement = (mapping(record.get(name)) for name in PARTS)
    words = []
    if segments := mappings(growth.get("segments")):
        words.append(f"trains on {whole(segments[-1].get('nodes'))} nodes in {brief(segments[-1].get('peak_mib'))} MiB")
    if ranking:
        words.append(f"ranks unseen layouts of AlexNet with tau {_tau(ranking, 'GST')}")
    if placement:
        words.append(_placement_words(placement))
    return f"GST {_joined(words)}" if words else "No part of the demo has finished yet"


def sentences(record: Record) -> list[str]:
    """Return the gain of each finished part as one line for a terminal."""
    parts = [mapping(record.get(name)) for name in PARTS]
    gains = [(title, gain(part)) for title, gain, part in zip(TITLES, GAINS, parts, strict=True) if part]
    return [f"{title}: {value}, {words}" for title, (value, words, _) in gains]


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# 1. Training on a graph that grows -----------------------------------------------------------------------------------


def whole_mib(growth: Record) -> float:
    """Return the memory in MiB that training on the whole largest graph would take, on the line through two sizes.

    Examples:
        >>> whole_mib({"segments": [{"nodes": 4}], "whole": [{"nodes": 1, "peak_mib": 3}, {"nodes": 2, "peak_mib": 4}]})
        6.0
    """
    known = [(number(each.get("nodes")), number(each.get("peak_mib"))) for each in mappings(growth.get("whole"))]
    nodes = [number(each.get("nodes")) for each in mappings(growth.get("segments"))]
    if len(known) < 2 or not nodes or known[-1][0] == known[-2][0]:
        return math.nan
    (less, less_mib), (more, more_mib) = known[-2:]
    return more_mib + (more_mib - less_mib) / (more - less) * (nodes[-1] - more)


def _growth_gain(growth: Record) -> tuple[str, str, str]:
    segments = mappings(growth.get("segments"))
    if not segments:
        return "\u2013", "memory of training on a giant graph: not finished", ""
    first, last = segments[0], segments[-1]
    words = f"peak memory of training on {whole(last.get('nodes'))} nodes; {brief(first.get('peak_mib'))} MiB on "
    words += f"{whole(first.get('nodes'))}. Whole graphs: about {_memory(whole_mib(growth))}"
    return f"{brief(last.get('peak_mib'))} MiB", words, "good" if _is_flat(first, last) else ""


def _is_flat(first: Record, last: Record) -> bool:
    return number(last.get("peak_mib")) < 1.5 * number(first.get("peak_mib"))


def _memory(mib: float) -> str:
    return f"{brief(mib)} MiB" if not mib >= 1024 else f"{brief(mib / 1024)} GiB"


def _growth(growth: Record) -> str:
    segments, trained = mappings(growth.get("segments")), mappings(growth.get("whole"))
    pair_of = mapping(growth.get("compared"))
    compared = [(name, mapping(pair_of.get(key))) for name, key in (("segments", "segments"), ("whole graph", "whole"))]
    svg = _memory_chart(segments, trained, whole_mib(growth))
    lines = [
        (kind, whole(each.get("nodes")), brief(each.get("prepare_s")), brief(each.get("step_ms")), brief(each.get("peak_mib")))
        for kind, entries in (("segments", segments), ("whole graph", trained))
        for each in entries
    ]  # fmt: skip
    heads = ("training on", "nodes", "prepare, s", "step, ms", "peak, MiB")
    caption = "Peak memory of the process that trains. Squares: one segment of at most 1,000 nodes after the other."
    errors = [
        (name, f"{brief(100 * number(each.get('wrong_pairs')))} %", brief(each.get("train_s")), brief(each.get("peak_mib")))
        for name, each in compared
    ]  # fmt: skip
    nodes = whole(compared[0][1].get("nodes"))
    words = (
        f"<p>Equal numbers of steps on a graph of {nodes} nodes, with segments (a table of embeddings, dropout of stale "
        "ones) and with the whole graph. The error is the share of held-out pairs of configurations that the model puts "
        "in the wrong order.</p>"
    )
    table = rows("Errors", ("training on", "wrong pairs", "training, s", "peak, MiB"), errors)
    lead = (
        "<p>Each step of GST backpropagates through two segments of the graph and takes the others from a table. The "
        "memory of a step therefore does not depend on the size of the graph.</p>"
    )
    return lead + pair(
        figure(svg, caption, rows("Memory", heads, lines), heading="Memory of training"),
        f"<div><h3>Error compared with whole graphs</h3>{words}{table}</div>",
    )


def _memory_chart(segments: Sequence[Record], trained: Sequence[Record], estimate: float) -> str:
    kinds = [("baseline", "whole graph", trained), ("method", "GST", segments)]
    points = [
        (kind, name, [(number(each.get("nodes")), number(each.get("peak_mib"))) for each in entries])
        for kind, name, entries in kinds
    ]
    points = [(kind, name, [each for each in places if min(each) > 0]) for kind, name, places in points]
    every = [each for _, _, places in points for each in places]
    if not every:
        return empty("No memory was measured.")
    most_nodes = max(nodes for nodes, _ in every)
    x = Axis.fit([nodes for nodes, _ in every], 62, WIDTH - 14)
    y = Axis.fit([*(mib for _, mib in every), estimate, every[0][1] / 25], HEIGHT - 50, 14)
    out = [frame(x, y, "nodes of the graph", "MiB")]
    for kind, name, places in points:
        ends = [*places, (most_nodes, estimate)] if kind == "baseline" and estimate > 0 and places else places
        line = "L".join(f"{x(nodes)} {y(mib)}" for nodes, mib in ends)
        out.append(f'<path class="line {kind} {"d2" if kind == "baseline" else ""}" d="M{line}"/>' if ends else "")
        out += [
            mark(kind, x(nodes), y(mib), f"{name}, {whole(nodes)} nodes: {brief(mib)} MiB") for nodes, mib in places
        ]
        if ends:
            words = f"{name}: {_memory(ends[-1][1])}" + " (extrapolated)" * (len(ends) > len(places))
            out.append(
                text(x(ends[-1][0]) - 6, y(ends[-1][1]) + (20 if kind == "baseline" else -12), words, "end", "note")
            )
    told = "; ".join(
        f"{name} {brief(places[0][1])} to {brief(places[-1][1])} MiB" for _, name, places in points if places
    )
    return drawing("Peak memory by size of the graph", "".join(out), description=told)


# 2. A cost model of a real program -----------------------------------------------------------------------------------


def _tau(ranking: Record, name: str) -> str:
    tau = number(mapping(ranking.get("tau")).get(name))
    return "\u2013" if math.isnan(tau) else f"{tau:.2f}"


def _ranking_gain(ranking: Record) -> tuple[str, str, str]:
    if not ranking:
        return "\u2013", "Kendall's tau of a cost model on a real program: not finished", ""
    words = f"Kendall's tau on {whole(ranking.get('num_held_out'))} unseen layouts of AlexNet; linear regression on "
    taus = {name: number(tau) for name, tau in mapping(ranking.get("tau")).items()}
    better = taus.get("GST", math.nan) > taus.get("linear regression on sums", math.nan)
    return (
        _tau(ranking, "GST"),
        f"{words}sums {_tau(ranking, 'linear regression on sums')}",
        "good" if better else "bad",
    )


def _ranking(ranking: Record) -> str:
    predicted, measured = ([number(each) for each in listed(ranking.get(key))] for key in ("predicted", "measured"))
    points = [each for each in zip(measured, predicted, strict=False) if not any(map(math.isnan, each))]
    x, y, axes, diagonal = square([0.0, 100.0], 62, "measured place, %", "predicted place, %")
    dots = "".join(f"M{x(a)} {y(b)}h.01" for a, b in points)
    label = f"Predicted and measured places of {len(points)} layouts"
    svg = drawing(label, f'{axes}{diagonal}<path class="cloud c0" d="{dots or "M0 0"}"/>')
    table = rows(
        "Kendall's tau", ("method", "tau"), [(name, _tau(ranking, name)) for name in mapping(ranking.get("tau"))]
    )
    words = (
        f"<p>AlexNet in training on a TPU v3, {whole(ranking.get('nodes'))} operations, runtimes of TpuGraphs. The model "
        f"learned from {whole(ranking.get('num_train'))} measured layouts and ranks "
        f"{whole(ranking.get('num_held_out'))} others. Its first choice is {_percent(ranking.get('slowdown'))} slower "
        f"than the fastest of these, the median layout {_percent(ranking.get('median_slowdown'))}.</p>"
        "<p>Linear regression on sums uses features that any program has, as GST does. Regression on each node serves "
        "this one program alone.</p>"
    )
    caption = "Place 0 is the fastest layout. On the diagonal both agree."
    return pair(figure(svg, caption), f"<div>{words}{table}</div>")


def _percent(value: object) -> str:
    return f"{brief(100 * number(value))} %"


# 3. The placement loop -----------------------------------------------------------------------------------------------


def _times(placement: Record) -> tuple[float, float, float, str]:
    """Return ms of the best plan, of eager PyTorch and of the fastest compiled step, all of the second set of runs if
    they have it, and the name of that step."""
    plans = plans_of(placement)
    compiled = {name: time_of(again(each)) for name, each in plans.items() if step_kind(name) and "compiled" in name}
    ran = {name: ms for name, ms in compiled.items() if not math.isnan(ms)}
    name = min(ran, key=lambda each: ran[each], default="")
    best = time_of(again(mapping(plans.get(str(placement.get("best"))))))
    return best, time_of(again(pytorch_of(placement))), ran.get(name, math.nan), name


def _placement_words(placement: Record) -> str:
    best, eager, *_ = _times(placement)
    if step_kind(winner_of(placement)):
        return f"finds that no plan beats {_step_name(winner_of(placement))} here"
    return f"finds a plan {brief(eager / best)} times as fast as eager PyTorch"


def _step_name(name: str) -> str:
    return name.replace("compiled", "torch.compile").replace("pytorch", "eager PyTorch")


def _placement_gain(placement: Record) -> tuple[str, str, str]:
    if not placement:
        return "\u2013", "speed of the best plan compared with PyTorch: not finished", ""
    best, eager, compiled, _ = _times(placement)
    words = f"eager PyTorch / best plan on this machine; torch.compile / best plan {_ratio(compiled, best)}. "
    is_won = not step_kind(winner_of(placement))
    words += "The plan wins" if is_won else f"No plan beat {_step_name(winner_of(placement))}"
    return _ratio(eager, best), words, "good" if is_won and eager > best else ""


def _ratio(one: float, other: float) -> str:
    ratio = one / other if other > 0 else math.nan
    return "\u2013" if math.isnan(ratio) else f"{ratio:.2f}x"


def _placement(placement: Record) -> str:
    plans = {name: again(each) for name, each in plans_of(placement).items()}
    ran = sorted(
        (each for each in plans if not math.isnan(time_of(plans[each]))), key=lambda each: time_of(plans[each])
    )
    lines = [(_step_name(name), brief(time_of(plans[name])), brief(plans[name].get("simulated_ms"))) for name in ran]
    names = [str(placement.get("best")), winner_of(placement)]
    best = next((ran.index(name) for name in names[::-1] if name in ran), None)
    left_out = [(_step_name(name), plans[name].get("reason") or "did not run") for name in plans if name not in ran]
    table = rows("Plans", ("plan or step", "measured, ms", "simulated, ms"), lines, best)
    words = f"<p>{escape(placement.get('headline') or 'No headline was recorded')}.</p>"
    shown = f"<div><h3>Measured, fastest first</h3>{table}{definitions(left_out) if left_out else ''}</div>"
    return words + pair(shown, f"<div><h3>Part of the cost model</h3>{_cost_model(placement)}</div>")


def _cost_model(placement: Record) -> str:
    model, trials = mapping(placement.get("cost_model")), mappings(placement.get("measurements"))
    chosen = [each for each in trials if not math.isnan(number(each.get("predicted_ms")))]
    fastest = min(trials, key=lambda each: number(each.get("median_ms")) or math.inf, default={})
    origin = str(fastest.get("origin") or "none")
    entries = [
        (
            "model",
            {"network": "GST cost model", "sums": "linear regression on sums"}.get(str(model.get("name")), "none"),
        ),
        ("predictions", f"{whole(model.get('num_screened'))} plans predicted"),
        ("kept", f"{len(chosen)} of them measured"),
        ("learned from", f"{whole(model.get('num_measured'))} measured plans in all"),
        ("tau", f"{brief(model.get('tau'))} between predictions and later measurements"),
        ("used", f"the fastest plan of the search came from {origin}" + " and was predicted" * (fastest in chosen)),
        ("chosen", f"the best plan of all is that of {placement.get('best') or 'none'}"),
    ]
    words = (
        "<p>The model learns from measured plans how far the simulator is off, and chooses which plans to measure.</p>"
    )
    return words + definitions(entries)


def _machine(record: Record, machine: Record, parts: Sequence[Record]) -> str:
    seconds = [(name, f"{brief(part.get('seconds'))} s") for name, part in zip(PARTS, parts, strict=True) if part]
    command = escape(record.get("command") or "not recorded", 4000)
    return f"<pre><code>{command}</code></pre>{definitions([*machine.items(), *seconds])}"


GAINS: tuple[Callable[[Record], tuple[str, str, str]], ...] = (_growth_gain, _ranking_gain, _placement_gain)
SECTIONS: tuple[Callable[[Record], str], ...] = (_growth, _ranking, _placement)
