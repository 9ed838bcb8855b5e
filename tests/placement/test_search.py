"""The loop on real devices, small: budgets, logs, resuming, and never worse than the baselines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gst.cli import main
from gst.cost import CostModel
from gst.devices import Executor, Log, Plan
from gst.devices.isolated import IsolatedExecutor
from gst.placement.baselines import Task, portfolio
from gst.placement.runtime import MeasuredRuntime
from gst.placement.search import Search
from gst.programs import TrainingStep
from gst.programs.workloads import rnnlm
from gst.store import open_store


def small() -> TrainingStep:
    """What `gst demo --program` is given below."""
    return rnnlm(layers=2, hidden=16, steps=3, batch=4, vocabulary=30)


def searched(task: Task, log: Path, budget: int) -> Search:
    with Executor(task.program, task.devices) as executor:
        search = Search(task, MeasuredRuntime(executor, repetitions=3), Log(log), budget, rounds=2)
        search.run()
    return search


def test_the_budget_is_kept_and_the_baselines_are_in_it(task: Task, tmp_path: Path) -> None:
    search = searched(task, tmp_path / "log.jsonl", 14)
    assert len(search.trials) == 14 == len(Log(tmp_path / "log.jsonl").read())
    keys = {trial.plan.key for trial in search.trials}
    assert len(keys) == 14 and {plan.key for plan in portfolio(task).values()} <= keys
    best = search.best()
    assert all(best.measurement.median_ms <= trial.measurement.median_ms for trial in search.trials)
    assert {trial.origin for trial in search.trials} >= {"baseline", "policy", "mutation"}
    assert all(np.isnan(trial.predicted_ms) == (trial.round == 0) for trial in search.trials)


def test_a_resumed_search_measures_only_what_is_missing(task: Task, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    first = searched(task, log, 8)
    lines = log.read_text().splitlines()
    log.write_text("\n".join(lines) + "\n" + lines[0][: len(lines[0]) // 2])  # killed while writing
    second = searched(task, log, 12)
    assert [trial.plan.key for trial in second.trials[:8]] == [trial.plan.key for trial in first.trials]
    assert second.trials[3].measurement == first.trials[3].measurement
    assert len(second.trials) == 12 == len(Log(log).read())


def test_a_search_killed_among_its_first_plans_repeats_none(task: Task, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    searched(task, log, 18)
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:6]))
    assert len({trial.plan.key for trial in searched(task, log, 18).trials}) == 18


def test_a_budget_below_the_baselines_is_refused(task: Task, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="budget of 3"):
        searched(task, tmp_path / "log.jsonl", 3)


def test_a_log_of_another_program_is_refused(task: Task, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    searched(task, log, 6)
    record = json.loads(log.read_text().splitlines()[0])
    assert record["program"] == task.program.key
    record["program"] = "0123456789abcdef"
    log.write_text(json.dumps(record) + "\n")
    with Executor(task.program, task.devices) as executor, pytest.raises(ValueError, match="another program"):
        Search(task, MeasuredRuntime(executor), Log(log), 6)


def test_plans_may_be_measured_in_a_process_of_their_own(task: Task, tmp_path: Path) -> None:
    task.program.save(tmp_path / "program")
    plans = list(portfolio(task).values())[:2]
    with IsolatedExecutor(tmp_path / "program", task.devices) as isolated:
        runtime = MeasuredRuntime(isolated, repetitions=2)
        assert [each.plan_key for each in runtime.measure(plans)] == [plan.key for plan in plans]
        assert (runtime(plans) > 0).all()


@pytest.mark.slow
def test_gst_demo_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert main(["demo", "--program", "test_search:small", "--budget", "12", "--json", "demo.json"]) == 0
    result = json.loads(Path("demo.json").read_text())
    assert result.keys() >= {"program", "num_nodes", "devices", "plans", "best", "pytorch_ms", "cost_model", "command"}
    assert {"pytorch", "searched"} <= result["plans"].keys()
    assert result["plans"][result["best"]]["median_ms"] == min(
        plan["median_ms"] for name, plan in result["plans"].items() if name != "pytorch"
    )
    for plan in result["plans"].values():
        assert plan["low_ms"] <= plan["median_ms"] <= plan["high_ms"] and plan["measurements"] >= 20
    assert result["cost_model"]["num_measured"] <= 12
    out = Path("runs/demo")
    assert len(Plan.load(out / "plan.json").placement) == result["num_nodes"]
    assert len(Log(out / "measurements.jsonl").read()) == result["cost_model"]["num_measured"]
    assert "</html>" in (out / "report.html").read_text()
    stores = [path.parent for path in (out / "dataset").glob("*/meta.json")]
    graphs = [open_store(directory)[0] for directory in stores]
    assert graphs[0].num_nodes == result["num_nodes"]
    if len(result["devices"]) > 1:
        assert CostModel.load(out / "cost_model.pt").settings["channels"] > 0
