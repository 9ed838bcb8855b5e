"""Page of a training (`gst fit`): its result, loss and metrics by epoch, held-out predictions, the embedding table."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64

from gst.reporting import page
from gst.reporting.charts import DASH, Course, brief, compared, escape, intervals, number, over_epochs, whole
from gst.reporting.page import Record, command_of, listed, mapping, mappings

MAX_POINTS, MAX_GRAPHS, MAX_CLASSES = 2_000, 200, 30

TABLE = {
    "age_mean": "mean age", "age_max": "greatest age", "share_unknown": "unknown", "rows_in_use": "rows",
    "bytes": "MiB",
}  # fmt: skip

PerConfig = Float64[np.ndarray, " configs"]

TOLD = {
    "runtime": "The model names a runtime. On the dashed diagonal it is exact; above it the program was slower.",
    "value": "On the dashed diagonal a prediction is exact.",
    "order": "The model orders configurations and names no time, so both axes are places among the configurations of "
    "the same graph: 0 % is the fastest, 100 % the slowest. Points on the dashed diagonal are in their place.",
}
AXES = {
    "runtime": ("predicted runtime", "measured runtime"),
    "value": ("predicted", "measured"),
    "order": ("predicted place, %", "measured place, %"),
}


def render_training(record: Record) -> str:
    """Return the page of a training, given the record of `gst.training.record.ReportPage`; all parts may be missing."""
    title, command = summary(record), command_of(record)
    model = mapping(record.get("model"))
    name, variant = escape(record.get("name") or "training"), escape(model.get("variant") or "GST")
    eyebrow = f"{command} · <strong>{name}</strong> · {variant} · {brief(record.get('seconds'))} s"
    body = f"{courses(record)}{scores(record)}{explained(record)}{table_courses(record)}{trained(record)}"
    head = training_lead(record) + page.next_steps(_next(record)) + training_facts(record)
    return page.page(f"{record.get('name') or 'training'}: {title}", title, eyebrow, head, body, command)


def _next(record: Record) -> dict[str, str]:
    """Return the command of a longer training if the control is as good, else those that use the best checkpoint."""
    command, checkpoint = str(record.get("command") or ""), next(iter(listed(record.get("checkpoints"))), "")
    if not command.startswith("gst fit ") or not checkpoint:
        return {}
    if is_beaten(record):
        return {"train for longer": f"{command} --trainer.max_epochs={2 * len(listed(record.get('epochs')))}"}
    path = shlex.quote(str(checkpoint))
    test = f"{command.replace('fit', 'test', 1)} --ckpt_path={path}"
    return {"score on the test part": test, "order configurations": f"gst rank {path} PROGRAM.npz --explain"}


def summary(record: Record) -> str:
    """Return the metric of the best epoch, or the course of the loss, in one line."""
    key, loss = metric_of(record), course(record, "loss", "loss")
    if not loss:
        return "No epoch was finished"
    points = loss[0][1]
    epochs = f"{len(points)} epoch{'s' * (len(points) != 1)}"
    if not key:
        went = f"from {brief(points[0][1])} to {brief(points[-1][1])}"
        return f"The loss went {went} in {epochs}; nothing held out was scored"
    best, name = best_epoch(record), metrics_of(record)[key]
    count, what = _held_out(record)
    where = f" on {count:,} {what} held out" if count else " on what was held out"
    when = f"after {whole(number(best.get('epoch')) + 1)} of {epochs}"
    lost = f"; {figure_of(record, key, control_of(record))} by ridge regression on sums" if is_beaten(record) else ""
    return f"{name[0].upper()}{name[1:]} {figure_of(record, key, best)}{where}, {when}{lost}"


def control_of(record: Record) -> Record:
    """Return the metrics of the control, ridge regression on features summed over each graph; may be empty."""
    return mapping(record.get("control"))


def is_beaten(record: Record) -> bool:
    """Return True if the control predicts at least as well as the best epoch."""
    key = metric_of(record)
    sign = -1 if _is_error(record, key) else 1
    return sign * number(control_of(record).get(key)) >= sign * number(best_epoch(record).get(key))


def figure_of(record: Record, key: str, entry: Record) -> str:
    """Return a metric in three places, or three digits of an error, which has the unit of the targets."""
    return brief(entry[key]) if _is_error(record, key) else f"{number(entry[key]):.3f}"


def metrics_of(record: Record) -> dict[str, str]:
    """Return the words for each metric, in their order: the first that a training has counts."""
    described = {key: mapping(each) for key, each in mapping(record.get("metrics")).items()}
    return {key: str(each.get("words") or key) for key, each in described.items()}


def _is_error(record: Record, key: str) -> bool:
    """Return True if less of the metric is better."""
    return bool(mapping(mapping(record.get("metrics")).get(key)).get("direction") == "min")


def _held_out(record: Record) -> tuple[int, str]:
    """Return the number of held-out targets, and the noun for them."""
    graphs = mappings(mapping(record.get("held_out")).get("graphs"))
    sizes = [len(entry["measured"]) for entry in graphs if isinstance(entry.get("measured"), list)]
    return sum(sizes), "graphs" if sizes and max(sizes) == 1 else "configurations"


def training_lead(record: Record) -> str:
    """Return a paragraph on the meaning of the number in the headline, and on how sure it is."""
    key = metric_of(record)
    if not key:
        return ""
    words = "It is the best of all epochs, chosen by the very part it is measured on, which flatters it a little; gst "
    words += "test says what a checkpoint is worth on the part that no epoch was chosen by."
    if key == "tau":
        words = f"Kendall's tau is 1 where the predicted order is the measured one, 0 for chance. {words}"
        graphs = [(tau, len(measured)) for _, _, measured, tau in _graphs(mapping(record.get("held_out")))]
        variance = sum(2 * (1 - tau**2) / count for tau, count in graphs)  # a bound: Kendall 1948
        if not math.isnan(half := number(1.96 * variance**0.5 / len(graphs) if graphs else None)):
            words += f" Its 95 % interval over the choice of held-out configurations is \u00b1{half:.2f}."
    if is_beaten(record):
        words += " The control needs no network. Other remedies: another learning rate, fewer configurations a step."
    return f'<p class="lead">{words}</p>'


def training_facts(record: Record) -> str:
    """Return the most important numbers as tiles."""
    key, best, loss = metric_of(record), best_epoch(record), course(record, "loss", "loss")
    slower = number(best.get("slowdown@1"))
    entries = [(figure_of(record, key, best), f"{metrics_of(record)[key]}, best epoch", "")] if key else []
    if key in control_of(record):
        of = f"{metrics_of(record)[key]} of the control, ridge regression on sums"
        entries.append((figure_of(record, key, control_of(record)), of, ""))
    if not math.isnan(slower):
        entries.append((f"{100 * slower:.1f} %", "lost by taking the one predicted fastest", ""))
    if loss:
        values = [brief(value) for _, value in loss[0][1]]
        ends = (f"{values[0]}\u00a0\u2192\u00a0{values[-1]}", "mean loss, first and last epoch", "")
        entries.append(ends if len(values) > 1 else (values[0], "mean loss", ""))
    return page.tiles(entries)


def course(record: Record, key: str, name: str) -> list[Course]:
    """Return the values of `key` over the epochs; nothing if no epoch has it."""
    points = [(number(entry.get("epoch")) + 1, number(entry.get(key))) for entry in mappings(record.get("epochs"))]
    known = [point for point in points if not any(map(math.isnan, point))]
    return [(name, sorted(known))] if known else []


def metric_of(record: Record) -> str:
    """Return the key of the metric of the training; '' if it has none."""
    return next((key for key in metrics_of(record) if course(record, key, key)), "")


def best_epoch(record: Record) -> Record:
    """Return the epoch with the best metric; empty without a metric."""
    key = metric_of(record)
    known = [entry for entry in mappings(record.get("epochs")) if not math.isnan(number(entry.get(key)))]
    sign = -1 if _is_error(record, key) else 1
    return max(known, key=lambda entry: sign * number(entry.get(key)), default={})


def courses(record: Record) -> str:
    """Return charts of loss and metric, if there are two epochs, and a table of all logged values."""
    loss, key = course(record, "loss", "loss"), metric_of(record)
    name = metrics_of(record).get(key, "metric")
    title = escape(f"Loss and {name}")
    if not loss:
        return ""
    table = _table(record, {"steps": "steps", "loss": "mean loss", **metrics_of(record)}, "Epochs")
    if len(loss[0][1]) == 1:
        return page.section("courses", title, table)
    left = page.figure(
        over_epochs(loss, "loss", f"Training loss over {len(loss[0][1])} epochs"),
        "The mean loss of each epoch's training steps, train/loss_mean in the log and in W&B.",
        heading="Loss",
    )
    held, right = course(record, key, name), ""
    if held:
        capital = f"{name[0].upper()}{name[1:]}"
        more = ""
        if not math.isnan(value := number(control_of(record).get(key))):
            held += [("ridge on sums", [(epoch, value) for epoch, _ in held[0][1]])]
            more = " The control is ridge regression on features summed over each graph."
        right = page.figure(
            over_epochs(held, name, f"{capital} on what was held out, over {len(held[0][1])} epochs"),
            f"On the validation part, after each epoch. The axis need not start at zero.{more}",
            heading=escape(f"{capital}, held out"),
        )
    return page.section("courses", title, page.pair(left, right), page.details(table))


def table_courses(record: Record) -> str:
    """Return a chart of the ages of the table's rows, and a table of all that is logged of it."""
    ages = course(record, "age_mean", "mean") + course(record, "age_max", "greatest")
    if not ages:
        return ""
    last = {key: points[-1][1] for key in TABLE for _, points in course(record, key, key)}
    told = (
        "<p>Segments that a step does not encode anew are remembered here. After the last epoch "
        f"{whole(last.get('rows_in_use'))} rows ({brief(last.get('bytes', math.nan) / 2**20)} MiB) were "
        f"{brief(last.get('age_mean'))} steps old in the mean and {whole(last.get('age_max'))} at most; "
        f"{brief(100 * last.get('share_unknown', math.nan))} % of all keys had "
        "never been written, and count as unknown, not as zero.</p>"
    )
    table = _table(record, TABLE, "The table by epochs")
    if len(ages[0][1]) == 1:
        return page.section("table", "The embedding table", told, table)
    chart = page.figure(
        over_epochs(ages, "age, steps", "Age of the rows of the table, mean and greatest", zero=True),
        "Steps since a row was written: mean (solid) and greatest (dashed).",
        heading="Ages",
    )
    return page.section("table", "The embedding table", told, chart, page.details(table))


def _table(record: Record, names: Mapping[str, str], caption: str) -> str:
    """Return a table of those of `names` that some epoch has."""
    known = [key for key in names if course(record, key, key)]
    lines = []
    for entry in mappings(record.get("epochs")):
        lines.append([whole(number(entry.get("epoch")) + 1), *(_value(record, key, entry) for key in known)])
    return page.rows(caption, ["epoch", *(names[key] for key in known)], lines)


def _value(record: Record, key: str, entry: Record) -> str:
    value, metric = number(entry.get(key)), mapping(mapping(record.get("metrics")).get(key))
    if key == "share_unknown" or metric.get("is_share"):
        return brief(value) if math.isnan(value) else f"{100 * value:.2f} %"
    if metric.get("direction") == "max":
        return brief(value) if math.isnan(value) else f"{value:.4f}"
    if key in ("steps", "rows_in_use", "age_max"):
        return whole(value)
    return brief(value / 2**20 if key == "bytes" else value)


def scores(record: Record, more: str = "") -> str:
    """Return a point for each held-out configuration, or a table of classes; a line for each graph; and `more`."""
    title, held = "Predicted against measured, held out", mapping(record.get("held_out"))
    graphs = _graphs(held)
    if not graphs:
        return page.section("scores", title, more)
    kind = str(held.get("kind"))
    count = sum(len(measured) for _, _, measured, _ in graphs)
    epoch = number(held.get("epoch")) + 1
    when = f"<p>{count:,} targets that were held out{'' if math.isnan(epoch) else f', after epoch {epoch:.0f}'}.</p>"
    if kind == "class":
        told = "<p>A row for each true class, a column for each predicted one; right are those on the diagonal.</p>"
        return page.section("scores", title, when + told, _classes(graphs))
    kind = kind if kind in AXES else "order"
    predicted, measured = _points(graphs, kind)
    shown = np.unique(np.linspace(0, count - 1, min(count, MAX_POINTS)).astype(np.int64))
    shown = np.argsort(measured, kind="stable")[shown]
    x_label, y_label = AXES[kind]
    label = f"{y_label[0].upper()}{y_label[1:]} against {x_label} of {count:,} held-out configurations"
    svg = compared(predicted[shown], measured[shown], x_label, y_label, label)
    fewer = f" {len(shown):,} of {count:,} points are drawn." if len(shown) < count else ""
    chart = page.figure(svg, TOLD[kind] + fewer, heading="All of them")
    return page.section("scores", title, when, chart, _by_graph(graphs, str(held.get("unit") or "")), more)


def explained(record: Record) -> str:
    """Return charts of the segments and operations that separate slow from fast configurations."""
    why, figures = mapping(record.get("explained")), []
    unit = number(why.get("difference")) / 100 or math.nan
    for key in ("segments", "operations"):
        shares = [(str(each[0]), number(each[1]) / unit) for each in listed(why.get(key)) if len(listed(each)) == 2]
        bars = [(name, min(share, 0.0), share, max(share, 0.0), "best") for name, share in shares if share == share]
        svg = intervals(bars, 0.0, f"Contributions of {key}", "% of the difference") if bars else ""
        table = page.rows(key, (key, "% of the difference"), [(name, brief(share)) for name, share in shares])
        figures.append(page.figure(svg, f"The {key} that contribute most.", table, heading=key.capitalize()))
    told = f"<p>{escape(why.get('words') or '')} The model is that of the last epoch.</p>"
    return (
        page.section("explained", "Slow against fast configurations", told, page.pair(*figures)) if any(figures) else ""
    )


def _graphs(held: Record) -> list[tuple[str, PerConfig, PerConfig, float]]:
    """Return name, predicted, measured and tau of each graph; pairs that are not finite are left out."""
    found = []
    for entry in mappings(held.get("graphs")):
        pairs = list(zip(listed(entry.get("predicted")), listed(entry.get("measured")), strict=False))
        predicted, measured = (np.array([number(each[side]) for each in pairs], np.float64) for side in (0, 1))
        known = np.isfinite(predicted) & np.isfinite(measured)
        if known.any():
            found.append((str(entry.get("graph")), predicted[known], measured[known], number(entry.get("tau"))))
    return found


def _points(graphs: list[tuple[str, PerConfig, PerConfig, float]], kind: str) -> tuple[PerConfig, PerConfig]:
    """Return all pairs; for 'order' as places (0..100) within their graph, or among all graphs of one target each."""
    pairs = [(predicted, measured) for _, predicted, measured, _ in graphs]
    if all(len(measured) == 1 for _, measured in pairs):
        pairs = [(np.concatenate([each[0] for each in pairs]), np.concatenate([each[1] for each in pairs]))]
    if kind == "order":
        pairs = [(_places(predicted), _places(measured)) for predicted, measured in pairs]
    return np.concatenate([each[0] for each in pairs]), np.concatenate([each[1] for each in pairs])


def _places(values: PerConfig) -> PerConfig:
    """Return the place of each among all, 0..100; equal values have the middle of theirs."""
    ordered = np.sort(values)
    middle = (np.searchsorted(ordered, values) + np.searchsorted(ordered, values, side="right") - 1) / 2
    return 100 * middle / max(len(values) - 1, 1)


def _by_graph(graphs: list[tuple[str, PerConfig, PerConfig, float]], unit: str) -> str:
    """Return a table of graphs with the measured value of the configuration that was predicted first, in `unit`."""
    lines = []
    for name, predicted, measured, tau in graphs[:MAX_GRAPHS]:
        first, best = float(measured[predicted.argmin()]), float(measured.min())
        slower = f"{100 * (first / best - 1):.1f} %" if best > 0 else DASH
        order = DASH if math.isnan(tau) else f"{tau:.3f}"
        lines.append((name, f"{len(measured):,}", order, brief(best), brief(first), slower))
    of = unit or "unit of targets"
    heads = ("graph", "held out", "tau", f"least, {of}", f"first, {of}", "slower")
    more = f" The first {MAX_GRAPHS} of {len(graphs):,}." if len(graphs) > MAX_GRAPHS else ""
    told = (
        '<p class="note-line">Least is the least that was measured, first what was measured of the configuration with '
        f"the lowest score, in {escape(unit or 'the unit of the targets')}.{more}</p>"
    )
    return page.block("Graph by graph", page.rows("Graphs", heads, lines) + told)


def _classes(graphs: list[tuple[str, PerConfig, PerConfig, float]]) -> str:
    predicted, measured = (np.concatenate([each[side] for each in graphs]).astype(np.int64) for side in (1, 2))
    classes = np.unique(np.concatenate([predicted, measured])).tolist()[:MAX_CLASSES]
    lines = []
    for true in classes:
        counts = [int(((measured == true) & (predicted == said)).sum()) for said in classes]
        right = counts[classes.index(true)] / max(int((measured == true).sum()), 1)
        lines.append((f"true {true}", *counts, f"{100 * right:.1f} %"))
    return page.rows("Classes", ["", *(f"as {escape(said)}" for said in classes), "right"], lines)


def trained(record: Record) -> str:
    """Return model, data and its parts, machine, command, checkpoints."""
    parts = [
        [part.get("part"), *(whole(part.get(key)) for key in ("graphs", "nodes", "segments", "configurations"))]
        for part in mappings(record.get("parts"))
    ]
    heads = ("part", "graphs", "nodes", "segments", "configurations")
    table = page.rows("Parts of the data", heads, parts) if parts else ""
    files = escape(", ".join(str(path) for path in listed(record.get("checkpoints"))) or DASH, 2000)
    model, data, machine = (_facts(record, key) for key in ("model", "data", "machine"))
    return page.section(
        "trained",
        "What was trained, on what",
        page.pair(page.block("Model", model), page.block("Data", data)),
        table,
        page.command_line(record),
        page.pair(page.block("Machine", machine), page.block("Checkpoints", f'<p class="files">{files}</p>')),
    )


def _facts(record: Record, key: str) -> str:
    known = mapping(record.get(key))
    told = ((name, whole(value) if isinstance(value, int) else value) for name, value in known.items())
    return page.definitions(told)
