"""Documents agree with the results; one command mends them."""

from __future__ import annotations

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

from experiments.figures import architecture
from experiments.figures import documents as docs
from experiments.figures.catalogue import TABLES
from experiments.figures.documents import COMMAND, ROOT, documents, fill, table
from experiments.figures.measured import formatted
from experiments.figures.pictures import PICTURES, draw, fingerprint

MEND = f"stale; run: {COMMAND}"
ALL = documents()
LIMIT = 150_000  # bytes of a picture


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", ALL, ids=named)
def test_tables_are_those_of_the_results_and_links_and_commands_lead_somewhere(path: Path) -> None:
    text = path.read_text()
    assert text == fill(text, TABLES), f"{named(path)} is {MEND}"
    assert [link for link in _links(text) if not (path.parent / link).exists()] == []
    assert [name for name in _modules(text) if find_spec(name) is None] == []


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_of_the_results_and_small(name: str) -> None:
    path = ROOT / name
    with Image.open(path) as picture:
        assert picture.info["Source"] == fingerprint(PICTURES[name][1]), f"{name} is {MEND}"
    assert path.stat().st_size < LIMIT


@pytest.mark.e2e
@pytest.mark.parametrize("name", PICTURES)
def test_pictures_can_be_drawn(name: str, tmp_path: Path) -> None:
    draw(name, tmp_path / "drawn.png")
    with Image.open(tmp_path / "drawn.png") as picture:
        least, most = picture.convert("L").getextrema()
        assert min(picture.size) > 200 and least < 128 < most


def test_the_drawing_is_of_the_code() -> None:
    assert architecture.PICTURE.read_text() == architecture.picture(), f"{named(architecture.PICTURE)} is {MEND}"


FOLDERS = [name for layer in architecture.layers()[1:] for name in layer if (ROOT / name.replace(".", "/")).is_dir()]


@pytest.mark.parametrize("name", FOLDERS)
def test_every_folder_tells_its_content_input_output_and_first_file(name: str) -> None:
    folder = ROOT / name.replace(".", "/")
    description = architecture.describe(folder)
    assert all((description.holds, description.goes_in, description.comes_out, description.first_file)), description
    assert (folder / description.first_file).exists()


def test_every_table_and_picture_is_shown_somewhere() -> None:
    text = {path: path.read_text() for path in ALL}
    assert {name for each in text.values() for _, name, _ in docs.MARKED.findall(each)} == set(TABLES)
    linked = {named((path.parent / link).resolve()) for path, each in text.items() for link in _links(each)}
    assert set(PICTURES) <= linked


def test_the_commands_of_the_results_can_be_run() -> None:
    commands = [str(json.loads(path.read_text()).get("command", "")) for path in docs.RESULTS.glob("*.json")]
    modules = {name for command in commands for name in _modules(command)}
    assert len(modules) > 10 and [name for name in modules if find_spec(name) is None] == []


def _links(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in link]


def _modules(text: str) -> list[str]:
    return [name for name in re.findall(r"python -m (experiments\.[\w.]+[a-z_])", text) if "NAME" not in name]


def test_another_result_makes_another_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a result that is not there is named."""
    results = shutil.copytree(docs.RESULTS, tmp_path / "results")
    placement = json.loads((results / "placement.json").read_text())
    placement["geomean"]["fused_over_pytorch"] = 9.87
    (results / "placement.json").write_text(json.dumps(placement))
    monkeypatch.setattr(docs, "RESULTS", results)
    page = (ROOT / "docs" / "results.md").read_text()
    assert "9.87" not in page and "**9.87x**" in fill(page, TABLES)
    (results / "placement.json").unlink()
    assert "results/placement.json` is not there" in fill(page, TABLES)


def test_only_what_stands_between_marks_is_replaced() -> None:
    text = "a\n<!-- table: one -->\nold\n<!-- end -->\nb\n<!-- table: two -->\n<!-- end -->\nc\n"
    tables = {"one": lambda: table(["", "x"], [["r", "1"]]), "two": lambda: "2"}
    filled = fill(text, tables)
    assert filled == fill(filled, tables)
    assert re.sub(r"<!-- table.*?end -->", "T", filled, flags=re.DOTALL) == "a\nT\nb\nT\nc\n"
    assert "|  | x |" not in filled and "| | x |\n|---|---|\n| r | 1 |" in filled and "old" not in filled
    with pytest.raises(ValueError, match=r"'one'; there are two"):
        fill(text, {"two": tables["two"]})


def test_columns_format_the_values_of_a_row() -> None:
    rows = [{"ms": 1234.5, "share": 0.123, "of": {"a b": 2}}, {"ms": None, "share": 0.5}]
    made = formatted(rows, [("time", "{ms:,.0f} ms"), ("", "{share:.1%}"), ("two", "{of[a b]}")], ["mean", "", "3"])
    assert made.splitlines()[2:] == ["| 1,234 ms | 12.3 % | 2 |", "| - | 50.0 % | - |", "| mean | | 3 |"]
