"""`gst place --again` and Ctrl-C: a plan moved to a changed program, and the best plan so far kept."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gst.cli import main
from gst.commands import place as place_command
from gst.devices import Log, Measurement, Plan
from gst.placement import command
from gst.placement.again import SIGNATURES, keep_best, moved, old_plan, save_signatures, signatures
from gst.placement.planning import BUDGET
from gst.placement.search import Trial
from gst.placement.task import save_plan
from gst.process.interrupts import Stopped
from gst.programs import Program, capture_module

DEVICES = ("cpu:0", "cpu:1")


def program(*layers: nn.Module) -> Program:
    return capture_module(nn.Sequential(*layers), (torch.zeros(2, 3),))


@pytest.fixture(scope="module")
def before() -> Program:
    return program(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5))


@pytest.fixture(scope="module")
def after() -> Program:
    return program(nn.Linear(3, 4), nn.ReLU(), nn.Sigmoid(), nn.Linear(4, 5))


def spread(of: Program) -> Plan:
    """Alternately on two devices, by colocation group."""
    numbers = np.arange(of.num_nodes, dtype=np.int64)
    return Plan(DEVICES, (of.colocation % 2).astype(np.int64), numbers[::-1].copy())


def test_the_same_program_keeps_its_plan(before: Program) -> None:
    assert moved(spread(before), signatures(before), before).key == spread(before).key


def test_what_is_alike_stays_and_what_is_new_goes_where_its_input_is(before: Program, after: Program) -> None:
    plan = moved(spread(before), signatures(before), after)
    placed = {each.name: int(plan.placement[node]) for node, each in enumerate(after.operations)}
    was = {each.name: int(spread(before).placement[node]) for node, each in enumerate(before.operations)}
    assert {name: placed[name] for name in was} == was
    new = next(node for node, each in enumerate(after.operations) if "sigmoid" in str(each.target))
    assert plan.placement[new] == plan.placement[after.operations[new].producers[0]]
    assert plan.priority is not None and plan.priority.shape == (after.num_nodes,)


@pytest.mark.parametrize("layers", [(nn.Tanh(),), (nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))])
def test_whatever_changed_groups_stay_together(before: Program, layers: tuple[nn.Module, ...]) -> None:
    other = capture_module(nn.Sequential(*layers).eval(), (torch.zeros(2, 3),))
    plan = moved(spread(before), signatures(before), other)
    for group in range(other.num_groups):
        assert len(set(plan.placement[other.colocation == group].tolist())) == 1


def test_a_directory_gives_its_plan_or_one_line(before: Program, after: Program, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no plan to begin with .*leave --again away"):
        old_plan(tmp_path, after, DEVICES)
    save_plan(spread(before), before, tmp_path / "plan.json")
    save_signatures(before, tmp_path / SIGNATURES)
    assert old_plan(tmp_path, after, DEVICES).placement.size == after.num_nodes
    with pytest.raises(ValueError, match="is for cpu:0, cpu:1, not cpu:0; give the same --devices"):
        old_plan(tmp_path, after, DEVICES[:1])
    (tmp_path / SIGNATURES).write_text("[1, 2]")
    with pytest.raises(ValueError, match="signatures are not those of its plan"):
        old_plan(tmp_path, after, DEVICES)


def trial(plan: Plan, median_ms: float, outcome: str = "ok") -> Trial:
    measured = Measurement("it", plan.key, (median_ms,), median_ms, median_ms, median_ms)
    return Trial(plan, "mutation", 1, float("nan"), replace(measured, outcome=outcome))  # type: ignore[arg-type]


def test_ctrl_c_keeps_the_best_plan_so_far(
    before: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert keep_best(before, tmp_path / "none.jsonl", tmp_path / "plan.json") == ""
    slow, fast = spread(before), replace(spread(before), priority=None)

    def stopped(*_: object, **__: object) -> None:
        log = Log(tmp_path / "out" / "measurements.jsonl")
        for each in (trial(slow, 9.0), trial(fast, 2.5), trial(slow, 1.0, "failed"), trial(slow, 0.5)):
            log.append(each.to_dict())
        of_groups = Plan(("cpu:0",), np.zeros(2, np.int64))  # was proposed; `ran` is the plan of the program
        ran = replace(slow, fusion=np.zeros(before.num_nodes, np.int64))
        log.append({**trial(of_groups, 3.0).to_dict(), "ran": ran.to_dict()})
        raise Stopped(2)

    monkeypatch.setattr(command, "traced", lambda name, kind: before)
    monkeypatch.setattr(command, "place_measured", stopped)
    assert main(["place", "rnnlm", "--devices", "cpu:0", "--out", str(tmp_path / "out")]) == 130
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "the best of 3 plans so far, 2.50 ms, is in" in last and last.endswith("--resume goes on")
    assert Plan.load(tmp_path / "out" / "plan.json").key == fast.key
    assert len(json.loads((tmp_path / "out" / SIGNATURES).read_text())) == before.num_nodes


@pytest.mark.parametrize("again", [True, False])
def test_the_plan_that_again_begins_with_stays_until_there_is_another(tmp_path: Path, again: bool) -> None:
    for name in ("plan.json", SIGNATURES, "costs.json"):
        (tmp_path / name).write_text("{}")
    command._clear(Namespace(resume=False, again=again, out=tmp_path))
    assert {each.name for each in tmp_path.iterdir()} == ({"plan.json", SIGNATURES} if again else set())


@pytest.mark.parametrize(("options", "seconds", "budget"), [
    ([], 60.0, BUDGET), (["--budget", "7"], float("inf"), 7), (["--seconds", "9"], 9.0, BUDGET),
    (["--seconds", "9", "--budget", "7"], 9.0, 7),
])  # fmt: skip
def test_a_minute_is_the_default_and_a_budget_takes_as_long_as_it_takes(
    options: list[str], seconds: float, budget: int, before: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, int]] = []

    def recorded(*arguments: object, **named: float) -> None:
        asked.append((named["seconds"], arguments[4].budget))  # type: ignore[attr-defined]
        raise ValueError("enough")

    monkeypatch.setattr(command, "traced", lambda name, kind: before)
    monkeypatch.setattr(command, "place_measured", recorded)
    assert main(["place", "rnnlm", "--devices", "cpu:0", "--out", str(tmp_path), *options]) == 2
    assert asked == [(seconds, budget)] and place_command.BUDGET == BUDGET


def test_again_goes_with_a_measured_plan_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in (["--resume"], ["--machine", "gpus:2"]):
        assert main(["place", "rnnlm", "--out", str(tmp_path), "--again", *more]) == 2
        assert "--again begins with the measured plan in --out" in capsys.readouterr().err
