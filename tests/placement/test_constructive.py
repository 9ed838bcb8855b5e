"""The constructive policy: its compiled rollouts against a slow twin and the simulator, and its training."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from experiments.reproductions.public_problems import training
from experiments.reproductions.public_problems.generated import SHAPES, generated_problem
from experiments.reproductions.public_problems.placing import SHARE, place_public
from experiments.reproductions.public_problems.problem import Problem
from experiments.reproductions.public_problems.proposing import propose
from experiments.reproductions.public_problems.training import State, train
from gst.cli import main
from gst.placement.baselines.arrays import moved, upward_rank
from gst.placement.policies.constructive.network import (
    FEATURES,
    HIDDEN,
    LAYER,
    NUM_FEATURES,
    NUM_PRIORITIES,
    NUM_WEIGHTS,
    OUTPUT,
    initial_weights,
    load_weights,
    rule_weights,
    save_weights,
)
from gst.placement.policies.constructive.rollout import roll_out, window_of
from gst.placement.policies.constructive.tables import MOST_CONSUMERS, Tables, tables_of, tables_of_arrays
from experiments.reproductions.public_problems.schedules import Schedule


def random_weights(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.5, NUM_WEIGHTS).astype(np.float32)


def built(
    problem: Problem, weights: np.ndarray, window: int, is_uniform: bool = False, tables: Tables | None = None
) -> tuple[float, Schedule]:
    home, order = np.full(problem.num_nodes, -1), np.full(problem.num_nodes, -1)
    state, first_come = np.array([7], np.uint64), problem.graph.first_come
    tables = tables_of(problem) if tables is None else tables
    span = roll_out(problem.arrays, tables, weights, window, is_uniform, first_come, state, home, order)
    return float(span), Schedule(problem, home, order)


class Twin:
    """A partial schedule with dictionaries: what the network is told of each pair, by the definitions."""

    def __init__(self, problem: Problem, tables: Tables | None = None, use: np.ndarray | None = None) -> None:
        self.problem, self.arrays = problem, problem.arrays
        self.tables = tables_of(problem) if tables is None else tables
        self.use = np.eye(len(problem.devices), dtype=bool) if use is None else use
        self.edges = [(number, a, b) for number, (a, b) in enumerate(problem.graph.edges.T.tolist())]
        self.devices = range(len(problem.devices))
        self.home: dict[int, int] = {}
        self.end: dict[int, float] = {}
        self.core_free = np.zeros(self.use.shape[1])
        self.place: dict[int, int] = {}
        self.used = dict.fromkeys(self.devices, 0.0)

    @property
    def free(self) -> dict[int, float]:
        return {device: float(self.core_free[self.use[device]].max()) for device in self.devices}

    def start(self, node: int, device: int) -> float:
        needs_none = self.tables.is_view_free and self.arrays.times[device, node] == 0
        return self.arrival(node, device) if needs_none else max(self.free[device], self.arrival(node, device))

    def ready(self) -> list[int]:
        waiting = {b for _, a, b in self.edges if a not in self.end}
        return [node for node in range(self.problem.num_nodes) if node not in waiting and node not in self.end]

    def arrival(self, node: int, device: int) -> float:
        """Of the values that are made already."""
        return max(
            [
                self.end[a] + moved(number, self.home[a], device, self.arrays)
                for number, a, b in self.edges if b == node and a in self.end
            ],
            default=0.0,
        )  # fmt: skip

    def pull(self, node: int, device: int) -> float:
        mean = self.problem.mean_transfers
        return sum(float(mean[n]) for n, a, b in self.edges if b == node and self.home.get(a) == device)

    def priority(self, node: int, weights: np.ndarray) -> float:
        soonest = min(self.arrival(node, device) for device in self.devices)
        if self.problem.graph.first_come:
            return -soonest
        static = float(weights[: NUM_PRIORITIES - 1] @ self.tables.priorities[:, node])
        return static + float(weights[NUM_PRIORITIES - 1]) * soonest / self.tables.horizon

    def may(self, node: int, device: int) -> bool:
        group = int(self.arrays.groups[node])
        if group in self.place:
            return self.place[group] == device
        able = all(np.isfinite(self.arrays.times[device, n]) for n in np.flatnonzero(self.arrays.groups == group))
        return able and self.used[device] + self.arrays.sizes[group] <= self.arrays.limits[device]

    def put(self, node: int, device: int) -> None:
        group = int(self.arrays.groups[node])
        if group not in self.place:
            self.place[group] = device
            self.used[device] += float(self.arrays.sizes[group])
        begin, took = self.start(node, device), float(self.arrays.times[device, node])
        self.home[node], self.end[node] = device, begin + took
        if took > 0 or not self.tables.is_view_free:
            self.core_free[self.use[device]] = self.end[node]

    def features(self, pairs: list[tuple[int, int]], num_ready: int) -> dict[tuple[int, int], np.ndarray]:
        tables, times, mean = self.tables, self.arrays.times, self.problem.mean_transfers
        scale, horizon = tables.scale, tables.horizon
        rank = upward_rank(self.problem.mean_times, mean, self.arrays)
        start = {(n, d): self.start(n, d) for n, d in pairs}
        end = {(n, d): start[n, d] + float(times[d, n]) for n, d in pairs}
        everyone, result = {n for n, _ in pairs}, {}
        for node, device in pairs:
            mine = [d for n, d in pairs if n == node]
            outs = [(number, b) for number, a, b in self.edges if a == node]
            heads = sorted(outs, key=lambda out: -(mean[out[0]] + rank[out[1]]))[:MOST_CONSUMERS]
            alone = sum(
                all(a in self.end or a == node for _, a, b in self.edges if b == consumer) for _, consumer in heads
            )
            forward = {
                d: sum(
                    self.pull(c, d) + (mean[number] if self.place.get(int(self.arrays.groups[c])) == d else 0.0)
                    for number, c in heads
                )
                for d in self.devices
            }
            later = {d: max(end[node, d], self.arrival(heads[0][1], d) if heads else 0.0) for d in mine}
            ends = sorted(end[node, d] for d in mine)
            ahead = {d: end[node, d] + float(tables.optimistic[d, node]) for d in mine}
            group = int(self.arrays.groups[node])
            limit, here = float(self.arrays.limits[device]), (node, device)
            values = {
                "rank": rank[node] / horizon,
                "rank_below_first": (rank[node] - max(rank[n] for n in everyone)) / scale,
                "sufferage": (ends[1] - ends[0]) / scale if len(ends) > 1 else 10.0,
                "transfer_out": max((mean[number] for number, _ in outs), default=0.0) / scale,
                "num_consumers": len(outs) / 4,
                "consumers_waiting_for_it_alone": alone,
                "time": self.problem.mean_times[node] / scale,
                "ready_before_devices": (min(self.arrival(node, d) for d in mine) - min(self.free.values())) / scale,
                "group_to_come": 0.0 if group in self.place else
                (sum(self.problem.mean_times[self.arrays.groups == group]) - self.problem.mean_times[node]) / scale,
                "start": (start[here] - min(start.values())) / scale,
                "finish_of_its_own": (end[here] - ends[0]) / scale,
                "finish": (end[here] - min(end.values())) / scale,
                "idle_gap": (start[here] - self.free[device]) / scale,
                "wait_for_device": (start[here] - self.arrival(*here)) / scale,
                "finish_and_optimistic": (ahead[device] - min(ahead.values())) / scale,
                "finish_and_optimistic_of_its_own": (ahead[device] - ends[0]) / horizon,
                "way_to_the_end": (end[here] + rank[node] - self.problem.mean_times[node]) / horizon,
                "slower_than_best": (times[device, node] - min(times[d, node] for d in mine)) / scale,
                "inputs_here": self.pull(*here) / scale,
                "bytes_to_move": sum(self.pull(node, d) for d in self.devices if d != device) / scale,
                "inputs_of_consumers_here": forward[device] / scale,
                "inputs_of_consumers_elsewhere": (max(forward.values()) - forward[device]) / scale,
                "start_of_consumer": (later[device] - min(later.values())) / scale,
                "device_busy": (self.free[device] - min(self.free.values())) / scale,
                "device_over_mean": (self.free[device] - sum(self.free.values()) / len(self.free)) / horizon,
                "memory_left": (limit - self.used[device]) / limit if np.isfinite(limit) else 1.0,
                "work_left": 1 - sum(self.problem.mean_times[n] for n in self.end) / self.problem.mean_times.sum(),
                "num_ready": num_ready / len(self.devices),
                "transfers_to_times": mean.sum() / self.problem.mean_times.sum(),
                "first_come": float(self.problem.graph.first_come),
            }  # fmt: skip
            assert tuple(values) == FEATURES
            result[here] = np.array([float(value) for value in values.values()])
        return result


def score_slowly(features: np.ndarray, weights: np.ndarray) -> float:
    squashed = features / (1 + np.abs(features))
    layer = weights[LAYER:OUTPUT].reshape(HIDDEN, NUM_FEATURES + 1).astype(np.float64)
    hidden = np.maximum(layer[:, :-1] @ squashed + layer[:, -1], 0.0)
    return float(weights[NUM_PRIORITIES:LAYER] @ squashed + weights[OUTPUT:] @ hidden)


def check_by_twin(problem: Problem, twin: Twin, weights: np.ndarray) -> None:
    window = window_of(len(problem.devices))
    span, schedule = built(problem, weights, window, tables=twin.tables)
    for node, device in zip(schedule.order.tolist(), schedule.home[schedule.order].tolist(), strict=True):
        ready = sorted(twin.ready(), key=lambda each: -twin.priority(each, weights))
        pairs = [(n, d) for n, d in product(ready[:window], twin.devices) if twin.may(n, d)]
        assert (node, device) in pairs
        scores = {pair: score_slowly(row, weights) for pair, row in twin.features(pairs, len(ready)).items()}
        assert scores[node, device] == pytest.approx(max(scores.values()), abs=1e-4)
        twin.put(node, device)
    assert span == max(twin.end.values())


@pytest.mark.parametrize("seed", range(12))
def test_every_decision_of_a_rollout_is_the_best_by_a_slow_twin(seed: int) -> None:
    problem = generated_problem(seed, nodes=18)
    check_by_twin(problem, Twin(problem), random_weights(seed))


@pytest.mark.parametrize("seed", range(8))
def test_so_is_every_decision_where_devices_share_cores_and_views_take_no_time(seed: int) -> None:
    problem, generator = generated_problem(seed, nodes=18), np.random.default_rng(seed)
    use = generator.random((len(problem.devices), 3)) < 0.5
    use[np.arange(len(use)), generator.integers(0, 3, len(use))] = True
    times = problem.arrays.times * (generator.random(problem.num_nodes) < 0.7)
    limits = np.full_like(problem.arrays.limits, np.inf)
    problem = replace(problem, arrays=problem.arrays._replace(times=times, limits=limits))
    tables = tables_of_arrays(problem.arrays, problem.mean_transfers, use, is_view_free=True)
    check_by_twin(problem, Twin(problem, tables, use), random_weights(seed))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_rollout_takes_as_long_as_the_simulator_says(shape: str) -> None:
    for seed in range(6):
        problem = generated_problem(seed, nodes=60 + 40 * seed, shape=shape)
        edges = problem.graph.edges
        assert (edges[0] < edges[1]).all() and len(np.unique(edges, axis=1).T) == edges.shape[1]
        for is_uniform in (False, True):
            span, schedule = built(problem, random_weights(seed), 4, is_uniform)
            if np.isinf(span):  # the memories were filled without room for what came last
                assert np.isfinite(problem.arrays.limits).any()
                continue
            assert not schedule.reason
            if not problem.graph.first_come:
                assert schedule.makespan * problem.graph.scale == span
            position = np.argsort(schedule.order)
            assert (position[edges[0]] < position[edges[1]]).all()


def test_the_rule_is_a_list_schedule_by_upward_rank() -> None:
    problem = generated_problem(4, nodes=80, devices=3, shape="layers")
    schedule = built(problem, rule_weights(), 1)[1]
    twin, rank = Twin(problem), upward_rank(problem.mean_times, problem.mean_transfers, problem.arrays)
    while ready := twin.ready():
        node = max(ready, key=lambda each: rank[each])
        twin.put(node, min(
            (d for d in twin.devices if twin.may(node, d)),
            key=lambda d: max(twin.free[d], twin.arrival(node, d)) + problem.arrays.times[d, node],
        ))  # fmt: skip
    assert schedule.makespan * problem.graph.scale == max(twin.end.values())


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


def test_files_of_weights_are_checked(tmp_path: Path) -> None:
    save_weights(tmp_path / "weights.npz", initial_weights(0))
    assert (load_weights(tmp_path / "weights.npz") == initial_weights(0)).all()
    with pytest.raises(ValueError, match="no such file"):
        load_weights(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("weights")
    with pytest.raises(ValueError, match="not a readable npz"):
        load_weights(tmp_path / "text.npz")
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    with pytest.raises(ValueError, match="has no features, priorities"):
        load_weights(tmp_path / "other.npz")
    np.savez(tmp_path / "few.npz", weights=np.zeros(3), features=np.array(FEATURES), priorities=np.array(["a"]))
    with pytest.raises(ValueError, match="train again"):
        load_weights(tmp_path / "few.npz")
    broken = initial_weights(0)
    broken[5] = np.nan
    save_weights(tmp_path / "nan.npz", broken)
    with pytest.raises(ValueError, match="not finite"):
        load_weights(tmp_path / "nan.npz")
    with pytest.raises(ValueError, match="not a state"):
        State.load(tmp_path / "nan.npz")


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
def test_gst_place_begins_with_the_policy_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(0)
    ends = [(int(generator.integers(max(0, node - 9), node)), node) for node in range(3, 60) for _ in range(2)]
    costs = "\n".join(f"{cost}0000000,{cost}0000000" for cost in generator.integers(1, 99, 60).tolist())
    lines = ["60", "", *(",".join(str(pair[side]) for pair in ends) for side in (0, 1)), costs]
    (tmp_path / "graph.txt").write_text("\n".join(lines) + "\n")
    place = ["place", "--graph", str(tmp_path / "graph.txt"), "--machine", "gpus:3", "--seconds", "0.2", "--quiet"]
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
