"""Documents filled from the results: tables between two marks.

<!-- table: NAME -->
the table
<!-- end -->
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"
COMMAND = "python -m experiments.figures"
MARKED = re.compile(r"(<!-- table: ([^\n]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
PAGES = (
    "architecture", "results", "performance", "reproductions", "explanation/method", "reference/commands",
    "reference/public_names",
)  # fmt: skip

Tables = Mapping[str, Callable[[], str]]


def result(name: str) -> Any:
    """Return the content of `experiments/results/NAME.json`.

    Raises:
        FileNotFoundError: there is no such file, because nothing has been measured yet.
    """
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join([_line(head), "|---" * len(head) + "|", *(_line(row) for row in rows)])


def _line(cells: Sequence[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def fill(text: str, tables: Tables) -> str:
    """Return the document with every marked table made anew; a line replaces a table whose result is missing.

    Raises:
        ValueError: a mark names an unknown table.
    """

    def made(mark: re.Match[str]) -> str:
        begin, name, end = mark.groups()
        if name not in tables:
            raise ValueError(f"no table is named {name!r}; there are {', '.join(sorted(tables))}")
        try:
            body = tables[name]()
        except FileNotFoundError as error:
            body = f"Not measured yet: `experiments/results/{Path(error.filename).name}` is not there."
        return f"{begin}\n{body}\n\n{end}"

    return MARKED.sub(made, text)


def documents() -> list[Path]:
    """Return README.md, the pages of docs/ that hold made tables, and experiments/**/README.md."""
    pages = [ROOT / "docs" / f"{name}.md" for name in PAGES]
    return [ROOT / "README.md", *pages, *sorted((ROOT / "experiments").rglob("README.md"))]
