"""How a document takes over what the results say: tables between two marks, and numbers in running text.

    <!-- table: NAME -->
    the table stands here
    <!-- end -->

A number in running text is found by the sentence around it, as a format string: `"{:.2f} times as fast as"`.
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
"""The document, a sentence with a format for each number, and what gives the numbers."""

MARKED = re.compile(r"(<!-- table: ([^\n]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
FIELD = re.compile(r"\{[^}]*\}")
DIGITS = r"([-+]?[\d,]*\.?\d+)"


def result(name: str) -> Any:
    """What `experiments/results/NAME.json` holds.

    Raises:
        FileNotFoundError: nobody has measured it yet.
    """
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, the first column left and the others as they come."""
    lines = [_line(head), "|---" * len(head) + "|", *(_line(row) for row in rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def fill(text: str, tables: Tables) -> str:
    """The document with every marked table made anew. A table whose result is not there yet says so.

    Raises:
        ValueError: a mark names a table that there is not.
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
    """The document with the numbers of one sentence replaced; line ends may stand anywhere between words.

    Raises:
        ValueError: there is no such sentence, or more than one.
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


def documents() -> list[Path]:
    """README.md, the pages of the architecture, the method and the public names, and every README.md under
    experiments."""
    names = ("architecture", "explanation/method", "reference/public_names")
    pages = [ROOT / "docs" / f"{name}.md" for name in names]
    return [ROOT / "README.md", *pages, *sorted((ROOT / "experiments").rglob("README.md"))]


def up_to_date(path: Path, tables: Tables, numbers: Sequence[Number]) -> str:
    """The text of a document with its tables and numbers as the results have them."""
    text = fill(path.read_text(), tables)
    for document, sentence, values in numbers:
        if path == ROOT / document:
            text = tell(text, sentence, values())
    return text
