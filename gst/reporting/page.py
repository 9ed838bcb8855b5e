"""What every section is made of: headings, tables, figures, legends. All text from outside is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gst.charts import CROSS, SHAPES, escape, mark

KINDS = {"baseline": "baseline", "method": "search method", "mutation": "mutation", "uncertain": "uncertain"}


def section(name: str, title: str, *parts: str) -> str:
    """A section with its heading; `report.css` numbers them."""
    head = f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>'
    return f"{head}{''.join(parts)}</section>\n"


def pair(*parts: str) -> str:
    """Parts beside each other where there is room, else below each other."""
    return f'<div class="pair">{"".join(parts)}</div>'


def empty(sentence: str) -> str:
    """What stands where there is nothing to show."""
    return f'<p class="empty">{sentence}</p>'


def rows(
    caption: str, heads: Sequence[str], lines: Iterable[Sequence[Any]], best: int | None = None, words: int = 1
) -> str:
    """A table whose first `words` columns are words and whose others are numbers, in a box that scrolls."""
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
    """A chart of the usual width, with the same in numbers beneath where there is a table."""
    title = f"<h3>{heading}</h3>" if heading else ""
    return (
        f'<div>{title}<figure><div class="plot">{svg}</div>{legend}<figcaption>{caption}</figcaption>'
        f"{_details(table)}</figure></div>"
    )


def wide_figure(name: str, svg: str, caption: str, table: str, legend: str = "", told: bool = False) -> str:
    """A drawing as wide as the page, which scrolls where it does not fit and has buttons to zoom.

    With `told` a tap on a circle shows its title beneath.
    """
    line = '<p class="told" aria-live="polite"></p>' if told else ""
    return (
        f'<h3>{name}</h3><figure class="graph">{legend}'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">{svg}</div>'
        f'{line}<figcaption>{caption}</figcaption>{_details(table)}</figure>'
    )


def legend(items: Iterable[tuple[str, str, str]]) -> str:
    """Items (class, shape as SVG, words)."""
    cells = (
        f'<li class="{css}"><svg viewBox="-8 -8 16 16" aria-hidden="true">{shape}</svg>{escape(words)}</li>'
        for css, shape, words in items
    )
    return f'<ul class="legend">{"".join(cells)}</ul>'


def kind_legend(kinds: set[str], failed: bool = False) -> str:
    """The marks of these kinds of plans, see `gst.reporting.record.kind_of`, and that of a failure."""
    shown = [("", mark(kind, 0, 0), KINDS[kind]) for kind in SHAPES if kind in kinds]
    return legend(shown + [("", f'<path class="mark failed" d="{CROSS}"/>', "failed")] * failed)


def _details(table: str) -> str:
    return f"<details><summary>The same in numbers</summary>{table}</details>" if table else ""
