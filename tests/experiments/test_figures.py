"""Documents agree with the results; one command mends them."""

from __future__ import annotations

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from experiments.figures import architecture, overview
from experiments.figures import documents as docs
from experiments.figures.catalogue import NUMBERS, TABLES
from experiments.figures.documents import COMMAND, ROOT, documents, fill, table, tell, up_to_date
from experiments.figures.pictures import PICTURES, draw, fingerprint

MEND = f"stale; run: {COMMAND}"
ALL = documents()
LIMIT = 150_000  # bytes of a picture


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", ALL, ids=named)
def test_tables_and_numbers_are_those_of_the_results(path: Path) -> None:
    assert path.read_text() == up_to_date(path, TABLES, NUMBERS), f"{named(path)} is {MEND}"


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_of_the_results_and_small(name: str) -> None:
    path = ROOT / name
    assert path.exists(), f"{name} is {MEND}"
    with Image.open(path) as picture:
        assert picture.info["Source"] == fingerprint(PICTURES[name][1]), f"{name} is {MEND}"
    assert path.stat().st_size < LIMIT


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_can_be_drawn(name: str, tmp_path: Path) -> None:
    draw(name, tmp_path / "drawn.png")
    with Image.open(tmp_path / "drawn.png") as picture:
        least, most = picture.convert("L").getextrema()
        assert min(picture.size) > 200 and least < 128 < most


@pytest.mark.parametrize("drawing", [architecture, overview], ids=lambda each: each.PICTURE.name)
def test_drawings_are_of_the_code(drawing: ModuleType) -> None:
    assert drawing.PICTURE.read_text() == drawing.picture(), f"{named(drawing.PICTURE)} is {MEND}"


def test_the_overview_is_legible_in_light_and_dark_and_stays_inside_its_frame() -> None:
    text = overview.picture()
    assert "@media (prefers-color-scheme: dark)" in text and 'class="ground"' in text
    assert min(float(size) for size in re.findall(r"([\d.]+)px", text)) >= 12
    places = [tuple(map(float, pair)) for pair in re.findall(r'<text x="([\d.]+)" y="([\d.]+)"', text)]
    assert len(places) > 15 and all(0 < x < overview.WIDTH and 0 < y < overview.HEIGHT for x, y in places)


def test_modules_import_lower_layers_only() -> None:
    found, layers = architecture.imports(), architecture.layers()
    level = {name: number for number, layer in enumerate(layers) for name in layer}
    below = [(name, each) for name, imported in found.items() for each in imported]
    assert len(below) > 50 and len(found) == len(level)
    assert [pair for pair in below if level[pair[0]] >= level[pair[1]]] == []


FOLDERS = [name for layer in architecture.layers()[1:] for name in layer if (ROOT / name.replace(".", "/")).is_dir()]


@pytest.mark.parametrize("name", FOLDERS)
def test_every_folder_tells_its_content_input_output_and_first_file(name: str) -> None:
    folder = ROOT / name.replace(".", "/")
    description = architecture.describe(folder)
    assert all((description.holds, description.goes_in, description.comes_out, description.first_file)), description
    assert (folder / description.first_file).exists()


def test_a_docstring_without_input_or_first_file_has_empty_parts(tmp_path: Path) -> None:
    examples = (
        (
            "Cutting: a graph goes in; segments come out.\n\nRead `cut.py`.",
            ("Cutting", "a graph", "segments", "cut.py"),
        ),
        ("Memory.\n\nKeys go in, with steps; rows come out of a table.", ("Memory", "Keys", "rows", "")),
        ("Words.", ("Words", "", "", "")),
    )
    for text, parts in examples:
        (tmp_path / "__init__.py").write_text(f'"""{text}"""')
        found = architecture.describe(tmp_path)
        assert (found.holds, found.goes_in, found.comes_out, found.first_file) == parts


def test_an_arrow_is_left_out_if_others_connect_its_ends() -> None:
    arrows = architecture.reduced({"a": ["b", "c", "d"], "b": ["c"], "c": ["d"], "d": []})
    assert arrows == [("a", "b"), ("b", "c"), ("c", "d")]


def test_every_table_and_picture_is_shown_somewhere() -> None:
    text = {path: path.read_text() for path in ALL}
    shown = {name for each in text.values() for _, name, _ in docs.MARKED.findall(each)}
    assert shown == set(TABLES)
    linked = {named((path.parent / link).resolve()) for path, each in text.items() for link in _links(each)}
    assert set(PICTURES) <= linked
    assert {document for document, _, _ in NUMBERS} <= set(map(named, ALL))


def _links(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in link]


@pytest.mark.parametrize("path", ALL, ids=named)
def test_links_lead_somewhere_and_commands_can_be_run(path: Path) -> None:
    text = path.read_text()
    assert [link for link in _links(text) if not (path.parent / link).exists()] == []
    assert [name for name in _modules(text) if find_spec(name) is None] == []


def test_the_commands_of_the_results_can_be_run() -> None:
    commands = [str(json.loads(path.read_text()).get("command", "")) for path in docs.RESULTS.glob("*.json")]
    modules = {name for command in commands for name in _modules(command)}
    assert len(modules) > 10 and [name for name in modules if find_spec(name) is None] == []


def _modules(text: str) -> list[str]:
    return [name for name in re.findall(r"python -m (experiments\.[\w.]+[a-z_])", text) if "NAME" not in name]


def test_another_result_makes_another_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a result that is not there is named, in a table; in a number it stops everything."""
    results = shutil.copytree(docs.RESULTS, tmp_path / "results")
    placement = json.loads((results / "placement.json").read_text())
    placement["geomean"]["fused_over_pytorch"] = 9.87
    (results / "placement.json").write_text(json.dumps(placement))
    monkeypatch.setattr(docs, "RESULTS", results)
    page = ROOT / "docs" / "results.md"
    before, after = page.read_text(), up_to_date(page, TABLES, NUMBERS)
    assert "9.87" not in before and "**9.87x**" in after
    assert "9.87 times as fast as plain PyTorch" in " ".join(after.split())
    (results / "placement.json").unlink()
    assert "results/placement.json` is not there" in fill(before, TABLES)
    with pytest.raises(FileNotFoundError):
        up_to_date(page, TABLES, NUMBERS)


def test_only_what_stands_between_marks_is_replaced() -> None:
    text = "a\n<!-- table: one -->\nold\n<!-- end -->\nb\n<!-- table: two -->\n<!-- end -->\nc\n"
    tables = {"one": lambda: table(["", "x"], [["r", "1"]]), "two": lambda: "2"}
    filled = fill(text, tables)
    assert filled == fill(filled, tables)
    assert re.sub(r"<!-- table.*?end -->", "T", filled, flags=re.DOTALL) == "a\nT\nb\nT\nc\n"
    assert "|  | x |" not in filled and "| | x |\n|---|---|\n| r | 1 |" in filled and "old" not in filled
    with pytest.raises(ValueError, match=r"'one'; there are two"):
        fill(text, {"two": tables["two"]})


@given(st.floats(-1e6, 1e6), st.integers(0, 10**9))
def test_a_number_is_found_by_its_sentence_and_stays(first: float, second: int) -> None:
    text, sentence = "It is 1.5 times as\nfast (of 1,000 plans). Not 7.", "{:.2f} times as fast (of {:,} plans)"
    told = tell(text, sentence, [first, second])
    assert told == f"It is {first:.2f} times as\nfast (of {second:,} plans). Not 7."
    assert tell(told, sentence, [1.5, 1000]) == text.replace("1.5", "1.50")


@pytest.mark.parametrize("text", ["nothing of it", "2 times as fast, 3 times as fast"])
def test_a_sentence_has_to_be_there_once(text: str) -> None:
    with pytest.raises(ValueError, match="sentences read"):
        tell(text, "{:.0f} times as fast", [1.0])
