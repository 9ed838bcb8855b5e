"""The constructive policy: its compiled rollouts against a slow twin and the simulator, and its weights."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from experiments.reproductions.public_problems.generated import SHAPES, generated_problem
from experiments.reproductions.public_problems.problem import Problem
from experiments.reproductions.public_problems.schedules import Schedule
from experiments.reproductions.public_problems.weights import initial_weights, load_weights, rule_weights, save_weights

from gst.placement.baselines.arrays import moved, scheduled, upward_rank
from gst.placement.policies.constructive.network import (
    FEATURES,
    HIDDEN,
    LAYER,
    MOST_CONSUMERS,
    NUM_FEATURES,
    NUM_PRIORITIES,
    NUM_WEIGHTS,
    OUTPUT,
    Tables,
    tables_of,
)
from gst.placement.policies.constructive.rollout import roll_out, window_of


def random_weights(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.5, NUM_WEIGHTS).astype(np.float32)


def built(
    problem: Problem, weights: np.ndarray, window: int, is_uniform: bool = False, tables: Tables | None = None
) -> tuple[float, Schedule]:
    home, order = np.full(problem.num_nodes, -1), np.full(problem.num_nodes, -1)
    state, first_come = np.array([7], np.uint64), problem.graph.first_come
    tables = tables_of(problem.scheduled, problem.mean_transfers) if tables is None else tables
    span = roll_out(problem.arrays, tables, weights, window, is_uniform, first_come, state, home, order)
    return float(span), Schedule(problem, home, order)


class Twin:
    """A partial schedule with dictionaries: what the network is told of each pair, by the definitions."""

    def __init__(self, problem: Problem, tables: Tables | None = None, use: np.ndarray | None = None) -> None:
        self.problem, self.arrays = problem, problem.arrays
        self.tables = tables_of(problem.scheduled, problem.mean_transfers) if tables is None else tables
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
    tables = tables_of(scheduled(problem.arrays, use), problem.mean_transfers, is_view_free=True)
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
    with pytest.raises(ValueError, match="train the policy again"):
        load_weights(tmp_path / "few.npz")
    broken = initial_weights(0)
    broken[5] = np.nan
    save_weights(tmp_path / "nan.npz", broken)
    with pytest.raises(ValueError, match="not finite"):
        load_weights(tmp_path / "nan.npz")
