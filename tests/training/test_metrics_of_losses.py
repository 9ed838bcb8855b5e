"""Targets that are missing, and metrics that follow the loss: in training, its checkpoints and its report."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from made_targets import small
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

from gst.cost.metrics import METRICS, Metric, evaluate
from tests.choices import with_rest

TARGETS = "--data.source.init_args.targets"


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def last_error(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("gst: error: ")]
    return line


def test_missing_targets_are_refused_with_the_names_of_their_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    targets = f"{TARGETS}=[[1, 2, 3, 4, 5, 6], [2, null, .inf, 4, 1, 3], [3, 1, 2, -.inf, 5, 4]]"
    assert small("fit", targets) == 2
    said = last_error(capsys)  # of what is held out for the test nothing is said yet
    assert "targets are NaN or infinite" in said and "--data.missing_targets skip" in said
    assert "'graph2'" in said and "graph0" not in said
    assert not Path("run").exists()


def test_missing_targets_are_skipped_where_that_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    targets = f"{TARGETS}=[[1, 2, 3, 4, 5, 6, 7, 8], [null, null, 3, 4, .inf, 6, 5, 8], [null, null, null, null]]"
    assert small("fit", targets, "--data.missing_targets=skip", "--json=fit.json", "--data.num_valid=1",
                 "--data.num_test=1", "--trainer.limit_val_batches=0") == 0  # fmt: skip
    assert np.isfinite(json.loads(Path("fit.json").read_text())["metrics"]["train/loss"])
    assert small("fit", f"{TARGETS}=[[null, null, null, null, null, null]]", "--data.missing_targets=skip") == 2
    assert "no training target is known" in last_error(capsys)


@pytest.mark.parametrize("targets", with_rest(["[[7, 7, 7, 7]]", "[[5]]"], ["[[5]]"]))
def test_an_epoch_without_a_metric_is_an_error(targets: str, capsys: pytest.CaptureFixture[str]) -> None:
    valid = "--data.valid_source"
    flags = [f"{valid}=made_targets.MadeTargets", f"{valid}.init_args.targets={targets}"]
    assert small("fit", *flags) == 2
    assert "epoch 0: no metric of the validation part can be computed" in last_error(capsys)


@pytest.mark.e2e
def test_a_regression_is_judged_by_its_errors() -> None:
    flags = ["--model.loss=squared_error", "--trainer.max_epochs=2", "--json=fit.json",
             "--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping",
             "--trainer.callbacks.monitor=val/rmse"]  # fmt: skip
    best = ["--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint", "--trainer.callbacks.monitor=val/mae",
            "--trainer.callbacks.dirpath=run/best"]  # fmt: skip
    assert small("fit", *flags, *best) == 0
    metrics = json.loads(Path("fit.json").read_text())["metrics"]
    assert 0 < metrics["val/mae"] <= metrics["val/rmse"] and "val/tau" in metrics
    assert Path("run/report.html").read_text().count("Mean absolute error") >= 1
    assert small("predict", *flags[:1], "--ckpt_path=run/checkpoints/best.ckpt", "--predictions.path=p.csv") == 0
    assert small("test", *flags[:1], "--ckpt_path=run/checkpoints/best.ckpt", "--json=test.json") == 0
    with Path("p.csv").open() as lines:
        rows = [(float(row["score"]), float(row["target"])) for row in csv.DictReader(lines)]
    scores, targets = np.array(rows).T
    tested = json.loads(Path("test.json").read_text())["metrics"]
    assert tested["test/mae"] == pytest.approx(mean_absolute_error(targets, scores), rel=1e-5)
    assert tested["test/rmse"] == pytest.approx(root_mean_squared_error(targets, scores), rel=1e-5)


VALID = ["--data.valid_source=made_targets.MadeTargets", "--data.valid_source.init_args.targets=[[0, 1, 3, 2]]"]
WRONG = {
    "from 1": (
        ["[[1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3]]"],
        "part: .* targets are 1, 2, 3; number them .*{1: 0, 2: 1, 3: 2}",
    ),
    "validation": (["[[0, 1, 2, 0, 1, 2]]", *VALID], r"validation part: .* are 0, 1, 2, 3; give the head 4 outputs"),
    "one output": (
        ["[[0, 1, 1, 0, 1, 0]]", *VALID, "--model.head.outputs=1"],
        "head with 1 outputs.* give the head 2 outputs",
    ),
    "runtimes": (["[[1, 2, -3, 4, 5, 6]]", "--model.loss=log_runtime"], "part: log_runtime needs positive targets"),
}


@pytest.mark.parametrize("name", with_rest([*WRONG], ["from 1", "validation"]))
def test_targets_that_a_loss_cannot_take_end_a_training_before_it_begins(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (targets, *more), message = WRONG[name]
    assert small("fit", f"{TARGETS}={targets}", "--model.loss=cross_entropy", "--model.head.outputs=3", *more) == 2
    assert re.search(message, last_error(capsys))
    assert not Path("run").exists()


def test_predictions_that_are_no_numbers_are_not_left_out_of_a_mean() -> None:
    right, nothing = (np.arange(3.0), np.arange(3.0)), (np.full(3, np.nan), np.arange(3.0))
    assert evaluate("pairwise_hinge", [right])["tau"] == 1
    assert np.isnan([*evaluate("pairwise_hinge", [right, nothing]).values()]).all()


def test_a_registered_metric_is_logged_monitored_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    far = Metric(lambda scores, targets: float(np.abs(scores - targets).max()), "min", "greatest error", of_all=True)
    monkeypatch.setitem(METRICS, "greatest", far)
    monitor = ["--trainer.callbacks.monitor=val/greatest", "--json=fit.json"]
    stop = "--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping"
    assert small("fit", stop, *monitor) == 0
    assert json.loads(Path("fit.json").read_text())["metrics"]["val/greatest"] > 0
    assert "greatest error" in Path("run/report.html").read_text()


def test_a_ranking_has_its_metrics_and_log_report_and_result_have_one_mean_loss(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`train/loss` is of the last step, `train/loss_mean` of the epoch."""
    assert small("fit", "--json=fit.json", "--trainer.enable_progress_bar=true") == 0
    metrics = json.loads(Path("fit.json").read_text())["metrics"]
    assert {name for name in metrics if name.startswith("val/")} == {
        "val/tau", "val/ordered_pairs", "val/slowdown@1", "val/slowdown@5",
    }  # fmt: skip
    mean = metrics["train/loss_mean"]
    assert f"train/loss_mean={mean:.4g}" in capsys.readouterr().err
    epochs = torch.load("run/checkpoints/best.ckpt", weights_only=True)["callbacks"]
    (entry,) = next(state["epochs"] for name, state in epochs.items() if name.startswith("ReportPage"))
    assert entry["loss"] == pytest.approx(mean, rel=1e-6)
