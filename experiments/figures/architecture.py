"""The house as it stands: rooms, floors and who imports whom, read from the code and the contracts in pyproject.toml.

A room is a package or a single file of `gst`. The picture leaves out an arrow where others already lead the same way
(the transitive reduction); the table has every one of them.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Collection, Mapping
from html import escape

from experiments.figures.documents import ROOT, table

PICTURE = ROOT / "docs" / "architecture.svg"
PACKAGES = ("experiments", "gst", "embedding_cache", "partitioners")
HEIGHT, BETWEEN, GAP, LEFT = 34, 40, 18, 20  # of a box, between floors, between boxes, beside the picture
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="title">
<title id="title">Packages (blue) and single files (grey) on their floors; arrows lead to what they import</title>
<style>
text {{ font: 13px sans-serif; text-anchor: middle; fill: #111 }} path {{ fill: none; stroke: #555; opacity: .75 }}
.package {{ fill: #dcebf7; stroke: #0072b2 }} .files {{ fill: #f3f3f3; stroke: #777 }} .ground {{ fill: #fff }}
</style>
<marker id="end" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0L6 3L0 6z" style="fill: #555; stroke: none"/></marker>
<rect class="ground" width="{width}" height="{height}"/>
"""

Rooms = dict[str, list[str]]  # room -> the rooms it imports


def floors() -> list[list[str]]:
    """The rooms of each floor, from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract.get("containers") == ["gst"]]
    inside = [list(dict.fromkeys(_room(f"gst.{name.strip()}") for name in layer.split("|"))) for layer in layers]
    return [["experiments"], *inside, ["embedding_cache", "partitioners"]]


def rooms() -> Rooms:
    """Who imports whom."""
    import grimp

    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    found: dict[str, set[str]] = {}
    for module in graph.modules:
        here = found.setdefault(_room(module), set())
        here |= {_room(each) for each in graph.find_modules_directly_imported_by(module)} - {_room(module), "gst"}
    return {room: sorted(found[room]) for floor in floors() for room in floor if room in found}


def _room(module: str) -> str:
    package, *rest = module.split(".")
    return f"gst.{rest[0]}" if package == "gst" and rest else package


def purpose(room: str) -> str:
    """The first sentence of its docstring."""
    path = ROOT / room.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split()).partition(". ")[0].rstrip(".")


def who_imports_whom() -> str:
    lines = (
        (f"`{room}`", purpose(room), ", ".join(each.removeprefix("gst.") for each in below))
        for room, below in rooms().items()
    )
    return table(("room", "what it is for", "imports"), lines)


TABLES = {"architecture": who_imports_whom}


def reduced(found: Mapping[str, Collection[str]]) -> list[tuple[str, str]]:
    """The arrows that no longer way replaces."""

    def reach(box: str) -> set[str]:
        return {box}.union(*(reach(each) for each in found.get(box, ())))

    return [
        (box, to) for box, below in found.items() for to in below
        if not any(to in reach(other) for other in below if other != to)
    ]  # fmt: skip


def picture() -> str:
    """The floors from the top, as SVG: a box for each package, and one for all single files of a floor."""
    found, boxes = rooms(), _boxes()
    arrows: dict[str, set[str]] = {}
    for room, below in found.items():
        arrows.setdefault(boxes[room], set()).update({boxes[each] for each in below if each in boxes} - {boxes[room]})
    levels = [list(dict.fromkeys(boxes[room] for room in floor if room in found)) for floor in floors()]
    levels = [level for level in levels if level]
    width = 2 * LEFT + max(sum(_width(box) + GAP for box in level) for level in levels)
    place: dict[str, tuple[float, float]] = {}
    for number, level in enumerate(levels):
        left = (width - sum(_width(box) + GAP for box in level) + GAP) / 2
        for box in level:
            place[box] = (left + _width(box) / 2, LEFT + number * (HEIGHT + BETWEEN))
            left += _width(box) + GAP
    height = 2 * LEFT + len(levels) * (HEIGHT + BETWEEN) - BETWEEN
    curves = [_curve(place[box], place[to]) for box, to in sorted(reduced(arrows))]
    return HEAD.format(width=width, height=height) + "\n".join([*curves, *map(_box, place, place.values()), "</svg>\n"])


def _boxes() -> dict[str, str]:
    """The box of each room; files of one floor share one, named by all of them."""
    found: dict[str, str] = {}
    for floor in floors():
        files = [room for room in floor if (ROOT / room.replace(".", "/")).with_suffix(".py").exists()]
        shared = ", ".join(room.removeprefix("gst.") for room in files)
        found |= {room: shared if room in files else room.removeprefix("gst.") for room in floor}
    return found


def _width(box: str) -> int:
    return 24 + 7 * len(box)


def _curve(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x, y), (across, down) = start, end
    y, middle = y + HEIGHT, (y + HEIGHT + down) / 2
    return f'<path d="M{x:g} {y:g}C{x:g} {middle:g} {across:g} {middle:g} {across:g} {down:g}" marker-end="url(#end)"/>'


def _box(box: str, place: tuple[float, float]) -> str:
    x, y = place
    kind = "package" if (ROOT / "gst" / box).is_dir() or (ROOT / box).is_dir() else "files"
    return (
        f'<rect class="{kind}" x="{x - _width(box) / 2:g}" y="{y:g}" width="{_width(box)}" height="{HEIGHT}" rx="6"/>'
        f'<text x="{x:g}" y="{y + 21:g}">{escape(box)}</text>'
    )
