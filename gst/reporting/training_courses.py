"""How a training went: loss, metrics of what was held out, and the embedding table, epoch by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gst.reporting.charts import brief, number, whole
from gst.reporting.epochs import course, over_epochs
from gst.reporting.page import details, empty, figure, pair, rows, section
from gst.reporting.record import Record, mappings

METRICS = {"tau": "Kendall's tau", "balanced_accuracy": "balanced accuracy", "accuracy": "accuracy"}
"""What trainings are judged by: the first of these that one knows."""

LOGGED = {
    **METRICS, "ordered_pairs": "pairs in order", "slowdown@1": "slowdown, first", "slowdown@5": "slowdown, best of 5",
}  # fmt: skip
TABLE = {
    "age_mean": "mean age", "age_max": "greatest age", "share_unknown": "unknown", "rows_in_use": "rows",
    "bytes": "MiB",
}  # fmt: skip


def metric_of(record: Record) -> str:
    """The key of the metric that the training is judged by; '' if it has none."""
    return next((key for key in METRICS if course(record, key, key)), "")


def best_epoch(record: Record) -> Record:
    """The epoch with the best metric; empty without a metric."""
    key = metric_of(record)
    known = [entry for entry in mappings(record.get("epochs")) if not math.isnan(number(entry.get(key)))]
    return max(known, key=lambda entry: number(entry.get(key)), default={})


def courses(record: Record) -> str:
    """Loss and metric, with all that was logged beneath."""
    loss, key = course(record, "loss", "loss"), metric_of(record)
    name = METRICS.get(key, "metric")
    title = f"Loss and {name}"
    if not loss:
        return section("courses", title, empty("No epoch was finished."))
    table = details(_table(record, {"steps": "steps", "loss": "loss", **LOGGED}, "Epochs"))
    left = figure(
        over_epochs(loss, "loss", f"Training loss over {len(loss[0][1])} epochs"),
        "The mean loss of each epoch's training steps.", heading="Loss",
    )  # fmt: skip
    held = course(record, key, name)
    if not held:
        return section(
            "courses", title, pair(left, empty("Nothing held out was scored, so there is no metric.")), table
        )
    right = figure(
        over_epochs(held, name, f"{name[0].upper()}{name[1:]} on what was held out, over {len(held[0][1])} epochs"),
        "On the validation part, after each epoch. The axis need not start at zero.",
        heading=f"{name[0].upper()}{name[1:]}, held out",
    )  # fmt: skip
    return section("courses", title, pair(left, right), table)


def table_courses(record: Record) -> str:
    """How old the rows of the table are, and for what share of keys there is none."""
    title = "The embedding table"
    ages = course(record, "age_mean", "mean") + course(record, "age_max", "greatest")
    unknown = course(record, "share_unknown", "unknown")
    if not ages or not unknown:
        return section("table", title, empty("This training kept no embedding table (--model.table true keeps one)."))
    percent = [(name, [(epoch, 100 * value) for epoch, value in points]) for name, points in unknown]
    last = {key: points[-1][1] for key in TABLE for _, points in course(record, key, key)}
    told = (
        "<p>Segments that a step does not encode anew are remembered here. After the last epoch "
        f"{whole(last.get('rows_in_use'))} rows ({brief(last.get('bytes', math.nan) / 2**20)} MiB) were "
        f"{brief(last.get('age_mean'))} steps old in the mean and {whole(last.get('age_max'))} at most; "
        f"{brief(100 * last.get('share_unknown', math.nan))} % of all keys had "
        "never been written, and count as unknown, not as zero.</p>"
    )
    left = figure(
        over_epochs(ages, "age, steps", "Age of the rows of the table, mean and greatest", zero=True),
        "Steps since a row was written.", heading="Ages",
    )  # fmt: skip
    right = figure(
        over_epochs(percent, "unknown, % of keys", "Share of keys without a row", zero=True),
        "Keys (segment and configuration) that have no row yet.", heading="Unknown share",
    )  # fmt: skip
    table = details(_table(record, TABLE, "The table by epochs"))
    return section("table", title, told, pair(left, right), table)


def _table(record: Record, names: Mapping[str, str], caption: str) -> str:
    """Those of `names` that some epoch knows."""
    known = [key for key in names if course(record, key, key)]
    lines = []
    for entry in mappings(record.get("epochs")):
        lines.append([whole(number(entry.get("epoch")) + 1), *(_value(key, entry) for key in known)])
    return rows(caption, ["epoch", *(names[key] for key in known)], lines)


def _value(key: str, entry: Record) -> str:
    value = number(entry.get(key))
    if key in METRICS:
        return brief(value) if math.isnan(value) else f"{value:.4f}"
    if key in ("share_unknown", "ordered_pairs", "slowdown@1", "slowdown@5"):
        return brief(value) if math.isnan(value) else f"{100 * value:.2f} %"
    if key in ("steps", "rows_in_use", "age_max"):
        return whole(value)
    return brief(value / 2**20 if key == "bytes" else value)
