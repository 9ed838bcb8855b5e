"""Laws of every page: structure, names, links, contrast, nothing from outside, complete with parts missing or wrong."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from made_records import make_record
from made_training import make_demo, make_training
from report_html import Html, blend, colours, contrast, faults

from gst.reporting.demo import render_demo
from gst.reporting.placement import render
from gst.reporting.training import render_training

READ = 4.5  # least contrast of text, level AA of the Web Content Accessibility Guidelines 2
SEEN = 3.0  # and of what must be seen to understand a drawing

HOSTILE = "</title><script>alert('x')</script>\"'&<img src=http://evil.example/x onerror=alert(1)>"
WRONG: list[Any] = [
    None, 7, [None, 7, "words", []], [["a", "b"]], {"graphs": [{"measured": 7}, 3], "plans": {"x": 3}},
]  # fmt: skip
PAGES: dict[str, tuple[Callable[[dict[str, Any]], str], dict[str, Any]]] = {
    "measured": (render, make_record(40)), "simulated": (render, make_record(40, "simulated")),
    "fit": (render_training, make_training(configs=40)), "demo": (render_demo, make_demo()),
}  # fmt: skip


def replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """A record with every value changed that is neither a dictionary nor a list."""
    if isinstance(value, dict):
        return {key: replaced(entry, change) for key, entry in value.items()}
    return [replaced(entry, change) for entry in value] if isinstance(value, list) else change(value)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_faults_and_is_that_of_its_saved_record(name: str) -> None:
    draw, record = PAGES[name]
    assert faults(draw(record)) == [] and "default-src 'none'" in draw(record)
    assert draw(json.loads(json.dumps(record))) == draw(record)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "simulated" else name for name in PAGES]
)
def test_a_page_stands_whatever_is_missing_or_wrong(name: str) -> None:
    draw, record = PAGES[name]
    assert faults(draw({})) == []
    for part, wrong in product(record, WRONG):
        assert faults(draw(record | {part: wrong})) == [], (part, wrong)
    for inner in WRONG:
        inside = {"annealing": inner, "kinds": inner, "bars": inner, "best": "1", "streams": inner}
        assert faults(draw(record | dict.fromkeys(("timeline", "plans", "kernels"), inside))) == []


@pytest.mark.parametrize("wrong", [math.nan, math.inf, None, "words"])
@pytest.mark.parametrize("name", PAGES)
def test_not_a_number_never_reaches_a_page(name: str, wrong: Any) -> None:
    draw, record = PAGES[name]
    page = draw(replaced(record, lambda value: wrong if isinstance(value, float) else value))
    drawn = re.sub(r"<style\b.*?</style>", "", page, flags=re.DOTALL)
    assert faults(page) == [] and not re.search(r"\b(nan|inf|None|NaN)\b", drawn)


@pytest.mark.parametrize("name", PAGES)
def test_hostile_text_stays_text(name: str) -> None:
    draw, record = PAGES[name]
    known = {"ok", "failed", "measured", "simulated", "hdp", "annealing", "pytorch", "order", "training"}
    hostile = replaced(record, lambda each: each + HOSTILE if isinstance(each, str) and each not in known else each)
    page = Html(draw(hostile))
    assert set(page.tags) <= {*Html(draw(record)).tags} and "script" not in page.tags and "img" not in page.tags
    assert "alert('x')" in page.text and not [each for each, _ in page.attributes if each.startswith("on")]
    named = replaced(record, lambda value: value)
    for part in ("plans", "machine", "model", "tau"):  # keys are text of the record, too
        if isinstance(entries := named.get(part), dict):
            named[part] = {key + HOSTILE: entry for key, entry in entries.items()}
    assert "img" not in Html(draw(named)).tags


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_marks_stand_out(dark: bool) -> None:
    known = colours(dark)
    grounds = [known["paper"], known["panel"], blend(known["c0"], known["paper"], 0.11)]
    for name, ground in product(("ink", "soft", "good", "bad"), grounds[: None if dark else 3]):
        assert contrast(known[name], ground) >= READ, (name, ground)
    for name in ("c0", "c2", "c3", "c5"):  # lines of charts
        assert contrast(known[name], known["paper"]) >= SEEN, name


def test_colours_are_those_that_the_colour_blind_can_tell_apart() -> None:
    """Okabe and Ito, Color Universal Design, 2008; the blue of the dark page is lighter."""
    palette = {"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"}
    assert {colour for name, colour in colours(False).items() if re.fullmatch(r"c\d", name)} == palette
