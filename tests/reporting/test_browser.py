"""Pages in a real browser: they load without complaint, fit a phone, and follow the colour scheme."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import PROGRAM, Chromium, Tab
from made_records import make_record
from made_training import make_training
from report_html import colours

from gst.reporting.placement import render
from gst.reporting.training import render_training

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]

SAYS = {
    "place": ("Best plan", "41.2", "61.8", "1.50x", "4,321", "gst place rnnlm --out runs/rnnlm"),
    "simulated": ("lower bound 38.5", "7.01", "No plan was run"),
    "large": ("50,000 nodes",),
    "fit": ("Kendall's tau 0.720", "21,905", "GST+ED", "best.ckpt"),
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    opened = Chromium(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    written = {
        "place": render(make_record()),
        "simulated": render(make_record(runtime="simulated")),
        "large": render(make_record(50_000)),
        "fit": render_training(make_training()),
    }
    folder = tmp_path_factory.mktemp("pages")
    for name, page in written.items():
        (folder / f"{name}.html").write_text(page)
    return {name: folder / f"{name}.html" for name in written}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", SAYS)
def test_a_page_fits_a_phone_and_says_its_numbers(
    name: str, dark: bool, browser: Chromium, pages: dict[str, Path]
) -> None:
    tab = Tab(browser, pages[name], 320, 640, dark)
    assert tab.value("document.documentElement.scrollWidth") <= 320
    words = " ".join(tab.value("document.body.innerText").replace("\u2060", "").split())
    assert [each for each in SAYS[name] if each not in words] == []
    paper = colours(dark)["paper"]
    shown = tuple(int(paper[at : at + 2], 16) for at in (1, 3, 5))
    assert tab.value("getComputedStyle(document.body).backgroundColor") == f"rgb{shown}"
    targets = "[...document.querySelectorAll('summary')].filter(e => e.checkVisibility())"
    assert tab.value(f"{targets}.every(e => e.offsetHeight >= 24)"), "targets that a finger misses"
    assert tab.complaints() == []


@pytest.mark.parametrize("name", ["place", "fit"])
def test_a_page_prints_light_within_its_paper(
    name: str, browser: Chromium, pages: dict[str, Path], tmp_path: Path
) -> None:
    tab = Tab(browser, pages[name], 720, 1000, dark=True, media="print")
    assert tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.value("document.documentElement.scrollWidth") <= 720
    tab.paper(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
