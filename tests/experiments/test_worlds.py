"""Hidden worlds differ from what is believed, fail and repeat; the fitted simulator finds what it can express."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.random_tasks import generated_task
from experiments.reproductions.go.imitation import distance
from experiments.worlds import sequence, study, transfer
from experiments.worlds.fitted import PARAMETERS, TenParameters
from experiments.worlds.scheduled import ScheduledNetwork, scheduled_graph, slack_us
from experiments.worlds.world import WORLDS, World, world
from gst.lowering.plan import Plan
from gst.placement.baselines.portfolio import single
from gst.placement.fitted import FittedSimulator
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.policies.go import GO
from gst.placement.search.neighbourhoods import mutate
from gst.placement.task import Task

ROOT = Path(__file__).parents[2]


def plans_of(task: Task, count: int) -> list[Plan]:
    rng, plans = np.random.default_rng(0), [single(task, 0)]
    while len(plans) < count:
        plans.append(mutate(task, plans[int(rng.integers(len(plans)))], rng))
    return list({plan.key: plan for plan in plans}.values())


def test_a_world_is_the_same_for_the_same_seed_and_unlike_what_is_believed() -> None:
    task = generated_task(3, num_nodes=120, num_devices=3)
    plans = plans_of(task, 40)
    one, again, other = world(task, 1), world(task, 1), world(task, 2)
    believed = SimulatedObjective(task)(plans)
    assert (one.ms(plans) == again.ms(plans)).all() and one.noise == again.noise
    assert np.std(np.log(one.ms(plans) / believed)) > 0.005, "not just all times by one factor"
    assert not np.isclose(one.ms(plans), other.ms(plans)).any()
    first, second = (one.measure(plans) for _ in range(2))
    assert [each.samples_ms for each in first] == [each.samples_ms for each in second]
    ratios = [np.log(sample / ms) for each, ms in zip(first, one.ms(plans), strict=True) for sample in each.samples_ms]
    assert np.std(ratios) == pytest.approx(one.noise, rel=0.3) and 0.01 <= one.noise <= 0.03


def test_plans_fail_where_memory_is_short_or_time_runs_out() -> None:
    task = generated_task(3, num_nodes=120, num_devices=2)
    plan = single(task, 0)
    needed = task.memory_use(task.simulator.run(plan))[task.devices[0].memory]
    short = tuple(replace(each, memory_limit=int(1.0001 * needed)) for each in task.devices)
    hidden = world(replace(task, costs=replace(task.costs, devices=short)), 0)
    assert np.isfinite(SimulatedObjective(hidden.task)([plan])[0]), "it is believed to fit"
    failed = hidden.measure([plan])[0]
    assert failed.outcome == "failed" and "memory" in failed.reason and np.isnan(failed.median_ms)
    limited = World(task, task, 0.01, 0.0, SimulatedObjective(task)([plan])[0] * 0.99, 0)
    assert np.isnan(limited.ms([plan])[0])


def test_ten_parameters_are_found_where_they_are_all_there_is() -> None:
    task = generated_task(3, num_nodes=120, num_devices=3)
    fitted, plans = TenParameters(task), plans_of(task, 80)
    true = np.array([0.4, -0.3, 0.2, 0.1, -0.2, 0.3, 0.5, -0.4, 3.0, 0.5])
    assert len(true) == len(PARAMETERS) == 10
    want = np.log(SimulatedObjective(fitted._of(true))(plans))
    simulated = SimulatedObjective(task)(plans)
    fitted.learn(plans[:40], simulated[:40], want[:40] - np.log(simulated[:40]))
    off = np.log(SimulatedObjective(fitted.corrected(task))(plans[40:])) - want[40:]
    before = np.log(simulated[40:]) - want[40:]
    assert np.abs(off).max() < 0.02 < np.abs(before).min()


def test_a_policy_that_has_learned_on_other_programs_is_kept_and_begins_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It imitates the other programs of its world, better than a new one."""
    names = ("40:0", "50:1", "60:2")
    monkeypatch.setitem(WORLDS, "giant", (WORLDS["giant"][0], names))
    monkeypatch.setattr(transfer, "GENERATED", 2)
    monkeypatch.setattr(transfer, "STEPS", 12)
    policy = transfer.pretrained("giant", names[0], tmp_path)
    again = transfer.pretrained("giant", names[0], tmp_path)
    assert all(torch.equal(one, other) for one, other in zip(policy.parameters(), again.parameters(), strict=True))
    new = GO(policy.tasks)
    [known] = transfer._example("giant", names[1])
    with torch.no_grad():
        assert distance(policy(known.inputs), known) < distance(new(known.inputs), known)
    training = transfer.fine_tuning(policy, generated_task(0, num_nodes=40, num_devices=4), 0, policy.tasks)
    assert all(
        torch.equal(one, other) for one, other in zip(training.policy.parameters(), policy.parameters(), strict=True)
    )
    task = training._task
    training.run(Budgeted(SimulatedObjective(task), 24))
    moved = zip(training.policy.parameters(), policy.parameters(), strict=True)
    assert not all(torch.equal(one, other) for one, other in moved)


def test_a_sequence_of_programs_is_searched_cold_and_warm_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WORLDS, "giant", (WORLDS["giant"][0], ("60:0", "80:1", "70:2")))
    monkeypatch.setattr(sequence, "EPOCHS", 1)
    monkeypatch.setattr(sequence, "NUM_PREDICTED", 30)
    options = Namespace(worlds="giant", seeds=1, budgets="12", evaluations=60, json=tmp_path / "sequence.json")
    result = sequence.run(options)
    told = [(row["place"], row["way"], row["budget"]) for row in result["rows"] if "way" in row]
    warm = [(place, way, budget) for place in (1, 2) for way in ("cold", "warm") for budget in (0, 12)]
    assert told == [(0, "cold", 0), (0, "cold", 12), *warm]
    figures = {row["model"]: row for row in result["rows"] if "model" in row}
    assert tuple(figures) == sequence.MODELS
    assert all(0 < row["error"] < 10 and abs(row["spearman"]) <= 1 and row["plans"] <= 30 for row in figures.values())
    assert len({row["error"] for row in figures.values()}) == 4
    assert result["compared"]["giant"]["warm at 12, cold at 12"][3] == 2
    assert sequence.run(options) == {}, "all rows are there"
    options.seeds = 2
    assert sequence.run(options)["rows"][: len(result["rows"])] == result["rows"]


@pytest.mark.e2e
def test_the_study_runs_and_goes_on_where_it_was(tmp_path: Path) -> None:
    path, ways = tmp_path / "worlds.json", [way for way in study.WAYS if way not in ("pretrained go", "zero-shot go")]
    command = [
        sys.executable, "-m", "experiments.worlds.study", "--worlds", "giant", "--programs", "60:0", "--seeds", "1",
        "--budgets", "16", "--evaluations", "40", "--ways", ",".join(ways), "--json", str(path),
    ]  # fmt: skip
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    first = json.loads(path.read_text())
    assert {row["way"] for row in first["rows"]} == {"start", *ways}
    assert all(row["ms"] > 0 for row in first["rows"]) and set(first["over_none"]["giant"]) >= {"gst at 16"}
    command[command.index("--seeds") + 1], command[command.index("--ways") + 1] = "2", "none,go"
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    rows = json.loads(path.read_text())["rows"]
    assert rows[: len(first["rows"])] == first["rows"] and {row["seed"] for row in rows} == {0, 1}
    assert json.loads(path.read_text())["over_none"]["giant"]["go at 16"][3] == 2
    wrong = subprocess.run([*command, "--ways", "best"], cwd=ROOT, capture_output=True, text=True)
    assert wrong.returncode == 2 and "there is no 'best'; there are" in wrong.stderr


def test_the_schedule_of_a_plan_says_how_busy_devices_are_and_what_may_wait() -> None:
    task = generated_task(0, num_nodes=60, num_devices=2)
    run = task.simulator.run(task.plan(np.arange(60) % 2))
    graph, computed = scheduled_graph(task, run), task.costs.computed
    busy = (run.end_us - run.begin_us).sum() / run.makespan_us
    assert graph.node_features[computed, 1].mean() == pytest.approx(busy, rel=1e-5)
    assert graph.num_edges == task.costs.edges.shape[1] + computed.sum() - 2  # the next on each device
    slack = slack_us(graph.edges, run)
    assert slack.min() >= -1e-6 and slack[run.end_us.argmax()] == 0 < slack.max()


def test_the_network_of_schedules_learns_that_busy_devices_are_slower() -> None:
    task, generator = generated_task(0, num_nodes=60, num_devices=2), np.random.default_rng(0)
    plans = [task.plan((generator.random(60) < generator.random()).astype(np.int64)) for _ in range(80)]
    runs = [task.simulator.run(plan) for plan in plans]
    slower = np.array([(run.end_us - run.begin_us).sum() / run.makespan_us for run in runs])
    model, simulated_ms = ScheduledNetwork(task, FittedSimulator(task)), task.simulator.makespans(plans) / 1e3
    model.learn(plans[:50], simulated_ms[:50], slower[:50])
    assert np.corrcoef(model.means(plans[50:], simulated_ms[50:]), slower[50:])[0, 1] > 0.8
