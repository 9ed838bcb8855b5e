"""The page of `gst fit`: complete, honest about what its number is worth, safe whatever the record holds."""

from __future__ import annotations

import re

import pytest
from made_training import make_training
from report_html import Html, faults

from gst.cost.metrics import METRICS
from gst.reporting.charts import over_epochs
from gst.reporting.training import render_training, summary


def test_the_page_says_the_key_numbers() -> None:
    page = Html(render_training(make_training()))
    expected = (
        "Kendall's tau 0.720 on 400 configurations held out, after 5 of 6 epochs", "0.9\u00a0\u2192\u00a00.15",
        "21,905", "54,321",
        "1.0 %", "GST+ED", "gst fit --config experiments/configs/alexnet_layout.yaml", "TpuGraphs(files=",
        "Written by gst fit.", "17.5 steps old", "13.3 % of all keys", "31,234", "8.00 MiB", "best.ckpt", "0.812",
        "flatters it a little", "93.4 s",
    )  # fmt: skip
    assert [words for words in expected if words not in page.text] == []
    assert page.tags.count("h1") == 1 and page.tags.count("h2") == 4


@pytest.mark.parametrize("kind", ["order", "runtime", "value", "class"])
@pytest.mark.parametrize("graphs", [1, 30])
def test_every_kind_of_prediction_has_its_figure(kind: str, graphs: int) -> None:
    page = render_training(make_training(kind, graphs=graphs))
    assert faults(page) == []
    assert ('class="cloud' in page) == (kind != "class")
    assert ("predicted place, %" in page) == (kind == "order")
    assert ("true 3" in page) == (kind == "class")


def test_graphs_of_one_configuration_are_ordered_among_each_other() -> None:
    record = make_training("order", graphs=50, configs=1)
    assert "50 graphs held out" in summary(record)
    cloud = re.search(r'class="cloud[^"]*" d="([^"]+)"', render_training(record))
    assert cloud is not None and len(set(cloud[1].split("M"))) > 40


def test_courses_stand_where_their_values_are() -> None:
    svg = over_epochs([("low", [(1, 0.0), (2, 1.0)]), ("high", [(1, 5.0), (2, 10.0)])], "value", "two")
    lines = re.findall(r'class="line (c\d d\d)" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', svg)
    assert len({css for css, *_ in lines}) == 2
    (_, *low), (_, *high) = ([css, *map(float, numbers)] for css, *numbers in lines)
    assert low[0] == high[0] and low[2] > low[0]
    assert low[1] > low[3] > high[1] > high[3], "upwards is more"
    assert "low: 0 after epoch 1, 1.00 after epoch 2" in svg


@pytest.mark.parametrize("epochs, ticks", [([1, 2, 3], [1, 2, 3]), ([4, 5], [4, 5]), ([1], [0, 1])])
def test_the_axis_of_epochs_begins_at_the_first(epochs: list[int], ticks: list[int]) -> None:
    svg = over_epochs([("loss", [(epoch, 1.0) for epoch in epochs])], "loss", "loss")
    across = dict(re.findall(r'<text class="tick" x="([\d.]+)" y="288" [^>]*>(\d+)</text>', svg))
    assert [*map(int, across.values())] == ticks
    assert min(map(float, across)) == 62, "at the left end"


def test_one_epoch_is_a_table_and_no_chart() -> None:
    record = make_training()
    page = render_training(record | {"epochs": record["epochs"][:1]})
    assert "over 1 epoch" not in page
    assert "mean loss, first and last" not in page
    assert "mean loss" in page


def test_sections_without_content_are_left_out() -> None:
    record = make_training()
    for entry in record["epochs"]:
        for key in ("tau", "ordered_pairs", "slowdown@1", "slowdown@5", "age_mean", "age_max"):
            del entry[key]
    page = Html(render_training(record | {"held_out": {}}))
    assert summary(record) == "The loss went from 0.9 to 0.15 in 6 epochs; nothing held out was scored"
    assert [words for tag, words in page.words if tag == "h2"] == ["Loss and metric", "What was trained, on what"]
    assert summary({}) == summary(record | {"epochs": []}) == "No epoch was finished"


def test_a_regression_has_its_error_in_the_headline_and_the_least_is_best() -> None:
    record = make_training("value", epochs=3)
    for entry, error in zip(record["epochs"], (4.0, 2.5, 3.0), strict=True):
        entry |= {"mae": error, "rmse": 2 * error}
    assert summary(record) == "Mean absolute error 2.50 on 400 configurations held out, after 2 of 3 epochs"
    assert "root of the mean squared error" in render_training(record)


@pytest.mark.parametrize("control, beats", [(0.4, False), (0.95, True)])
def test_the_headline_says_if_ridge_regression_on_sums_is_as_good(control: float, beats: bool) -> None:
    record = {
        "epochs": [{"epoch": 0, "steps": 3, "loss": 1.0, "tau": 0.9}], "control": {"tau": control},
        "metrics": {"tau": METRICS["tau"].for_report()},
    }  # fmt: skip
    page = Html(render_training(record))
    assert (f"{control:.3f} by ridge regression on sums" in page.text) is beats
    assert ("The control needs no network" in page.text) is beats
    assert f"{control:.3f} Kendall's tau of the control" in page.text


def test_segments_and_operations_have_charts_of_their_shares() -> None:
    parts = {"segments": [["segment 1", 1.0], ["segment 0", -0.5], ["bad"]], "operations": [["dot 3", 0.2]]}
    made = render_training(make_training() | {"explained": {"words": "a < b", "difference": 2.0} | parts})
    page = Html(made)
    assert faults(made) == [] and "a < b" in page.text and "segment 0: -25.0 % of the difference" in page.text
    assert [words for tag, words in page.words if tag == "title" and words.startswith("dot")] == [
        "dot 3: 10.0 % of the difference"
    ]
    for broken in ({"segments": 3}, parts | {"difference": None}, parts | {"difference": 0}):
        assert faults(render_training(make_training() | {"explained": broken})) == []


@pytest.mark.parametrize("control, command", [(0.5, "gst test --config"), (0.9, "--trainer.max_epochs=12")])
def test_the_head_has_a_command_to_go_on_with_and_says_how_sure_it_is(control: float, command: str) -> None:
    page = Html(render_training(make_training() | {"control": {"tau": control}}))
    first = next(words for tag, words in page.words if tag == "code")
    assert command in first and ("gst rank runs/alexnet_layout/checkpoints/best.ckpt" in first) == (control < 0.7)
    assert "configurations is \u00b10.08." in page.text, "1.96 sqrt(2 (1 - 0.812^2) / 400)"
