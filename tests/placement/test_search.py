"""The loop: budgets, logs, resuming; and plans that are measured for real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gst.execution.measure import Log
from gst.placement.baselines.portfolio import portfolio
from gst.placement.loop import NUM_AGAIN, Loop
from gst.placement.task import Task
from tests.placement.pretended import Pretended


def begun(task: Task, log: Path, budget: int) -> Loop:
    return Loop(task, Pretended(task), Log(log), portfolio(task), budget, evaluations=60, rounds=2)


def searched(task: Task, log: Path, budget: int) -> Loop:
    search = begun(task, log, budget)
    search.run()
    return search


def test_the_budget_is_kept_and_the_baselines_are_in_it(task: Task, tmp_path: Path) -> None:
    baselines = {plan.key for plan in portfolio(task).values()}
    budget = 2 * len(baselines) + 4
    search = searched(task, tmp_path / "log.jsonl", budget)
    assert len(search.trials) == budget == len(Log(tmp_path / "log.jsonl").read())
    keys = {trial.plan.key for trial in search.trials}
    assert len(keys) == budget - NUM_AGAIN and baselines <= keys
    assert [trial.origin for trial in search.trials[-NUM_AGAIN:]] == NUM_AGAIN * ["again"]
    assert search.best().key in {trial.plan.key for trial in search.trials[-NUM_AGAIN:]}
    later = {trial.origin for trial in search.trials if trial.round > 0}
    assert {"again"} < later <= {"annealing", "mutation", "again"}
    assert all(trial.predicted_ms > 0 for trial in search.trials) and search.num_screened > 100


def test_a_resumed_search_measures_only_what_is_missing(task: Task, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    first = searched(task, log, 8)
    lines = log.read_text().splitlines()
    log.write_text("\n".join(lines) + "\n" + lines[0][: len(lines[0]) // 2])  # killed while writing
    second = searched(task, log, 12)
    assert [trial.plan.key for trial in second.trials[:8]] == [trial.plan.key for trial in first.trials]
    assert second.trials[3].measurement == first.trials[3].measurement
    assert len(second.trials) == 12 == len(Log(log).read())
    assert len({trial.plan.key for trial in second.trials if trial.origin != "again"}) >= 8


@pytest.fixture(scope="module")
def record(task: Task, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A trial as the log of a search holds it."""
    log = tmp_path_factory.mktemp("search") / "log.jsonl"
    searched(task, log, 2)
    made: dict[str, Any] = json.loads(log.read_text().splitlines()[0])
    assert made["program"] == task.key
    return made


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"program": "0123456789abcdef"}, "program 0123456789abcdef, now"),
        ({"memory_limits": {"host": 1000}}, "made with memory_limits {'host': 1000}"),
        ({"tasks": ["placement"]}, r"made with tasks \['placement'\], now it is \['placement', 'schedule'\]"),
        ({"measurement": {"machine": {"cpu": "another", "torch": "1.0"}}}, r"with (cpu another|torch 1\.0), now"),
    ],
)
def test_a_log_of_another_search_is_refused(
    task: Task, record: dict[str, Any], tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    log = tmp_path / "log.jsonl"
    other = record | changed | {"measurement": record["measurement"] | changed.get("measurement", {})}
    log.write_text(json.dumps(other) + "\n")
    with pytest.raises(ValueError, match=words):
        begun(task, log, 6).run()


def test_a_finished_search_goes_on_with_a_larger_budget_and_rests_with_a_smaller(task: Task, tmp_path: Path) -> None:
    """The plan it names is one of those measured again, of the old ones or of the new."""
    log = tmp_path / "log.jsonl"
    searched(task, log, 20)
    assert len(searched(task, log, 18).trials) == 20 == len(Log(log).read())
    log.write_text("".join(json.dumps(_slower(json.loads(line))) + "\n" for line in log.read_text().splitlines()))
    second = searched(task, log, 40)
    assert len(second.trials) == 40 == len(Log(log).read())
    assert second.best().key in {trial.plan.key for trial in second.trials[20:]}, "those of before are slower now"
    assert second.best().key in {trial.plan.key for trial in second.trials[-NUM_AGAIN:]}


def _slower(record: dict[str, Any]) -> dict[str, Any]:
    """As if it had been measured a thousand times as slow."""
    seen = record["measurement"]
    times = {key: 1e3 * seen[key] for key in ("median_ms", "low_ms", "high_ms")}
    return record | {"measurement": seen | times | {"samples_ms": [1e3 * each for each in seen["samples_ms"]]}}
