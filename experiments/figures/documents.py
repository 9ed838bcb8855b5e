"""Documents filled from the results: tables between two marks, and numbers in running text.

    <!-- table: NAME -->
    the table
    <!-- end -->

A number in running text is located by the sentence around it, a format string such as `"{:.2f} times as fast as"`.
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

Tables = Mapping[str, Callable[[], str]]
Number = tuple[str, str, Callable[[], Sequence[float]]]
"""A document, a sentence with a format for each number, and the function that returns the numbers."""

MARKED = re.compile(r"(<!-- table: ([^\n]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
FIELD = re.compile(r"\{[^}]*\}")
DIGITS = r"([-+]?[\d,]*\.?\d+)"


def result(name: str) -> Any:
    """Return the content of `experiments/results/NAME.json`.

    Raises:
        FileNotFoundError: there is no such file, because nothing has been measured yet.
    """
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [_line(head), "|---" * len(head) + "|", *(_line(row) for row in rows)]
    return "\n".join(lines)


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


def tell(text: str, sentence: str, numbers: Sequence[float]) -> str:
    """Return the document with the numbers of one sentence replaced; lines may break anywhere between words.

    Raises:
        ValueError: the document does not hold this sentence exactly once.
    """
    found = list(_pattern(sentence).finditer(text))
    if len(found) != 1:
        raise ValueError(f"{len(found)} sentences read {sentence!r}, wanted one; change it in experiments/figures too")
    formats = FIELD.findall(sentence)
    for group in reversed(range(len(formats))):
        begin, end = found[0].span(group + 1)
        text = text[:begin] + formats[group].format(numbers[group]) + text[end:]
    return text


def _pattern(sentence: str) -> re.Pattern[str]:
    pieces = (r"\s+".join(map(re.escape, piece.split(" "))) for piece in FIELD.split(sentence))
    return re.compile(DIGITS.join(pieces))


PAGES = (
    "architecture", "results", "performance", "reproductions", "explanation/method", "reference/commands",
    "reference/public_names",
)  # fmt: skip


def documents() -> list[Path]:
    """Return README.md, the pages of docs/ that hold made tables, and experiments/**/README.md."""
    pages = [ROOT / "docs" / f"{name}.md" for name in PAGES]
    return [ROOT / "README.md", *pages, *sorted((ROOT / "experiments").rglob("README.md"))]


def up_to_date(path: Path, tables: Tables, numbers: Sequence[Number]) -> str:
    """Return the text of a document with its tables and numbers as in the results."""
    text = fill(path.read_text(), tables)
    for document, sentence, values in numbers:
        if path == ROOT / document:
            text = tell(text, sentence, values())
    return text
