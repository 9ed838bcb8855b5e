"""The documentation holds: its code runs, its links lead somewhere, and it builds without the network."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from os import environ, pathsep
from pathlib import Path

import pytest
import yaml

from gst.machine.devices import usable_cores
from gst.util.compiled import compiler
from tests.docs.pages import OUTPUT, Page

ROOT = Path(__file__).parents[2]
OURS = ("gst", "embedding_cache", "partitioners", "experiments")
DOCS = sorted((ROOT / "docs").rglob("*.md"))
FRONT = [path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if path.exists()]
PAGES = {str(path.relative_to(ROOT)): Page(path) for path in [*FRONT, *DOCS]}
SECONDS = 850
MORE_SECONDS = {"README.md": 1500}  # of training, sweep and search as they are written

NOT_EXECUTED = {
    "CONTRIBUTING.md": 1,
    "docs/fleet.md": 3,
    "docs/how-to/place_my_model.md": 3,
    "docs/operations.md": 2,
    "docs/scale.md": 1,
    "docs/sweeps.md": 1,
    "docs/tutorial.md": 1,
}
"""Blocks of each page that no test runs; the page says why, above each."""

QUICKER = {
    "docs/how-to/place_my_model.md": {
        "import torch, gst\nmodel": "import torch, gst\nfrom gst.placement.planning import Settings\nmodel",
        "budget=20": 'budget=0, settings=Settings(methods=("annealing",), patience_s=0, compile_step=False)',
    },
    "docs/tutorial.md": {
        "--budget 6": "--budget 6 --no-compile",
        "epochs=40": "epochs=8",
        "for _ in range(20):": "for _ in range(2):",
    },
    "docs/sweeps.md": {"--trials 2": "--trials 1", "--trials 3": "--trials 2"},
    "docs/how-to/my_gnn.md": {"for _ in range(40):": "for _ in range(4):", "max_epochs 3": "max_epochs 1"},
    "docs/how-to/my_cost_model.md": {"epochs=60": "epochs=12"},
}
"""What a test runs instead: measurements wait for quiet cores, which a machine that runs tests has not, and other
numbers of steps and trials change nothing but the numbers that a page prints."""

REMOTE = re.compile(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(?:https?:)?//|<link[^>]*\shref=\"?(?:https?:)?//")
"""What a browser would fetch from elsewhere to show a page."""

every_page = pytest.mark.parametrize("name", PAGES)


def run(name: str, directory: Path) -> str:
    """Run the blocks of a page as a reader would, in a process of their own; returns what they print."""
    here, copy, text = directory / "here", directory / Path(name).name, PAGES[name].text
    here.mkdir()
    (here / "experiments").symlink_to(ROOT / "experiments")
    for usual, quicker in QUICKER.get(name, {}).items():
        assert usual in text, usual
        text = text.replace(usual, quicker)
    copy.write_text(text)
    path = pathsep.join([str(Path(sys.executable).parent), environ["PATH"]])
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("run_page.py")), str(copy)], cwd=here,
        env=environ | {"PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=MORE_SECONDS.get(name, SECONDS),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


# The code --------------------------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(max(MORE_SECONDS.values()) + 50)
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.skipif(len(usable_cores()) < 2, reason="this machine has one core, the pages place on two")
@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if any(each.runs for each in page.fences)])
def test_the_code_of_a_page_runs(name: str, tmp_path: Path) -> None:
    printed = run(name, tmp_path)
    if name == "README.md":
        found = re.search(r"unseen graphs: (\S+), of the mean label: (\S+)", printed)
        assert found is not None and float(found[1]) < 0.1 * float(found[2])
        looked_at = [tmp_path / "here" / place for place in re.findall(r"^Look at (\S+)$", printed, re.MULTILINE)]
        assert len(looked_at) == 4 and all(place.exists() for place in looked_at), printed
        assert "The best again: WANDB_MODE=offline gst fit --config=" in printed
    if name == "docs/how-to/place_my_model.md":
        assert "no plan can take less than" in printed


def test_the_program_of_the_readme_has_twenty_lines_and_a_model_is_placed_in_five() -> None:
    (program,) = [each.source for each in PAGES["README.md"].fences if each.language == "python"]
    placed = [each.source for each in PAGES["docs/how-to/place_my_model.md"].fences if "gst.place(" in each.source]
    assert program.count("\n") <= 20 and placed[0].count("\n") <= 5


def test_what_is_not_executed_is_little_and_says_why() -> None:
    excused = {name: [fence.excuse for fence in page.fences if fence.excuse] for name, page in PAGES.items()}
    assert all(len(reason.split()) > 2 for reasons in excused.values() for reason in reasons), excused
    assert {name: len(reasons) for name, reasons in excused.items() if reasons} == NOT_EXECUTED, excused


@every_page
def test_every_fence_is_seen_and_of_the_docs_names_its_language(name: str) -> None:
    page = PAGES[name]
    marks = re.findall(r"^\s*(?:```|~~~)", page.text, re.MULTILINE)
    assert len(marks) == 2 * len(page.fences), "a fence inside an indented block would never run"
    if name.startswith("docs/"):
        assert not [fence.line for fence in page.fences if not fence.language], "write ```text where nothing is to run"


@pytest.mark.parametrize("name", [str(path.relative_to(ROOT)) for path in DOCS])
def test_an_output_follows_what_prints_it(name: str) -> None:
    before = None
    for fence in PAGES[name].fences:
        if fence.title == OUTPUT:
            assert before is not None and before.runs and not before.title, fence.line
        before = fence


@every_page
def test_names_that_a_page_imports_exist(name: str) -> None:
    for fence in PAGES[name].fences:
        for node in ast.walk(ast.parse(fence.source)) if fence.language == "python" else ():
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in OURS:
                exec(compile(ast.Module([node], []), name, "exec"), {})


# The links -------------------------------------------------------------------------------------------


@every_page
def test_links_lead_to_files_and_headings(name: str) -> None:
    page = PAGES[name]
    for link in page.links:
        target, _, anchor = link.partition("#")
        path = (page.path.parent / target).resolve() if target else page.path
        assert path.exists(), f"{name}: {link} is not there"
        if anchor and path.suffix == ".md":
            assert anchor in Page(path).anchors, f"{name}: {link} is no heading of that page"
        if name.startswith("docs/"):
            assert path.is_relative_to(ROOT / "docs"), f"{name}: {link} would lead out of the site"


# The site --------------------------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_needs_no_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs mkdocs-material: pip install .[docs]")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-6000:]
    built = {path: path.read_text() for path in tmp_path.rglob("*.html")}
    assert len(built) > len(DOCS)
    assert not {str(path): found for path, text in built.items() if (found := REMOTE.findall(text))}
    styles = "".join(path.read_text() for path in tmp_path.rglob("*.css"))
    assert not re.findall(r"url\([\"']?(?:https?:)?//|@import", styles)
    reference = "".join(text for path, text in built.items() if "reference" in path.parts)
    names = "gst.method.estimator.GraphSegmentTraining", "embedding_cache.table.EmbeddingTable", "gst.nn.encoders.SAGE"
    for name in names:
        assert f'id="{name}"' in reference


def test_every_page_is_in_the_navigation() -> None:
    navigation = str(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert [str(path) for path in DOCS if f"'{path.relative_to(ROOT / 'docs')}'" not in navigation] == []
