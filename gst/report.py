"""One page that shows what a search for a plan found: `render(record)` gives self-contained HTML.

The page needs no network, no fonts and no script (a few lines of script add zoom, and a tap that names a
node). Whatever is missing from the record becomes a sentence, not an empty chart; all text in it is escaped.
"""

from __future__ import annotations

from importlib import resources

from gst.charts import DASH, escape, whole
from gst.reporting.graph import graph
from gst.reporting.headline import facts, headline, lead
from gst.reporting.page import pair
from gst.reporting.plans import plans
from gst.reporting.record import Record, command_of, mappings, runtime_of
from gst.reporting.search import predictions, search
from gst.reporting.setting import setting
from gst.reporting.timeline import timeline

__all__ = ["headline", "render"]

SCRIPT = """
document.querySelectorAll('figure.graph').forEach(function (figure) {
  var chart = figure.querySelector('svg.chart'), told = figure.querySelector('.told'), scale = 1, last = null;
  var bar = document.createElement('div');
  bar.className = 'zoom';
  var kinds = [['\\u2212', 'zoom out', 1 / 1.5], ['+', 'zoom in', 1.5], ['fit', 'fit to the page', 0]];
  kinds.forEach(function (kind) {
    var button = document.createElement('button');
    button.type = 'button'; button.textContent = kind[0]; button.title = kind[1];
    button.setAttribute('aria-label', kind[1]);
    button.onclick = function () {
      scale = kind[2] ? Math.min(8, Math.max(1, scale * kind[2])) : 1;
      chart.style.width = 100 * scale + '%';
    };
    bar.appendChild(button);
  });
  figure.insertBefore(bar, figure.firstChild);
  if (!told) return;
  chart.addEventListener('click', function (event) {
    var title = event.target.tagName === 'circle' && event.target.querySelector('title');
    if (last) last.classList.remove('told-of');
    last = title ? event.target : null;
    if (last) last.classList.add('told-of');
    told.textContent = title ? title.textContent : '';
  });
});
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def render(record: Record) -> str:
    """The whole page. `record` is what `gst place` and `gst demo` found; every part of it may be missing or empty.

    See `gst.placement.place.Found` and `gst.placement.drawn.drawn` for what it holds.
    """
    title = headline(record)
    program = escape(record.get("program") or "program")
    what = "a published cost graph" if runtime_of(record) == "published" else "one step"
    size = f"{whole(record.get('num_nodes'))} nodes, {whole(record.get('num_edges'))} edges"
    css = resources.files("gst").joinpath("report.css").read_text(encoding="utf-8")
    command = command_of(record)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{program}: {escape(title)}</title><style>{css}</style></head>\n<body><header>"
        f'<p class="eyebrow">{command} · <strong>{program}</strong> · {what}, {size}</p>'
        f"<h1>{_unbroken(title)}</h1>{lead(record)}{facts(record)}</header>\n<main>{_body(record)}</main>\n"
        f"<footer><p>Written by {command}. This page is one file and loads nothing.</p></footer>"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _unbroken(words: str) -> str:
    """The words, escaped, with no line broken within an interval or before a unit."""
    kept = escape(words).replace(DASH, f"\u2060{DASH}\u2060")
    return kept.replace(" ms", "\u00a0ms").replace(" %", "\u00a0%")


def _body(record: Record) -> str:
    """The sections; what only a measured search has is left out where nothing was measured."""
    measured = runtime_of(record) == "measured" or mappings(record.get("measurements"))
    middle = pair(predictions(record), search(record)) if measured else ""
    return f"{plans(record)}{timeline(record)}{middle}{graph(record)}{setting(record)}"
