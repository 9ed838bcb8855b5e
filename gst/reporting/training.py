"""What a training came to, in a sentence and a few numbers; and what was trained, on what, with which command."""

from __future__ import annotations

import math

from gst.reporting.charts import DASH, brief, escape, number, whole
from gst.reporting.epochs import course
from gst.reporting.page import definitions, empty, pair, rows, section, tiles
from gst.reporting.record import Record, mapping, mappings
from gst.reporting.training_courses import METRICS, best_epoch, metric_of


def summary(record: Record) -> str:
    """The metric of the best epoch, or how the loss went."""
    key, loss = metric_of(record), course(record, "loss", "loss")
    if not loss:
        return "No epoch was finished"
    points = loss[0][1]
    epochs = f"{len(points)} epoch{'s' * (len(points) != 1)}"
    if not key:
        went = f"from {brief(points[0][1])} to {brief(points[-1][1])}"
        return f"The loss went {went} in {epochs}; nothing held out was scored"
    best, name = best_epoch(record), METRICS[key]
    count, what = _held_out(record)
    where = f" on {count:,} {what} held out" if count else " on what was held out"
    when = f"after {whole(number(best.get('epoch')) + 1)} of {epochs}"
    return f"{name[0].upper()}{name[1:]} {number(best[key]):.3f}{where}, {when}"


def _held_out(record: Record) -> tuple[int, str]:
    """How many were held out, and of what."""
    graphs = mappings(mapping(record.get("held_out")).get("graphs"))
    sizes = [len(entry["measured"]) for entry in graphs if isinstance(entry.get("measured"), list)]
    return sum(sizes), "graphs" if sizes and max(sizes) == 1 else "configurations"


def training_lead(record: Record) -> str:
    """What the number of the headline is worth."""
    key = metric_of(record)
    if not key:
        return ""
    words = "It is the best of all epochs, chosen by the very part it is measured on, which flatters it a little; gst "
    words += "test says what a checkpoint is worth on the part that no epoch was chosen by."
    if key == "tau":
        words = f"Kendall's tau is 1 where the predicted order is the measured one, 0 for chance. {words}"
    return f'<p class="lead">{words}</p>'


def training_facts(record: Record) -> str:
    """The numbers that are asked for first, as tiles."""
    key, best, loss = metric_of(record), best_epoch(record), course(record, "loss", "loss")
    slower = number(best.get("slowdown@1"))
    entries = [(f"{number(best[key]):.3f}", f"{METRICS[key]}, best epoch", "")] if key else []
    if not math.isnan(slower):
        entries.append((f"{100 * slower:.1f} %", "lost by taking the one predicted fastest", ""))
    if loss:
        first, last = loss[0][1][0][1], loss[0][1][-1][1]
        entries.append((f"{brief(first)}\u00a0\u2192\u00a0{brief(last)}", "loss, first and last epoch", ""))
    trained_on = [part for part in mappings(record.get("parts")) if part.get("part") == "training"]
    for part in trained_on:
        entries.append(
            (
                whole(part.get("configurations")),
                f"configurations to learn from, graphs: {whole(part.get('graphs'))}",
                "",
            )
        )
        entries.append((whole(part.get("nodes")), f"nodes, segments: {whole(part.get('segments'))}", ""))
    entries.append((whole(mapping(record.get("model")).get("parameters")), "parameters", ""))
    entries.append((f"{brief(record.get('seconds'))} s", "this run, from start to end", ""))
    return tiles(entries)


def trained(record: Record) -> str:
    """Model, data and its parts, machine, command, checkpoints."""
    parts = [
        [part.get("part"), *(whole(part.get(key)) for key in ("graphs", "nodes", "segments", "configurations"))]
        for part in mappings(record.get("parts"))
    ]
    heads = ("part", "graphs", "nodes", "segments", "configurations")
    table = rows("Parts of the data", heads, parts) if parts else empty("The parts of the data were not recorded.")
    listed = record.get("checkpoints")
    kept = [str(path) for path in listed] if isinstance(listed, list | tuple) else []
    files = ", ".join(kept) if kept else DASH
    model, data, machine = (_facts(record, key) for key in ("model", "data", "machine"))
    return section(
        "trained",
        "What was trained, on what",
        pair(f"<div><h3>Model</h3>{model}</div>", f"<div><h3>Data</h3>{data}</div>"),
        table,
        f"<h3>Command</h3><pre><code>{escape(record.get('command') or 'not recorded', 4000)}</code></pre>",
        pair(
            f"<div><h3>Machine</h3>{machine}</div>",
            f'<div><h3>Checkpoints</h3><p class="files">{escape(files, 2000)}</p></div>',
        ),
    )


def _facts(record: Record, key: str) -> str:
    known = mapping(record.get(key))
    told = ((name, whole(value) if isinstance(value, int) else value) for name, value in known.items())
    return definitions(told) if known else empty("Not recorded.")
