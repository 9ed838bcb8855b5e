"""Screens that learned on simulated machines: what their features mean, and how they are judged."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.reproductions.pretrained_screen.__main__ import main, summary, task_of
from experiments.reproductions.pretrained_screen.chain_features import ChainFeatures, others_running
from experiments.reproductions.pretrained_screen.prior import Examples, Prior, examples, local_features
from experiments.reproductions.pretrained_screen.process import ErrorProcess
from gst.lowering.plan import Plan, Timeline
from gst.placement.search.random_plans import random_plans
from gst.placement.task import Task

ROOT = Path(__file__).parents[2]
TINY = "rnnlm:layers=1,hidden=8,steps=2,batch=2,vocabulary=10"


@pytest.fixture(scope="module")
def task() -> Task:
    return task_of(TINY, "sets:2")


@pytest.fixture(scope="module")
def plans(task: Task) -> list[Plan]:
    return [plan for _, plan in islice(random_plans(task), 12)]


def test_the_chain_and_its_waits_are_the_runtime(task: Task, plans: list[Plan]) -> None:
    for plan in plans:
        columns = ChainFeatures(task).columns(task.simulator.run(plan))
        parts = [columns[f"chain_by_{what}"].sum() for what in ("node", "kind", "device")]
        assert parts[1:] == pytest.approx(parts[:1] * 2) and parts[0] + columns["waits"].sum() == pytest.approx(1.0)


def test_the_chain_says_what_slower_operations_cost(task: Task, plans: list[Plan]) -> None:
    """All operations 0.1 % slower lengthen the runtime by 0.1 % of what the chain takes in operations."""
    slower = replace(task, costs=replace(task.costs, times_us=task.times_us * 1.001))
    for plan in plans:
        run = task.simulator.run(plan)
        share = ChainFeatures(task).columns(run)["chain_by_node"].sum()
        change = slower.simulator.run(plan).makespan_us / run.makespan_us - 1
        assert change == pytest.approx(0.001 * share, rel=0.05)


def test_others_that_run_meanwhile() -> None:
    begin, end = np.array([0.0, 0.0, 2.0, 5.0, 5.0]), np.array([4.0, 2.0, 6.0, 6.0, 5.0])
    run = Timeline(np.array([0, 1, 1, 0, 0]), begin, end)
    assert others_running(run).tolist() == [1.0, 1.0, 0.75, 1.0, 0.0]


def test_an_operation_that_stays_keeps_its_features(task: Task, plans: list[Plan]) -> None:
    producers, consumers = task.costs.edges
    for plan in plans:
        moved = plan.placement.copy()
        node = int(consumers[0])
        moved[node] = (moved[node] + 1) % 3
        before, after = local_features(task, plan.placement), local_features(task, moved)
        changed = np.flatnonzero((before != after).any(1))
        assert set(changed) <= {node, *consumers[producers == node].tolist()}
        assert node in changed or (task.times_us[:, node] == task.times_us[0, node]).all()


def test_priors_do_not_depend_on_the_order_of_operations(task: Task, plans: list[Plan]) -> None:
    torch.manual_seed(0)
    batch, prior = examples(ChainFeatures(task), plans), Prior(named=False, learned=True)
    order = np.random.default_rng(0).permutation(len(batch.kinds))
    shuffled = Examples(
        task, batch.plans, batch.columns, batch.local[:, order], batch.times[:, order], batch.kinds[order]
    )
    assert np.allclose(prior.rows(batch), prior.rows(shuffled), atol=1e-5)


def test_a_process_finds_the_weights_of_its_rows_and_says_how_sure_it_is() -> None:
    generator = np.random.default_rng(0)
    rows, weights = generator.normal(size=(60, 4)), generator.normal(size=4)
    logs = 0.3 + rows @ weights + 0.02 * generator.normal(size=60)
    process = ErrorProcess()
    process.learn(rows[:30], logs[:30])
    answers, deviations = process(rows[30:])
    assert np.abs(answers - logs[30:]).std() < 0.03 and np.abs(answers - logs[30:]).mean() < 2 * deviations.mean()
    assert (process(10 * rows[30:])[1] > deviations).all()
    process.learn(rows[:30], np.full(30, 0.5))
    assert np.allclose(process(rows)[0], 0.5)


@pytest.mark.e2e
@pytest.mark.slow
def test_screens_are_judged_on_predictions_and_in_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # of the tests' own process
    path = tmp_path / "result.json"
    main([
        "--trained", TINY, "--judged", TINY, "--generated", "1", "--seconds", "0.5", "--seeds", "2", "--scratch", "0",
        "--searches", "1", "--measured", "8", "--evaluations", "60", "--mutations", "20", "--json", str(path),
    ])  # fmt: skip
    result = json.loads(path.read_text())
    screens = {row["screen"] for row in result["predictions"]}
    assert screens == {"none", "ridge", "chain", "network", "both", "machines"}
    assert len(result["predictions"]) == 2 * 2 * len(screens) and len(result["searches"]) == 2
    assert all(row["regret"] >= 0 for row in result["predictions"]) and result["gains"].keys() == {"chain", "both"}


def test_the_recorded_table_is_whole() -> None:
    result = json.loads((ROOT / "experiments/results/pretrained_screen.json").read_text())
    assert "| 16 | ridge |" in summary(result["predictions"])
    assert len(result["searches"]) == 4 * result["settings"]["searches"]
