"""Laws of every page, with or without a browser: structure, names, links, contrast, nothing from outside."""

from __future__ import annotations

import re
from importlib import resources
from itertools import product

import pytest
from made_records import make_record
from made_training import make_training
from report_html import blend, colours, contrast, faults

from gst.reporting.placement import render
from gst.reporting.training import render_training

READ = 4.5  # least contrast of text, level AA of the Web Content Accessibility Guidelines 2
SEEN = 3.0  # and of what must be seen to understand a drawing


@pytest.mark.parametrize("runtime", ["measured", "simulated"])
def test_pages_of_searches_have_no_faults(runtime: str) -> None:
    assert faults(render(make_record(runtime=runtime))) == []


def test_pages_of_trainings_have_no_faults() -> None:
    assert faults(render_training(make_training())) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('<html lang="en">', "<html>"), ("<h2 ", "<h4 "), ('role="img"', ""), ("<desc>", "<p>"), ('scope="col"', ""),
        ('tabindex="0"', ""), ("<footer>", '<footer><img src="http://example.com/a.png">'),
        ("<body>", "<body onload=1>"), ('href="#segment-1"', 'href="#segment-999"'),
        ("<main>", '<main style="background:url(a.png)">'), ("<h1>", "<h1>a</h1><h1>"), ("<p>", '<p id="graph">'),
    ],
)  # fmt: skip
def test_each_fault_is_found(right: str, wrong: str) -> None:
    page = render(make_record())
    assert right in page
    closing = {"<h2 ": ("</h2>", "</h4>"), "<desc>": ("</desc>", "</p>")}
    spoiled = page.replace(right, wrong).replace(*closing.get(right, ("", "")))
    assert faults(spoiled)


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_marks_stand_out(dark: bool) -> None:
    known = colours(dark)
    grounds = [known["paper"], known["panel"], blend(known["c0"], known["paper"], 0.11)]
    for name, ground in product(("ink", "soft", "good", "bad"), grounds[: None if dark else 3]):
        assert contrast(known[name], ground) >= READ, (name, ground)
    for name in ("c0", "c2", "c3", "c5"):  # lines of charts
        assert contrast(known[name], known["paper"]) >= SEEN, name


def test_contrast_by_hand() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)
    assert blend("#ff0000", "#0000ff", 0.25) == "#4000bf"


def test_colours_are_those_that_the_colour_blind_can_tell_apart() -> None:
    """Okabe and Ito, Color Universal Design, 2008; the blue of the dark page is lighter."""
    palette = {"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"}
    assert {colour for name, colour in colours(False).items() if re.fullmatch(r"c\d", name)} == palette


def test_the_script_builds_no_html_and_calls_nobody() -> None:
    script = resources.files("gst.reporting").joinpath("report.js").read_text(encoding="utf-8")
    for word in ("innerHTML", "eval", "fetch", "XMLHttpRequest", "import", "http", "document.write", "</"):
        assert word not in script, word
