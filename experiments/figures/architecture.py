"""Architecture of the packages: modules and layers, from the code and the contracts in pyproject.toml.

A module here is a package or a single file directly below `gst`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path

from experiments.figures.documents import ROOT, table

PICTURE = ROOT / "docs" / "architecture.svg"
WIDTH, HEIGHT, BETWEEN, GAP = 960, 34, 14, 14  # of the picture, a box, between layers, between boxes
HEAD = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {{height}}" role="img" aria-labelledby="title">
<title id="title">Packages in their layers; each imports those below it only</title>
<style>
text {{{{ font: 13px sans-serif; text-anchor: middle; fill: #111 }}}} .ground {{{{ fill: #fff }}}}
.package {{{{ fill: #dcebf7; stroke: #0072b2 }}}}
</style>
<rect class="ground" width="{WIDTH}" height="{{height}}"/>
"""
FLOW = re.compile(r"(?:^|(?<=[.:]) )([^.:;]+?) go(?:es)? in(?:\b[^;.]*;|,) (.+?),? comes? out\b")
FIRST = re.compile(r"Read `([\w/.]+\.py)`")


@dataclass(frozen=True)
class Description:
    """The docstring of a folder, in parts; '' for a part that is missing."""

    holds: str
    goes_in: str
    comes_out: str
    first_file: str


def layers() -> list[list[str]]:
    """Return the modules of each layer, from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (names,) = [contract["layers"] for contract in contracts if contract.get("containers") == ["gst"]]
    inside = [[f"gst.{name.strip()}" for name in layer.split("|")] for layer in names]
    return [["experiments"], *inside, ["embedding_cache", "partitioners"]]


def describe(folder: Path) -> Description:
    """Return the parts of a folder's docstring: "Holds ...: A goes in; B comes out. Read `file.py` first."."""
    text = " ".join((ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "").split())
    flow, first = FLOW.search(text), FIRST.search(text)
    holds = text[: flow.start()] if flow and flow.start() else text
    holds = re.split(r"(?<=[.])\s", holds)[0].rstrip(".:")
    return Description(holds, *((flow[1].strip(), flow[2].strip()) if flow else ("", "")), first[1] if first else "")


def modules() -> str:
    """Return the table of all folders of the product, from the top layer to the bottom."""
    lines = []
    for name in (name for layer in layers()[1:] for name in layer):
        folder = ROOT / name.replace(".", "/")
        if folder.is_dir():
            each = describe(folder)
            flow = (part[:1].lower() + part[1:] for part in (each.goes_in, each.comes_out))
            lines.append([f"`{name}`", each.holds, *flow, f"`{each.first_file}`"])
    return table(("module", "holds", "goes in", "comes out", "read first"), lines)


TABLES = {"architecture": modules}


def picture() -> str:
    """Return the layers as SVG, a box for each package, the top layer first."""
    lines, y = [], BETWEEN
    for layer in layers():
        boxes = [name.removeprefix("gst.") for name in layer]
        x = (WIDTH - sum(map(_width, boxes)) - GAP * (len(boxes) - 1)) / 2
        for box in boxes:
            lines.append(f'<rect class="package" x="{x:g}" y="{y}" width="{_width(box)}" height="{HEIGHT}" rx="6"/>')
            lines.append(f'<text x="{x + _width(box) / 2:g}" y="{y + 21}">{escape(box)}</text>')
            x += _width(box) + GAP
        y += HEIGHT + BETWEEN
    return HEAD.format(height=y) + "\n".join([*lines, "</svg>\n"])


def _width(box: str) -> int:
    return 24 + 7 * len(box)
