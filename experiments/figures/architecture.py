"""Architecture of the packages: modules, layers and imports, from the code and the contracts in pyproject.toml.

A module here is a package or a single file directly below `gst`. The picture leaves out an arrow where other arrows
already connect the same two modules (the transitive reduction).
"""

from __future__ import annotations

import ast
import math
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from experiments.figures.documents import ROOT, table

PICTURE = ROOT / "docs" / "architecture.svg"
PACKAGES = ("experiments", "gst", "embedding_cache", "partitioners")
HEIGHT, BETWEEN, GAP, LEFT, BEND = 34, 30, 18, 20, 18  # box, between layers, between boxes, margin, of a curve
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="title">
<title id="title">Packages (blue) and single files (grey) in their layers; arrows lead to what they import</title>
<style>
text {{ font: 13px sans-serif; text-anchor: middle; fill: #111 }} path {{ fill: none; stroke: #555; opacity: .75 }}
.package {{ fill: #dcebf7; stroke: #0072b2 }} .files {{ fill: #f3f3f3; stroke: #777 }} .ground {{ fill: #fff }}
</style>
<marker id="end" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0L6 3L0 6z" style="fill: #555; stroke: none"/></marker>
<rect class="ground" width="{width}" height="{height}"/>
"""
FLOW = re.compile(r"(?:^|(?<=[.:]) )([^.:;]+?) go(?:es)? in(?:\b[^;.]*;|,) (.+?),? comes? out\b")
FIRST = re.compile(r"Read `([\w/.]+\.py)`")

Imports = dict[str, list[str]]  # module -> the modules it imports


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
    inside = [list(dict.fromkeys(_module(f"gst.{name.strip()}") for name in layer.split("|"))) for layer in names]
    return [["experiments"], *inside, ["embedding_cache", "partitioners"]]


def imports() -> Imports:
    """Return the modules that each module imports."""
    import grimp

    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    below: dict[str, set[str]] = {}
    for name in graph.modules:
        imported = below.setdefault(_module(name), set())
        imported |= {_module(each) for each in graph.find_modules_directly_imported_by(name)} - {_module(name), "gst"}
    return {name: sorted(below[name]) for layer in layers() for name in layer if name in below}


def _module(name: str) -> str:
    package, *rest = name.split(".")
    return f"gst.{rest[0]}" if package == "gst" and rest else package


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


def reduced(found: Mapping[str, Collection[str]]) -> list[tuple[str, str]]:
    """Return the arrows that no longer path replaces."""

    def reach(box: str) -> set[str]:
        reached, following = set[str](), [box]
        while following:
            if (each := following.pop()) not in reached:
                reached.add(each)
                following += found.get(each, ())
        return reached

    return [
        (box, to) for box, below in found.items() for to in below
        if not any(to in reach(other) for other in below if other != to)
    ]  # fmt: skip


def picture() -> str:
    """Return the layers from the top as SVG: a box for each package, and one for all single files of a layer.

    Arrows to the next layer are straight; others bend around the boxes between, alternately left and right.
    """
    below, boxes = imports(), _boxes()
    arrows: dict[str, set[str]] = {}
    for name, imported in below.items():
        arrows.setdefault(boxes[name], set()).update(
            {boxes[each] for each in imported if each in boxes} - {boxes[name]}
        )
    levels = [list(dict.fromkeys(boxes[name] for name in layer if name in below)) for layer in layers()]
    levels = [level for level in levels if level]
    level_of = {box: number for number, level in enumerate(levels) for box in level}
    pairs = sorted(reduced(arrows), key=lambda pair: (level_of[pair[0]], level_of[pair[1]], pair))
    width = 2 * (LEFT + 0.75 * BEND * len(levels)) + max(sum(_width(box) + GAP for box in level) for level in levels)
    place: dict[str, tuple[float, float]] = {}
    for number, level in enumerate(levels):
        left = (width - sum(_width(box) + GAP for box in level) + GAP) / 2
        for box in level:
            place[box] = (left + _width(box) / 2, LEFT + number * (HEIGHT + BETWEEN))
            left += _width(box) + GAP
    height = 2 * LEFT + len(levels) * (HEIGHT + BETWEEN) - BETWEEN
    curves, side = [], 1
    for box, to in pairs:
        span = abs(level_of[to] - level_of[box])
        if span > 1:
            offsets = (place[end][0] - width / 2 for end in (to, box))
            bend = next((math.copysign(1, each) for each in offsets if each), side)
            side = -side
            curves.append(_bend(place, box, to, bend, span))
        else:
            curves.append(_straight(place[box], place[to]))
    return HEAD.format(width=width, height=height) + "\n".join([*curves, *map(_box, place, place.values()), "</svg>\n"])


def _boxes() -> dict[str, str]:
    """Return the box of each module; single files of one layer share a box, named by all of them."""
    boxes: dict[str, str] = {}
    for layer in layers():
        files = [name for name in layer if (ROOT / name.replace(".", "/")).with_suffix(".py").exists()]
        shared = ", ".join(name.removeprefix("gst.") for name in files)
        boxes |= {name: shared if name in files else name.removeprefix("gst.") for name in layer}
    return boxes


def _width(box: str) -> int:
    return 24 + 7 * len(box)


def _straight(start: tuple[float, float], end: tuple[float, float]) -> str:
    return f'<path d="M{start[0]:g} {start[1] + HEIGHT:g}L{end[0]:g} {end[1]:g}" marker-end="url(#end)"/>'


def _bend(place: Mapping[str, tuple[float, float]], box: str, to: str, side: float, span: int) -> str:
    (x, y), (across, down) = place[box], place[to]
    x, across = x + side * _width(box) / 2, across + side * _width(to) / 2
    outside = (max if side > 0 else min)(x, across) + side * BEND * span
    y, down = y + HEIGHT / 2, down + HEIGHT / 2
    return f'<path d="M{x:g} {y:g}C{outside:g} {y:g} {outside:g} {down:g} {across:g} {down:g}" marker-end="url(#end)"/>'


def _box(box: str, place: tuple[float, float]) -> str:
    x, y = place
    kind = "package" if (ROOT / "gst" / box).is_dir() or (ROOT / box).is_dir() else "files"
    return (
        f'<rect class="{kind}" x="{x - _width(box) / 2:g}" y="{y:g}" width="{_width(box)}" height="{HEIGHT}" rx="6"/>'
        f'<text x="{x:g}" y="{y + 21:g}">{escape(box)}</text>'
    )
