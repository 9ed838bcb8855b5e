"""Documents agree with the results; one command mends them."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

from experiments.figures import architecture
from experiments.figures import documents as docs
from experiments.figures.catalogue import TABLES
from experiments.figures.documents import COMMAND, ROOT, documents, fill
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


def test_the_commands_of_the_results_can_be_run() -> None:
    commands = [str(json.loads(path.read_text()).get("command", "")) for path in docs.RESULTS.glob("*.json")]
    modules = {name for command in commands for name in _modules(command)}
    assert len(modules) > 10 and [name for name in modules if find_spec(name) is None] == []


def _links(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in link]


def _modules(text: str) -> list[str]:
    return [name for name in re.findall(r"python -m (experiments\.[\w.]+[a-z_])", text) if "NAME" not in name]
