"""`gst measure`: nothing is lost to kill -9, a failing plan is an outcome, and `gst fit` trains on the result."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from gst.cli import main
from gst.execution.measure import Log
from gst.graphs.store import open_store
from gst.lowering.plan import Plan
from gst.placement.measured_plans import MeasuredPlans
from gst.placement.task import save_plan
from gst.programs import WORKLOADS, Program, capture
from tests.outcomes import refused

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "experiments" / "configs" / "placement_cost.yaml"
PROGRAM = "rnnlm:layers=1,hidden=8,steps=2,batch=2,vocabulary=10"
HERE = ("cpu:0",)  # on every machine
NUMBER = 40


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(Path(__file__).parents[1])]))


@pytest.fixture(scope="session")
def small() -> Program:
    return capture(WORKLOADS["rnnlm"](layers=1, hidden=8, steps=2, batch=2, vocabulary=10))


def measure(*more: str) -> list[str]:
    return ["measure", PROGRAM, "--devices", ",".join(HERE), "--out", "out", "--patience", "0", *more]


@pytest.mark.e2e
@pytest.mark.slow
def test_measured_plans_are_a_dataset_that_gst_fit_learns_from(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = measure("--random", str(NUMBER))
    assert main([*arguments, "--repetitions", "2", "--json", "result.json"]) == 0
    refused(capsys, arguments, "out/measurements.jsonl is there already", "--resume")
    header, *records = Log(Path("out/measurements.jsonl")).read()
    plans = [Plan.from_dict(record["plan"]) for record in records]
    assert len({plan.key for plan in plans}) == len(plans) == NUMBER
    assert {record["program"] for record in records} == {header["program"]}
    assert {"torch", "cpu"} <= header["machine"].keys() and [each["name"] for each in header["devices"]] == list(HERE)
    result = json.loads(Path("result.json").read_text())
    assert result["plans"] == {"measured": NUMBER, "ran": NUMBER, "failed": {}}

    (graph,) = MeasuredPlans(["out"])
    (stored,) = open_store(Path(result["dataset"]))
    medians = [record["measurement"]["median_ms"] for record in records]
    assert np.allclose(graph.targets, np.array(medians) * 1e6) and np.array_equal(stored.targets, graph.targets)
    assert stored.num_nodes == graph.num_nodes and stored.config_features.shape[-1] == 1 + 1 + 3

    other = [word.replace("hidden=8", "hidden=16") for word in arguments]
    refused(capsys, [*other, "--resume"], "out/measurements.jsonl was made with program")

    source = "--data.source.init_args.directories=[out]"
    parts = ["--data.num_valid=8", "--data.num_test=8", "--trainer.enable_progress_bar=false"]
    assert main(["fit", "--config", str(CONFIG), source, *parts, "--trainer.fast_dev_run=1", "--json", "fit.json"]) == 0
    assert np.isfinite(json.loads(Path("fit.json").read_text())["metrics"]["train/loss"])


def test_bad_input_is_refused_before_anything_is_measured(capsys: pytest.CaptureFixture[str], small: Program) -> None:
    refused(capsys, ["measure", PROGRAM, "--devices", "cpu:77", "--out", "out"], "no device 'cpu:77'")
    refused(capsys, ["measure", "nothing", "--out", "out"], "there is no program 'nothing'")
    refused(capsys, ["trace", "my_step.py"], "names a file; write my_step:FUNCTION")
    refused(capsys, measure("--random", "0"), "--random is 0")
    refused(capsys, measure("--memory-limit", "much"), "'much' is no size of memory")
    refused(capsys, measure("--time-limit", "0"), "--time-limit > 0")
    refused(capsys, measure("--plan", "nowhere.json"), "nowhere.json is no plan")

    there = Path("plan.json")
    there.write_text("{}")
    refused(capsys, measure("--plan", "plan.json"), "plan.json is no plan", "schema None")
    Plan(HERE, np.zeros(3, np.int64)).save(there)
    refused(capsys, measure("--plan", "plan.json"), "places 3 nodes", f"has {small.num_nodes}")
    Plan(("cpu:1-3",), np.zeros(small.num_nodes, np.int64)).save(there)
    refused(capsys, measure("--plan", "plan.json"), "uses device 'cpu:1-3'")

    alike = capture(WORKLOADS["rnnlm"](layers=1, hidden=8, steps=2, batch=2, vocabulary=12))
    assert alike.num_nodes == small.num_nodes and alike.key != small.key
    save_plan(Plan(HERE, np.zeros(alike.num_nodes, np.int64)), alike, there)
    refused(capsys, measure("--plan", "plan.json"), f"key {alike.key}", f"has {small.key}")
    assert not Path("out").exists()


def test_directories_that_hold_no_measured_plans(unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"no measured plans in 'nothing/\*'"):
        list(MeasuredPlans(["nothing/*"]))
    Log(Path("there/measurements.jsonl")).append({"name": "x"})
    with pytest.raises(ValueError, match="does not hold what gst measure writes"):
        list(MeasuredPlans(["there"]))
