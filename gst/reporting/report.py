"""Pages that show what a command found: `render` for `gst place` and `gst demo`, `render_training` for `gst fit`.

Each is one HTML file that needs no network and no fonts. Where scripts run, drawings can be zoomed and the operations
of one segment looked at; nothing else needs them. Whatever is missing from a record becomes a sentence, not an empty
chart; all text in it is escaped.
"""

from __future__ import annotations

from gst.reporting.charts import escape, whole
from gst.reporting.graph import graph
from gst.reporting.headline import facts, headline, lead
from gst.reporting.page import page, pair
from gst.reporting.plans import plans
from gst.reporting.record import Record, command_of, mapping, mappings, runtime_of
from gst.reporting.search import predictions, search
from gst.reporting.setting import setting
from gst.reporting.timeline import timeline
from gst.reporting.training import summary, trained, training_facts, training_lead
from gst.reporting.training_courses import courses, table_courses
from gst.reporting.training_scores import scores

__all__ = ["headline", "render", "render_training"]


def render(record: Record) -> str:
    """The page of a search. `record` is what `gst place` and `gst demo` found; all its parts may be missing or empty.

    See `gst.placement.planning.PlacementResult` and `gst.placement.drawing.plan_drawing` for what it holds.
    """
    title, program = headline(record), str(record.get("program") or "program")
    what = "a published cost graph" if runtime_of(record) == "published" else "one step"
    size = f"{whole(record.get('num_nodes'))} nodes, {whole(record.get('num_edges'))} edges"
    command = command_of(record)
    eyebrow = f"{command} · <strong>{escape(program)}</strong> · {what}, {size}"
    measured = runtime_of(record) == "measured" or mappings(record.get("measurements"))
    middle = pair(predictions(record), search(record)) if measured else ""
    body = f"{plans(record)}{timeline(record)}{middle}{graph(record)}{setting(record)}"
    return page(f"{program}: {title}", title, eyebrow, lead(record) + facts(record), body, command)


def render_training(record: Record) -> str:
    """The page of a training. `record` is what `gst.training.record` kept of it; all its parts may be missing or empty.

    See `gst.training.record.ReportPage` for what it holds.
    """
    title, command = summary(record), command_of(record)
    model = mapping(record.get("model"))
    name, variant = escape(record.get("name") or "training"), escape(model.get("variant") or "GST")
    eyebrow = f"{command} · <strong>{name}</strong> · {variant}"
    body = f"{courses(record)}{scores(record)}{table_courses(record)}{trained(record)}"
    head = training_lead(record) + training_facts(record)
    return page(f"{record.get('name') or 'training'}: {title}", title, eyebrow, head, body, command)
