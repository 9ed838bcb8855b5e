"""Elements of every page: frame, headings, tables, figures, legends, and access to the parts of a record.

All text from outside is escaped here. Every part of a record may be missing or of another type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from gst.reporting.charts import DASH, escape

Record = Mapping[str, Any]
"""Result of a command, as JSON holds it."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def mapping(value: Any) -> Record:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def listed(value: Any) -> Sequence[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list | tuple) else []


def mappings(value: Any) -> list[Record]:
    """Return the mappings of a list."""
    return [entry for entry in listed(value) if isinstance(entry, Mapping)]


def command_of(record: Record) -> str:
    """Return 'gst place', 'gst demo' or 'gst fit', or 'gst' if the record names another command or none."""
    named = re.match(r"gst (place|demo|fit)(?=\s|$)", str(record.get("command") or ""))
    return named.group() if named else "gst"


def page(title: str, heading: str, eyebrow: str, lead: str, body: str, command: str) -> str:
    """Return a page that is one file and loads nothing. Eyebrow, lead and body are HTML, the rest plain words."""
    css = resources.files("gst.reporting").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{css}</style></head>\n<body><header>"
        f'<p class="eyebrow">{eyebrow}</p><h1>{_unbroken(heading)}</h1>{lead}</header>\n<main>{body}</main>\n'
        f"<footer><p>Written by {escape(command)}. This page is one file and loads nothing.</p></footer>"
        "</body></html>\n"
    )


def _unbroken(words: str) -> str:
    """Return the words, escaped, with no line break within an interval or before a unit."""
    kept = escape(words).replace(DASH, f"\u2060{DASH}\u2060")
    return kept.replace(" ms", "\u00a0ms").replace(" %", "\u00a0%")


def tiles(entries: Iterable[tuple[str, str, str]]) -> str:
    """Return numbers (value, its meaning, '' or 'good' or 'bad') in large type."""
    cells = (
        f'<li><b class="{tone}">{escape(value)}</b><span>{escape(what)}</span></li>' for value, what, tone in entries
    )
    return f'<ul class="facts">{"".join(cells)}</ul>'


def definitions(entries: Iterable[tuple[Any, Any]]) -> str:
    """Return a list of names with their values; nothing without any."""
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in entries)
    return f"<dl>{pairs}</dl>" if pairs else ""


def section(name: str, title: str, *parts: str) -> str:
    """Return a section with its heading, or nothing without content; `report.css` numbers them."""
    if not any(parts):
        return ""
    head = f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>'
    return f"{head}{''.join(parts)}</section>\n"


def block(title: str, body: str) -> str:
    """Return a heading with its body, as one part of a `pair`; nothing without a body."""
    return f"<div><h3>{title}</h3>{body}</div>" if body else ""


def command_line(record: Record) -> str:
    """Return the command of a record, to be copied."""
    return f"<h3>Command</h3><pre><code>{escape(record.get('command') or 'not recorded', 4000)}</code></pre>"


def next_steps(commands: Mapping[str, str]) -> str:
    """Return commands to go on with, by their purposes, for the head of a page; nothing without any."""
    lines = "\n".join(f"{command}  # {words}" for words, command in commands.items())
    return f'<p class="next">Next</p><pre><code>{escape(lines, 4000)}</code></pre>' if commands else ""


def pair(*parts: str) -> str:
    """Return parts in two columns, or one below the other on a narrow screen; nothing without content."""
    return f'<div class="pair">{"".join(parts)}</div>' if any(parts) else ""


def rows(
    caption: str, heads: Sequence[str], lines: Iterable[Sequence[Any]], best: int | None = None, words: int = 1
) -> str:
    """Return a table of `words` columns of words, then numbers."""
    kind = ["" if column < words else ' class="num"' for column in range(len(heads))]
    head = "".join(f'<th scope="col"{css}>{escape(cell)}</th>' for css, cell in zip(kind, heads, strict=True))
    body = []
    for index, line in enumerate(lines):
        cells = "".join(f"<td{css}>{escape(cell)}</td>" for css, cell in zip(kind[1:], line[1:], strict=True))
        body.append(f'<tr{" class=best" * (index == best)}><th scope="row">{escape(line[0])}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def figure(svg: str, caption: str, table: str = "", legend: str = "", heading: str = "") -> str:
    """Return a chart of the usual width, with its table of numbers, if any, beneath; nothing without a chart."""
    if not svg:
        return ""
    title = f"<h3>{heading}</h3>" if heading else ""
    return (
        f'<div>{title}<figure><div class="plot">{svg}</div>{legend}<figcaption>{caption}</figcaption>'
        f"{details(table)}</figure></div>"
    )


def wide_figure(name: str, svg: str, caption: str, table: str, legend: str = "") -> str:
    """Return a drawing as wide as the page, which scrolls if it does not fit."""
    return (
        f"<h3>{name}</h3><figure>{legend}"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">{svg}</div>'
        f"<figcaption>{caption}</figcaption>{details(table)}</figure>"
    )


def legend(items: Iterable[tuple[str, str, str]]) -> str:
    """Return a legend of items (class, shape as SVG, words)."""
    cells = (
        f'<li class="{css}"><svg viewBox="-8 -8 16 16" aria-hidden="true">{shape}</svg>{escape(words)}</li>'
        for css, shape, words in items
    )
    return f'<ul class="legend">{"".join(cells)}</ul>'


def details(table: str, summary: str = "The same in numbers") -> str:
    """Return a table that opens on demand; nothing without a table."""
    return f"<details><summary>{summary}</summary>{table}</details>" if table else ""
