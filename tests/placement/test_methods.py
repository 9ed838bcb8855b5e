"""A method that is registered at run time is a method everywhere: in help, searches, results, reports and headlines."""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.random_tasks import generated_task
from gst.cli import main
from gst.execution.measure import Log
from gst.placement.baselines.portfolio import portfolio
from gst.placement.loop import Loop, report_rows
from gst.placement.measured import finalists
from gst.placement.methods import METHODS, Annealing, Method, registered
from gst.placement.objectives import SimulatedObjective
from gst.placement.planning import plan_all
from gst.reporting.headline import lead
from gst.reporting.placement import render
from tests.placement.pretended import Pretended

SOURCE = """
from gst.placement.methods import METHODS, Method
from gst.placement.methods import Anew
from gst.placement.search.annealing import anneal


def search(task, objective, seed, progress):
    anneal(task, objective, seed, progress)


METHODS["mine"] = Method(lambda task, seed, tasks: Anew(search, seed), "a hill climber of my own")
"""
PROGRAM = "rnnlm:layers=1,hidden=8,steps=2,batch=2,vocabulary=10"


@pytest.fixture(autouse=True)
def unchanged_methods() -> Iterator[None]:
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)
    sys.modules.pop("my_methods", None)


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The result of `gst place` by a method of a module in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("my_methods.py").write_text(SOURCE)
    arguments = ["place", PROGRAM, "--machine", "cores:2", "--evaluations", "150", "--methods", "my_methods:mine"]
    assert main([*arguments, "--out", "out", "--explain", "--json", "result.json"]) == 0
    record: dict[str, Any] = json.loads(Path("result.json").read_text())
    return record


def test_a_method_of_a_users_module_is_a_method_everywhere(
    result: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert result["methods"] == ["mine"] and result["plans"]["mine"]["evaluations"] == 150
    assert "search in simulation: mine" in result["explanation"]
    page = Path("out/report.html").read_text()
    assert "no search method was asked" not in page
    assert [name for name in result["plans"] if not result["words"][name]] == []
    for words in ("Methods and their sources", "m-TOPO of Baechi (Jeon et al., SoCC 2020)", "a hill climber of my own"):
        assert words in page
    again = result["command"].replace(" --machine cores:2", "").replace(" --out out", "")
    assert f"{again} --out runs/measured  # measure on this machine" in html.unescape(page)
    assert "The best plan was found by mine." in lead(result | {"best": "mine"})
    baseline = lead(result | {"best": "heft"})
    assert "The best plan is the baseline heft: no search method improved on it." in baseline
    plans = {name: plan for name, plan in result["plans"].items() if name != "mine"}
    asked_nothing = lead(result | {"best": "heft", "plans": plans, "methods": []})
    assert "no search method was asked" in asked_nothing
    with pytest.raises(SystemExit, match="0"):
        main(["place", "--help"])
    assert "mine (a hill climber of my own)" in " ".join(capsys.readouterr().out.split())


def test_its_measured_plans_are_those_of_a_method(tmp_path: Path) -> None:
    METHODS["mine"] = Method(lambda task, seed, tasks: Annealing(seed), "another one")
    task = generated_task(3, num_nodes=50, num_devices=3)
    loop = Loop(task, Pretended(task), Log(tmp_path / "log.jsonl"), portfolio(task), 30, 64, rounds=2, methods=["mine"])
    loop.run()
    measured = [trial for trial in loop.trials if trial.origin == "mine"]
    assert measured
    entry = report_rows(measured)[0]
    marks = [render({"measurements": [entry], "methods": names}) for names in ([], ["mine"])]
    assert marks[0] != marks[1], "the mark of a method is not that of a baseline"
    planned = plan_all(task, SimulatedObjective(task), ["mine"], 30)
    assert "mine" in finalists(planned, ["mine"], num_baselines=0)


def test_a_method_asks_by_its_cost_and_its_kind(tmp_path: Path) -> None:
    """A method whose plans take four times as long asks about a quarter; a local one is rewarded by predictions."""
    asked: dict[str, tuple[int, str]] = {}

    def method(name: str, **settings: Any) -> Method:
        def propose(task: Any, reward: Any, fastest: Any, progress: Any) -> list[Any]:
            asked[name] = reward.left, type(reward.objective).__name__
            return []

        return Method(lambda task, seed, tasks: propose, name, **settings)

    METHODS["cheap"], METHODS["dear"] = method("cheap"), method("dear", cost=4, is_local=True)
    task = generated_task(3, num_nodes=50, num_devices=3)
    log = Log(tmp_path / "log.jsonl")
    Loop(task, Pretended(task), log, portfolio(task), 16, 64, rounds=1, methods=["cheap", "dear"]).run()
    assert asked == {"cheap": (64, "Reward"), "dear": (16, "_Predicted")}


def test_what_is_no_method_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot import 'no_such_module' of the method 'no_such_module:mine'"):
        registered(["no_such_module:mine"])
    with pytest.raises(ValueError, match=r"registers no method 'mine', as by METHODS\['mine'\]"):
        registered(["annealing", "gst.placement.task:mine"])
