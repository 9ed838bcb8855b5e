"""The page of `gst demo`: a gain of each part in order, honest where none was made."""

from __future__ import annotations

import math

import pytest
from made_training import make_demo
from report_html import Html

from gst.reporting.demo import NEXT, gains, render_demo, whole_mib


def test_first_screen_names_three_gains_in_order() -> None:
    page = Html(render_demo(make_demo()))
    assert [words for tag, words in page.words if tag == "b"][:3] == ["506 MiB", "tau 0.80", "1.20x"]
    assert (
        "GST trained on a giant graph in 506 MiB, ranked layouts of a real program with tau 0.80, planned a step 1.20x"
        in page.text
    )
    for words in (
        "504 MiB on 10,000", "about 10.3 GiB", "11.5", "10.2", "compared with compiled, the fastest step without",
        "linear regression on each node", "AlexNet", "left out: <no>", "Predicted before, measured after",
        *(command for _, command in NEXT.values()),
    ):  # fmt: skip
        assert words in page.text, words


def test_a_page_without_a_gain_says_so() -> None:
    record = make_demo()
    record["placement"]["winner"] = "compiled"
    record["placement"]["plans"]["compiled"]["again_median_ms"] = 8.0
    record["ranking"]["tau"]["GST"] = 0.3
    shown = gains(record)
    assert shown["placement"][0] == "0.80x" and "compiled, the fastest step without a plan" in shown["placement"][1]
    assert "No plan beat torch.compile" in shown["placement"][1]
    assert shown["ranking"][2] == shown["placement"][2] == "" and shown["growth"][2] == "good"
    heading = Html(render_demo(record)).text
    assert (
        "no better than linear regression (tau 0.30), found no plan faster than the step without one (0.80x)" in heading
    )
    assert "planned a step" not in heading


def test_a_part_that_was_not_measured_soundly_says_so_instead_of_a_number() -> None:
    record = make_demo()
    for plan in record["placement"]["plans"].values():
        plan |= {"again_low_ms": 5.0, "again_high_ms": 50.0}
    record["placement"]["load"] = 0.8
    value, words, tone = gains(record)["placement"]
    assert (value, tone) == ("too noisy to say", "") and "Other processes took 80% of the cores" in words
    page = Html(render_demo(record))
    (heading,) = (words for tag, words in page.words if tag == "h1")
    assert "506 MiB" in heading and "tau 0.80" in heading and "planned" not in heading


def test_parts_that_have_not_finished_have_no_section() -> None:
    page = Html(render_demo({"growth": make_demo()["growth"]}))
    assert [words for tag, words in page.words if tag == "h2"] == [NEXT["growth"][0], "Machine and command"]
    assert "1 of 3 parts" in page.text


def test_memory_of_the_whole_graph_is_on_the_line() -> None:
    assert whole_mib(make_demo()["growth"]) == pytest.approx(1_500 + 900 / 90_000 * 900_000)
    assert math.isnan(whole_mib({})) and math.isnan(whole_mib({"whole": [{"nodes": 1, "peak_mib": 1}] * 2}))
