"""Training of the constructive policy on generated problems, its proposals, and annealing that begins with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.reproductions.public_problems import training
from experiments.reproductions.public_problems.__main__ import main
from experiments.reproductions.public_problems.generated import generated_problem
from experiments.reproductions.public_problems.placing import SHARE, place_public
from experiments.reproductions.public_problems.problem import Problem
from experiments.reproductions.public_problems.proposing import propose
from experiments.reproductions.public_problems.schedules import Schedule
from experiments.reproductions.public_problems.training import State, train
from experiments.reproductions.public_problems.weights import initial_weights, load_weights, save_weights
from gst.placement.policies.constructive.network import NUM_WEIGHTS


def test_memories_that_hold_nothing_give_no_schedule() -> None:
    problem = generated_problem(1, nodes=30, devices=2)
    full = problem.arrays._replace(limits=np.zeros(2), sizes=np.ones(len(problem.arrays.sizes)))
    problem = replace(problem, arrays=full)
    proposal = propose(problem, initial_weights(0), samples=5)
    assert proposal.best is None and proposal.greedy is None and proposal.samples == 5


def test_samples_are_the_same_for_the_same_seed_and_never_behind_the_greedy_one() -> None:
    problem = generated_problem(8, nodes=150, devices=4)
    one, other = (propose(problem, initial_weights(0), samples=40, seed=3) for _ in range(2))
    assert one.best is not None and other.best is not None and one.greedy is not None
    assert (one.best.home == other.best.home).all() and one.best.makespan <= one.greedy.makespan


def test_training_goes_on_where_it_stopped_and_is_the_same_for_the_same_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "EVERY", 3)
    state = train(State.new(1), steps=3, most=30, save=tmp_path / "state.npz")
    again = State.load(tmp_path / "state.npz")
    assert again.step == 3 and (again.weights == state.weights).all() and again.curve == state.curve
    assert [step for step, _ in state.curve] == [3]
    further = train(again, steps=5, most=30)
    assert further.step == 5 and (further.weights != state.weights).any()
    assert (train(State.new(1), steps=3, most=30).weights == state.weights).all()


def test_training_learns_from_weights_that_say_nothing() -> None:
    nothing = replace(State.new(0), weights=np.zeros(NUM_WEIGHTS, np.float32))
    state = train(nothing, steps=24, most=40)
    spans = {}
    for name, weights in (("before", nothing.weights), ("after", state.weights)):
        plans = [propose(generated_problem(seed, nodes=40, devices=3), weights).greedy for seed in range(1000, 1020)]
        spans[name] = float(np.mean([np.log(plan.makespan) for plan in plans if plan is not None]))
    assert spans["after"] < spans["before"] - 0.2


def test_the_command_trains_goes_on_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_policy = ["train-policy", "--out", str(tmp_path / "policy"), "--most-operations", "25"]
    assert main([*train_policy, "--steps", "2", "--quiet"]) == 0
    assert "2 steps in" in capsys.readouterr().out
    assert main([*train_policy, "--steps", "3", "--quiet"]) == 2
    assert "add --resume to go on with it" in capsys.readouterr().err
    assert main([*train_policy, "--steps", "3", "--quiet", "--resume"]) == 0
    assert "3 steps in" in capsys.readouterr().out
    weights = load_weights(tmp_path / "policy/weights.npz")
    assert (weights == State.load(tmp_path / "policy/state.npz").average).all()
    for arguments, reason in (
        (["--steps", "0"], "--steps is 0, want 1 or more"),
        (["--seconds", "0"], "--seconds is 0.0, want more than 0"),
        (["--most-operations", "5"], "want 20 or more"),
    ):
        assert main(["train-policy", "--out", str(tmp_path / "other"), *arguments]) == 2
        assert reason in capsys.readouterr().err


def test_the_shipped_weights_are_better_than_before_training_on_problems_held_out() -> None:
    logs = {}
    for name, weights in (("shipped", load_weights()), ("before", initial_weights(0))):
        plans = [propose(generated_problem(10**9 + seed, nodes=120), weights).greedy for seed in range(40)]
        logs[name] = float(np.mean([np.log(plan.makespan) for plan in plans if plan is not None]))
    assert logs["shipped"] < logs["before"] - 0.01


def test_annealing_begins_with_the_best_plan_of_a_policy() -> None:
    problem = generated_problem(11, nodes=200, devices=4, shape="transformer")
    without, _ = place_public(problem, 0.0)
    best = propose(problem, load_weights(), samples=200).best
    assert best is not None
    calls = []

    def proposals(asked: Problem, seconds: float, seed: int) -> dict[str, Schedule]:
        calls.append((asked, seconds, seed))
        return {"policy:best": best}

    result, plan = place_public(problem, 0.3, seed=5, proposer=proposals)
    assert calls == [(problem, 0.0, 5), (problem, pytest.approx(0.3 * SHARE), 5)]
    assert result["plans"]["policy:best"]["makespan"] == best.makespan < without["objective"]
    assert plan.makespan <= best.makespan and result["plans"]["annealing"]["makespan"] <= best.makespan
    nothing, _ = place_public(problem, 0.1, proposer=lambda *_: {})
    assert "annealing" in nothing["plans"] and nothing["objective"] <= without["objective"]


@pytest.mark.e2e
def test_placing_begins_with_the_policy_unless_another_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(0)
    ends = [(int(generator.integers(max(0, node - 9), node)), node) for node in range(3, 60) for _ in range(2)]
    costs = "\n".join(f"{cost}0000000,{cost}0000000" for cost in generator.integers(1, 99, 60).tolist())
    lines = ["60", "", *(",".join(str(pair[side]) for pair in ends) for side in (0, 1)), costs]
    (tmp_path / "graph.txt").write_text("\n".join(lines) + "\n")
    place = ["place", str(tmp_path / "graph.txt"), "--machine", "gpus:3", "--seconds", "0.2", "--quiet"]
    place += ["--out", str(tmp_path / "out")]
    assert main(place) == 0
    assert "policy:best" in capsys.readouterr().out
    assert main([*place, "--policy", "none"]) == 0
    assert "policy" not in capsys.readouterr().out
    save_weights(tmp_path / "mine.npz", initial_weights(0))
    assert main([*place, "--policy", str(tmp_path / "mine.npz")]) == 0
    assert "policy:best" in capsys.readouterr().out
    assert main([*place, "--policy", str(tmp_path / "none.npz")]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_a_file_of_weights_is_no_state(tmp_path: Path) -> None:
    save_weights(tmp_path / "weights.npz", initial_weights(0))
    with pytest.raises(ValueError, match="not a state"):
        State.load(tmp_path / "weights.npz")
