"""The page of `gst place` and `gst demo`: well formed, complete, safe with hostile text, honest about who won."""

from __future__ import annotations

import re
from typing import Any

import pytest
from made_records import make_record
from report_html import Html as Page

from gst.reporting.headline import best_baseline, conditions, headline, ratio_of, undercut
from gst.reporting.placement import render
from tests.choices import with_rest

LARGE = [(300, 120_000), (5_000, 400_000), (50_000, 3_000_000), (70_000, 700_000)]
"""Nodes of a program, and the most bytes of its page."""


def drawn(page: str) -> str:
    """The page without its styles and scripts."""
    return re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)


@pytest.fixture
def record() -> dict[str, Any]:
    return make_record()


@pytest.mark.parametrize("runtime", ["measured", "simulated"])
def test_conditions_say_that_other_processes_were_busy_during_the_profile(runtime: str) -> None:
    record = make_record() | {"runtime": runtime}
    for little in ({"profile_load": 0.4}, {"load": 0.05}, {"load": None}):
        assert conditions(record | little) == conditions(record)
    now = " Other processes took 40% of the cores meanwhile: place it again when they are done."
    assert conditions(record | {"load": 0.4}) == conditions(record) + now
    one, both = conditions(record | {"profile_load": 0.58}), conditions(record | {"profile_load": 0.58, "load": 0.4})
    again = "58% of the cores while operations were profiled: place it again from the beginning when they are done."
    assert one.endswith(f". Other processes took {again}")
    assert both.endswith(f". Other processes took 40% of the cores meanwhile and {again}")
    assert headline(record | {"profile_load": 0.58, "load": 0.4}) == headline(record)


def test_all_figures_of_a_plan_that_was_measured_again_are_of_the_second_set(record: dict[str, Any]) -> None:
    """A busy moment of the first set is in no figure that is held against the headline."""
    for name, first, second in (("pytorch", 3514.0, 59.3), ("hdp", 257.0, 47.0), ("annealing", 258.0, 42.7)):
        times = {"median_ms": first, "low_ms": first - 1, "high_ms": first + 1}
        record["plans"][name] |= times | {f"again_{key}": ms - first + second for key, ms in times.items()}
    page = Page(render(record))
    assert "1.26x" in page.text and "13.7" not in page.text and "the real runs 47.0 ms (median)" in page.text
    order = [page.text.index(f" {name} ", page.text.index("PyTorch / plan")) for name in ("hdp", "chunks")]
    assert order == sorted(order), "by the second set"
    ratios = [ratio_of(record, plan) for plan in record["plans"].values()]
    assert sum("x" in each for each in ratios) == 3, "no ratio of the first set stands beside those of the second"
    assert "In the second set annealing took less, 42.7 ms (41.7\u201343.7)." in page.text


@pytest.mark.parametrize(
    ("command", "record_of", "wanted"),
    [
        ("--out here", {}, "--out here --resume --seconds 300  # search for longer"),
        ("--out here --resume", {}, "--out here --resume --seconds 300  # search for longer"),
        ("--seconds 9 --out here", {}, "--out here --resume --seconds 300  # search for longer"),
        ("--out 'my runs'", {"profile_load": 0.6}, "--out runs/again  # place it again when the cores are free"),
        ("--machine a.json --out=a", {}, "--out runs/measured  # measure on this machine"),
        ("--workers ray --out here", {}, ""),
    ],
)
def test_the_head_has_a_command_to_go_on_with(
    record: dict[str, Any], command: str, record_of: dict[str, Any], wanted: str
) -> None:
    page = Page(render(record | record_of | {"command": f"gst place rnnlm {command}"}))
    code = [words for tag, words in page.words if tag == "code"]
    assert code[:1] == [f"gst place rnnlm {wanted}"] if wanted else "search for longer" not in page.text


def test_a_bound_that_real_runs_undercut_is_said_to_be_one_of_costs(record: dict[str, Any]) -> None:
    assert "which is less: these costs" not in Page(render(record)).text
    record["lower_bound"] = record["certificate"]["lower_bound"] = 69.5
    text = Page(render(record)).text
    assert "Measured, the best plan took 41.2 ms, which is less: these costs are higher" in text
    assert "lower bound, by the costs, which real runs undercut" in text and not undercut(record).endswith(" ")


def test_a_plan_that_fuses_undercuts_a_bound_of_plans_that_do_not(record: dict[str, Any]) -> None:
    record["lower_bound"] = record["certificate"]["lower_bound"] = 69.5
    record["certificate"]["is_fused"] = True
    text = Page(render(record)).text
    assert "which is less: it compiles operations into one, and the bound is one of plans that do not." in text
    assert "by the costs, of plans that fuse nothing" in text and "costs are higher" not in text
    assert "no plan without fusion takes less than" in text


def test_what_was_left_out_did_not_fail(record: dict[str, Any]) -> None:
    for reason, shown in (
        ("left out, as asked", "\u2013"),
        ("left out: 4.58 ms at first look", "\u2013"),
        ("no memory", "failed"),
    ):
        record["plans"]["go"]["reason"] = reason
        assert f"go search {shown} " in Page(render(record)).text


def test_the_page_is_well_formed_and_says_the_key_numbers(record: dict[str, Any]) -> None:
    page = Page(render(record))
    expected = (
        "41.2 ms", "40.2\u201342.4", "61.8 ms", "1.50x", "0.88x", "0.68x", "chunks", "0.64", "4,321", "38.5 ms",
        "37.1", "3.25", "go: no memory", "plan 9", "Example CPU", "core 1", "gst place rnnlm --out runs/rnnlm",
        "cpu:1: busy 50 %", "matrix product", "gst place · ", "Written by gst place.",
        "at most 7.01 % above it", "Most memory, simulated", "123 MiB",
    )  # fmt: skip
    assert [words for words in expected if words not in page.text] == []
    assert page.tags.count("h1") == 1 and page.tags.count("h2") == 4
    assert page.text.count("single:cpu:0") >= 4


def test_a_page_without_measurements_claims_none() -> None:
    page = Page(render(make_record(runtime="simulated")))
    for word in ("PyTorch", "real devices", "95 %", "median"):
        assert word not in page.text, word
    for words in ("No plan was run", "0 plans measured", "gst place · ", "70.3", "3.25", "82.6 %"):
        assert words in page.text, words
    assert page.tags.count("h2") == 3


@pytest.mark.parametrize(
    ("base", "found", "says"),
    [
        (61.8, 41.2, ", 1.50x as fast as plain PyTorch"),
        (38.0, 41.2, "; plain PyTorch is faster here: 38.0 ms"),
        (41.0, 41.2, "; not settled if plain PyTorch is faster"),
    ],
)
def test_the_headline_is_honest(record: dict[str, Any], base: float, found: float, says: str) -> None:
    for name, time in (("pytorch", base), ("hdp", found)):
        record["plans"][name] |= {"median_ms": time, "low_ms": time - 1, "high_ms": time + 1}
    assert headline(record) == f"Best plan 41.2 ms{says}"
    assert conditions(record).startswith("hdp 41.2 ms (40.2\u201342.2); plain PyTorch ")


def test_the_headline_compares_with_the_ordinary_loop_of_a_step_if_it_is_faster(record: dict[str, Any]) -> None:
    record["winner"] = "hdp"
    plain = record["plans"]["pytorch"]
    for loop_ms, says in (
        (51.5, "Best plan 41.2 ms, 1.25x as fast as the ordinary loop"),
        (38.0, "Best plan 41.2 ms; the ordinary loop is faster here: 38.0 ms"),
        (70.0, "Best plan 41.2 ms, 1.50x as fast as the step as written"),
        (None, "Best plan 41.2 ms, 1.50x as fast as the step as written"),
    ):
        loop = {"feasible": False, "reason": "no loop"}
        if loop_ms is not None:
            loop = plain | {"median_ms": loop_ms, "low_ms": loop_ms - 1, "high_ms": loop_ms + 1}
        record["plans"]["ordinary loop"] = loop
        assert headline(record) == says
        text = Page(render(record)).text
        assert f"dashed: {'the ordinary loop' if (loop_ms or 99) < 61.8 else 'the step as written'}." in text
    record["plans"]["ordinary loop"] = plain | {"median_ms": 30.0}
    assert headline(record | {"winner": "pytorch"}) == "No plan beat the ordinary loop: 30.0 ms"


def test_a_ratio_is_shown_only_if_its_interval_is_narrow(record: dict[str, Any]) -> None:
    """The whole page agrees: headline, tiles, table and paragraph."""
    assert "1.50x" in Page(render(record)).text and "too noisy" not in Page(render(record)).text
    record["plans"]["pytorch"] |= {"low_ms": 40.0, "high_ms": 90.0}
    record["winner"] = "hdp"
    assert headline(record) == "Best plan 41.2 ms; gain over plain PyTorch: too noisy to say"
    page = Page(render(record)).text
    assert not re.search(r"\d\.\d\dx", page) and page.count("too noisy to say") == 2 + 1 + 5
    record["plans"]["single:cpu:0"] |= {"low_ms": 40.0, "high_ms": 90.0}
    assert "takes 70.3 ms (40.0\u201390.0); the ratio is too noisy to say." in Page(render(record)).text


NAMES = ["pytorch", "compiled", "ahead of time, 1 thread", "compiled, max-autotune, 16 threads", "hdp"]


@pytest.mark.parametrize("winner", NAMES)
def test_a_headline_is_one_sentence_of_fourteen_words(record: dict[str, Any], winner: str) -> None:
    for name in (each for each in NAMES if each not in record["plans"]):
        record["plans"][name] = record["plans"]["pytorch"] | {"median_ms": 1234.5}
    record |= {"winner": winner, "load": 0.9, "profile_load": 0.9}
    wide = {"pytorch": record["plans"]["pytorch"] | {"high_ms": 900.0}}
    for each in (record, record | {"plans": record["plans"] | wide}, record | {"plans": {}}, {"runtime": "simulated"}):
        assert len(headline(each).split()) <= 14 and ". " not in headline(each), headline(each)


@pytest.mark.parametrize(
    ("runtime", "bound", "says"),
    [
        ("simulated", 38.5, "Best plan 41.2 ms (simulated), at most 7.01 % from the optimum"),
        ("simulated", 45.0, "Best plan 41.2 ms (simulated), less than the lower bound"),
        ("simulated", None, "Best plan 41.2 ms (simulated)"),
    ],
)
def test_the_headline_of_costs(runtime: str, bound: float | None, says: str) -> None:
    record = make_record(runtime=runtime) | {"lower_bound": bound}
    assert headline(record) == says
    bounded = "" if bound is None else f" lower bound {bound} ms;"
    assert conditions(record) == f"Nothing was measured;{bounded} best baseline 70.3 ms."


def test_the_page_says_what_the_search_was_worth(record: dict[str, Any]) -> None:
    worth = "The best baseline, single:cpu:0, takes 70.3 ms (69.3\u201371.5), 1.71 times as long."
    assert worth in Page(render(record)).text
    record["plans"]["chunks"] |= {"median_ms": 41.9, "low_ms": 41.0, "high_ms": 43.0}
    assert "do not settle that the search gained anything" in render(record)
    record["best"] = "chunks"
    assert "is the baseline chunks: no search method improved on it" in render(record)
    assert "There was no time" not in render(record)
    record["cost_model"]["num_measured"] = 0
    assert "There was no time to measure plans during the search." in render(record)


def test_the_worth_of_a_search_is_told_by_runs_that_took_turns(record: dict[str, Any]) -> None:
    """A second set of runs counts where both the best plan and the best baseline have it."""
    best, baseline = (record["plans"][name] for name in (record["best"], "single:cpu:0"))
    best |= {"again_median_ms": 50.0, "again_low_ms": 49.0, "again_high_ms": 51.0}
    assert "takes 70.3 ms (69.3\u201371.5), 1.71 times as long in the first set of runs." in Page(render(record)).text
    assert "best baseline (single:cpu:0), in the first set of runs" in Page(render(record)).text
    baseline |= {"again_median_ms": 60.0, "again_low_ms": 59.0, "again_high_ms": 61.0}
    text = Page(render(record)).text
    assert "takes 60.0 ms (59.0\u201361.0), 1.20 times as long." in text and "in the first set" not in text


def test_the_fused_plan_of_a_method_is_no_baseline(record: dict[str, Any]) -> None:
    record["plans"] |= {"annealing:fused": record["plans"]["single:cpu:0"] | {"median_ms": 45.0}}
    assert "The best baseline, single:cpu:0," in Page(render(record)).text


def test_the_headline_names_what_is_to_run(record: dict[str, Any]) -> None:
    record["plans"]["compiled"] = record["plans"]["pytorch"] | {"median_ms": 39.0, "low_ms": 38.0, "high_ms": 40.0}
    record["winner"] = "compiled"
    assert headline(record) == "No plan beat torch.compile: 39.0 ms"
    times = "hdp 41.2 ms (40.2\u201342.4); torch.compile 39.0 ms (38.0\u201340.0); plain PyTorch 61.8 ms"
    assert conditions(record) == f"{times} (60.8\u201363.0)."
    record["plans"]["frozen, 1 thread"] = record["plans"]["compiled"]
    record["winner"] = "frozen, 1 thread"
    assert headline(record) == "No plan beat the step, frozen, 1 thread: 39.0 ms"
    assert best_baseline(record)[0] == "single:cpu:0", "no way without a plan is a baseline"
    record["winner"] = "hdp"
    again = {"again_median_ms": 43.0, "again_low_ms": 42.0, "again_high_ms": 44.0}
    second = record | {"plans": record["plans"] | {"hdp": record["plans"]["hdp"] | again}}
    assert headline(second) == "Best plan 43.0 ms, 1.44x as fast as plain PyTorch"
    assert conditions(second).startswith("hdp 43.0 ms (42.0\u201344.0); plain PyTorch 61.8 ms")
    record["winner"] = "pytorch"
    assert headline(record | {"best": "pytorch"}) == "No plan beat plain PyTorch: 61.8 ms"
    assert headline(record) == "No plan beat plain PyTorch beyond noise: 61.8 ms"
    assert "as written" in Page(render(record)).text and "compiled" in Page(render(record)).text


@pytest.mark.parametrize(("num_nodes", "most"), with_rest(LARGE, LARGE[-1:]))
def test_the_page_stays_small(num_nodes: int, most: int) -> None:
    page = render(make_record(num_nodes))
    assert len(page.encode()) < most
    lanes = page.split('id="timeline"')[1].split("</section>")[0]
    assert len(lanes.encode()) < 300_000
