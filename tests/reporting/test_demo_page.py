"""The page of `gst demo`: three gains in order, honest where none was made, complete with any part missing or wrong."""

from __future__ import annotations

import copy
import json
import math
import re
from typing import Any

import pytest
from report_html import Html, faults

from gst.reporting.demo import NEXT, gains, render_demo, whole_mib


def make_demo() -> dict[str, Any]:
    """A record as `gst demo` makes it."""
    segments = [{"nodes": 10**k, "prepare_s": 0.5, "step_ms": 20.0, "peak_mib": 500.0 + k} for k in (4, 5, 6)]
    wholes = [{"nodes": 10**k, "prepare_s": 0.5, "step_ms": 20.0, "peak_mib": 10.0 ** (k - 2) + 500} for k in (4, 5)]
    compared = {"nodes": 100_000, "train_s": 1.5, "peak_mib": 800.0, "wrong_pairs": 0.115}
    times = {"median_ms": 10.0, "again_median_ms": 10.0, "feasible": True}
    plans = {"annealing": {**times, "simulated_ms": 9.0}, "pytorch": {**times, "again_median_ms": 15.0}}
    plans |= {"compiled": {**times, "again_median_ms": 12.0}, "frozen": {"feasible": False, "reason": "left out: <no>"}}
    trials = [
        {"label": label, "origin": "annealing", "round": round_, "predicted_ms": 9.0, "median_ms": ms}
        for label, round_, ms in (("a", 0, 11.0), ("b", 1, 10.0), ("a", 2, 11.0))
    ]
    return {
        "command": "gst demo --quick", "machine": {"cpu": "Example CPU", "cores": 2}, "seconds": 99.5,
        "growth": {
            "segments": segments, "whole": wholes, "seconds": 40.0,
            "compared": {"segments": compared, "whole": {**compared, "train_s": 9.5, "wrong_pairs": 0.102}},
        },
        "ranking": {
            "tau": {"GST": 0.8, "linear regression on sums": 0.5, "linear regression on each node": 0.79},
            "num_train": 875, "num_held_out": 300, "nodes": 372, "slowdown": 0.001, "median_slowdown": 0.02,
            "predicted": [0.0, 50.0, 100.0], "measured": [0.0, 100.0, 50.0],
        },
        "placement": {
            "program": "inception-2", "headline": "Best plan 10 ms", "runtime": "measured", "plans": plans,
            "best": "annealing", "winner": "annealing", "measurements": trials,
            "cost_model": {"name": "gst", "tau": 0.4, "num_measured": 3, "num_screened": 1_234},
        },
    }  # fmt: skip


def test_first_screen_names_three_gains_in_order() -> None:
    page = Html(render_demo(make_demo()))
    assert faults(render_demo(make_demo())) == []
    tiles = [words for tag, words in page.words if tag == "b"]
    assert tiles == ["506 MiB", "tau 0.80", "1.20x"]
    assert (
        "GST trained on a giant graph in 506 MiB, ranked layouts of a real program with tau 0.80, planned" in page.text
    )
    titles = [title for title, _ in NEXT.values()]
    assert [words for tag, words in page.words if tag == "h2"] == [*titles, "Machine and command"]
    for words in (
        "504 MiB on 10,000", "about 10.3 GiB", "11.5 %", "10.2 %", "1,234 plans",
        "1 of these, after 1 plans to learn from", "the fastest plan of the search is one of its choice",
        "eager 1.50x, torch.compile 1.20x", "frozen: left out: <no>", "gst fit --config", "gst rank", "gst place",
    ):  # fmt: skip
        assert words in page.text, words


def test_a_page_without_a_gain_says_so() -> None:
    record = make_demo()
    record["placement"]["winner"] = "compiled"
    record["placement"]["plans"]["compiled"]["again_median_ms"] = 8.0
    record["ranking"]["tau"]["GST"] = 0.3
    found = gains(record)
    assert found["placement"][0] == "0.80x" and "torch.compile, the best without a plan" in found["placement"][1]
    assert found["placement"][1].endswith("no plan won here")
    assert found["ranking"][2] == found["placement"][2] == "" and found["growth"][2] == "good"


def test_memory_of_the_whole_graph_is_on_the_line() -> None:
    assert whole_mib(make_demo()["growth"]) == pytest.approx(1_500 + 900 / 90_000 * 900_000)
    assert math.isnan(whole_mib({})) and math.isnan(whole_mib({"whole": [{"nodes": 1, "peak_mib": 1}] * 2}))


@pytest.mark.parametrize("wrong", [None, 7, "words", [], {}, [None, 7, {}], {"plans": {"x": 3}, "tau": 7}])
@pytest.mark.parametrize("part", list(make_demo()))
def test_whatever_is_missing_or_wrong_the_page_stands(part: str, wrong: Any) -> None:
    page = render_demo(make_demo() | {part: wrong})
    assert faults(page) == []
    if part in NEXT and not wrong:
        assert page.count("This part has not finished") == 1


@pytest.mark.parametrize("wrong", [math.nan, math.inf, None, "words"])
def test_not_a_number_never_reaches_the_page(wrong: Any) -> None:
    def spoiled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spoiled(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [spoiled(entry) for entry in value]
        return wrong if isinstance(value, float | int) and not isinstance(value, bool) else value

    page = render_demo(spoiled(copy.deepcopy(make_demo())))
    assert faults(page) == []
    assert not re.search(r"\b(nan|inf|None)\b", re.sub(r"<(script|style|dl)\b.*?</\1>", "", page, flags=re.DOTALL))


def test_a_saved_record_renders_to_the_same_page() -> None:
    record = make_demo()
    assert render_demo(json.loads(json.dumps(record))) == render_demo(record)
