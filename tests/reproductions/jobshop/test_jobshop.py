"""Job shops: the reader, rollouts, tabu search and bounds, against a slow twin in plain Python."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from experiments.reproductions.jobshop.bounds import lower_bound, preemptive_bound
from experiments.reproductions.jobshop.graph import makespan_of, starts_of
from experiments.reproductions.jobshop.local_search import tabu_search
from experiments.reproductions.jobshop.network import NUM_WEIGHTS, initial_weights, load_weights, save_weights
from experiments.reproductions.jobshop.problem import JobShop, generated_job_shop, parse_job_shop, read_job_shop
from experiments.reproductions.jobshop.rollout import (
    FIRST_COME,
    MOST_WORK,
    NETWORK,
    SHORTEST,
    UNIFORM,
    roll_out,
    tables_of,
)
from experiments.reproductions.jobshop.search import rule_schedules, samples, search
from experiments.reproductions.jobshop.training import train

FIXTURES = Path(__file__).parents[2] / "fixtures" / "jobshop"
OPTIMA = {"ft06": 55, "la01": 666, "ft10": 930}


def longest_path(shop: JobShop, order: np.ndarray) -> int:
    """The slow twin: the longest path of the disjunctive graph, by recursion."""
    before: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    step = {(job, int(machine)): place for job, row in enumerate(shop.machines) for place, machine in enumerate(row)}
    for job in range(shop.num_jobs):
        for place in range(1, shop.num_machines):
            before[job, place].append((job, place - 1))
    for machine in range(shop.num_machines):
        row = [(int(job), step[int(job), machine]) for job in order[machine]]
        for first, second in pairwise(row):
            before[second].append(first)

    @cache
    def end(operation: tuple[int, int]) -> int:
        return max((end(other) for other in before[operation]), default=0) + int(shop.times[operation])

    return max(end((job, shop.num_machines - 1)) for job in range(shop.num_jobs))


def assert_feasible(shop: JobShop, order: np.ndarray, makespan: int) -> None:
    starts = starts_of(shop, order)
    ends = starts + shop.times
    assert (starts[:, 1:] >= ends[:, :-1]).all() and starts.min() >= 0
    for machine in range(shop.num_machines):
        here = shop.machines == machine
        by_start = np.lexsort((ends[here], starts[here]))
        assert (starts[here][by_start][1:] >= ends[here][by_start][:-1]).all()
    assert ends.max() == makespan == makespan_of(shop, order) == longest_path(shop, order)


def rolled(shop: JobShop, chooser: int, window: float, weights: np.ndarray | None = None) -> tuple[int, np.ndarray]:
    order = np.empty((shop.num_machines, shop.num_jobs), np.int64)
    weights = initial_weights(0) if weights is None else weights
    return int(roll_out(tables_of(shop), weights, chooser, window, np.ones(1, np.uint64), order)), order


@pytest.mark.parametrize("chooser", [NETWORK, UNIFORM, MOST_WORK, SHORTEST, FIRST_COME])
@pytest.mark.parametrize("window", [0.0, 0.5, 1.0])
def test_rollouts_are_feasible_and_their_makespan_is_the_longest_path(chooser: int, window: float) -> None:
    for seed, (jobs, machines) in enumerate([(1, 1), (1, 4), (5, 1), (6, 6), (4, 7), (12, 5)]):
        shop = generated_job_shop(seed, jobs, machines)
        makespan, order = rolled(shop, chooser, window)
        assert_feasible(shop, order, makespan)
        assert lower_bound(shop) <= makespan


def test_names_of_jobs_and_machines_and_the_unit_of_time_change_nothing() -> None:
    for seed in range(5):
        shop, generator = generated_job_shop(seed, 9, 6), np.random.default_rng(seed)
        shop = JobShop(shop.machines, generator.integers(1, 10**6, (9, 6)))  # times without ties
        jobs, machines = generator.permutation(9), generator.permutation(6)
        weights = load_weights()
        makespan, order = rolled(shop, NETWORK, -1.0, weights)
        again, other = rolled(JobShop(shop.machines[jobs], shop.times[jobs]), NETWORK, -1.0, weights)
        assert again == makespan and (jobs[other] == order).all()
        again, other = rolled(JobShop(machines[shop.machines], shop.times), NETWORK, -1.0, weights)
        assert again == makespan and (other[machines] == order).all()
        again, other = rolled(JobShop(shop.machines, 64 * shop.times), NETWORK, -1.0, weights)
        assert again == 64 * makespan and (other == order).all()


@pytest.mark.parametrize("name", sorted(OPTIMA))
def test_bound_optimum_and_search_keep_their_order(name: str) -> None:
    shop = read_job_shop(FIXTURES / f"{name}.txt")
    result = search(shop, None, 0.4, 0, load_weights())
    assert_feasible(shop, result.order, result.makespan)
    assert lower_bound(shop) <= OPTIMA[name] <= result.makespan <= rule_schedules(shop)[0][0]
    assert result.makespan <= 1.03 * OPTIMA[name]
    assert [span for _, span in result.history] == sorted({span for _, span in result.history}, reverse=True)


def test_tabu_search_is_exact_repeats_itself_and_makes_no_circle() -> None:
    for seed in range(8):
        shop = generated_job_shop(seed, 7 + seed % 3, 4 + seed % 4)
        results = []
        for _ in range(2):
            start, order = rolled(shop, UNIFORM, 1.0)
            counters, state = np.zeros(2, np.int64), np.full(1, 7, np.uint64)
            makespan = tabu_search(shop.machines, shop.times.reshape(-1), order, 2000, 2000, 0, state, counters)
            assert counters[1] == 0 and makespan <= start
            assert_feasible(shop, order, makespan)
            results.append((makespan, order.tolist()))
        assert results[0] == results[1]


def test_operations_that_take_no_time_make_no_circle() -> None:
    by_hand = JobShop(np.array([[0, 1], [1, 0]]), np.array([[3, 0], [0, 4]]))
    drawn = [generated_job_shop(seed, 6, 5) for seed in range(20)]
    none = [replace(shop, times=np.where(shop.times % 3 == 0, 0, shop.times)) for shop in drawn]
    for shop in (by_hand, *none):
        for seed in range(1, 6):
            order = np.tile(np.arange(shop.num_jobs), (shop.num_machines, 1))
            counters, state = np.zeros(2, np.int64), np.full(1, seed, np.uint64)
            makespan = tabu_search(shop.machines, shop.times.reshape(-1), order, 500, 500, 0, state, counters)
            assert counters[1] == 0
            assert_feasible(shop, order, makespan)


def test_tabu_search_comes_to_the_optimum_of_small_problems_that_cp_sat_proves() -> None:
    cp_model = pytest.importorskip("ortools.sat.python.cp_model", reason="CP-SAT comes with the extra experiments")
    for seed in range(3):
        shop = generated_job_shop(seed, 5, 4)
        model = cp_model.CpModel()
        span, rows = model.NewIntVar(0, 10**4, ""), [[] for _ in range(4)]
        for job in range(5):
            before = 0
            for machine, time in zip(shop.machines[job].tolist(), shop.times[job].tolist(), strict=True):
                start = model.NewIntVar(0, 10**4, "")
                rows[machine].append(model.NewFixedSizeIntervalVar(start, time, ""))
                model.Add(start >= before)
                before = start + time
            model.Add(span >= before)
        for row in rows:
            model.AddNoOverlap(row)
        model.Minimize(span)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        assert solver.Solve(model) == cp_model.OPTIMAL
        assert search(shop, None, 0.2, 0).makespan == solver.ObjectiveValue() >= lower_bound(shop)


def test_the_preemptive_bound_is_the_best_of_all_orders_without_heads() -> None:
    times, tails = [4, 2, 7, 1], [3, 9, 0, 5]
    order = np.argsort(tails)[::-1]
    spans = np.cumsum(np.array(times)[order]) + np.array(tails)[order]
    assert preemptive_bound([0] * 4, times, tails) == spans.max()


def test_samples_begin_with_the_plain_schedule_and_get_no_worse() -> None:
    shop, weights = generated_job_shop(3, 10, 6), load_weights()
    plain, _ = rolled(shop, NETWORK, -1.0, weights)
    one, many = samples(shop, weights, 0, 1)[0], samples(shop, weights, 0, 40)[0]
    assert one[0][0] == plain >= many[0][0]
    for makespan, order in many:
        assert_feasible(shop, order, makespan)


def test_training_learns_repeats_itself_and_its_weights_are_read_again(tmp_path: Path) -> None:
    first, second = train(1, steps=3), train(1, steps=3)
    assert (first.weights == second.weights).all() and (first.weights != initial_weights(1)).any()
    save_weights(tmp_path / "a.npz", first.weights)
    assert (load_weights(tmp_path / "a.npz") == first.weights).all()
    np.savez(tmp_path / "b.npz", weights=np.zeros(NUM_WEIGHTS, np.float32), features=np.array(["other"]))
    with pytest.raises(ValueError, match="these features"):
        load_weights(tmp_path / "b.npz")


def test_the_shipped_policy_is_better_than_untrained_weights_and_rules_on_problems_it_never_saw() -> None:
    ratios = []
    for seed in range(12):
        shop = generated_job_shop(2 * 10**9 + seed, 15, 10)
        trained = rolled(shop, NETWORK, -1.0, load_weights())[0]
        ratios.append([trained / rolled(shop, NETWORK, -1.0)[0], trained / rolled(shop, MOST_WORK, 0.0)[0]])
    assert (np.mean(ratios, axis=0) < 0.97).all()


def test_both_formats_say_the_same() -> None:
    shop = generated_job_shop(5, 4, 3)
    pairs = "\n".join(
        " ".join(f"{m} {t}" for m, t in zip(a, b, strict=True))
        for a, b in zip(shop.machines.tolist(), shop.times.tolist(), strict=True)
    )
    matrices = "\n".join(" ".join(map(str, row)) for row in [*shop.times.tolist(), *(shop.machines + 1).tolist()])
    for text in (f"# a comment\n4 3\n{pairs}\n", f"4 3 1234 5678 99 88\n{matrices}\n"):
        result = parse_job_shop(text)
        assert (result.machines == shop.machines).all() and (result.times == shop.times).all()


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "no numbers"),
        ("2\n", "2 jobs and 0 machines"),
        ("-1 2\n", "-1 jobs"),
        ("2 2\n0 3 1 2\n", "want 2 of 4"),
        ("2 2\n0 3 1 2\n1 2 0\n", "3 to 4 numbers"),
        ("2 2\n0 3 1 2\n1 2 1 4\n", "job 1 does not visit"),
        ("2 2\n0 3 1 2\n1 2 7 4\n", "job 1 does not visit"),
        ("2 2\n0 3 1 2\n1 2 0 -4\n", "times from -4"),
        ("2 2\n0 3 1 2\n1 2 0 x\n", "line 3"),
        ("2 2\n0 3 1 2\n1 2 0 99999999999999999999\n", "line 3"),
        ("2 2\n0 3 1 2\n1 2 0 -99999999999999999999\n", "line 3"),
        ("99999 99999\n", "operations"),
        ("20000 5\n", "20000 jobs on 5 machines need more than 1024 MiB for a search"),
    ],
)
def test_the_reader_refuses_what_is_no_job_shop_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "shop.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as refusal:
        read_job_shop(path)
    assert "\n" not in str(refusal.value) and "shop.txt" in str(refusal.value)
    with pytest.raises(ValueError, match="cannot be read"):
        read_job_shop(tmp_path / "none.txt")


def test_an_order_that_makes_jobs_wait_for_each_other_is_refused() -> None:
    shop = JobShop(np.array([[0, 1], [1, 0]]), np.array([[3, 2], [2, 4]]))
    with pytest.raises(ValueError, match="for ever"):
        starts_of(shop, np.array([[1, 0], [0, 1]]))
    with pytest.raises(ValueError, match="each job once"):
        starts_of(shop, np.array([[1, 1], [0, 1]]))
