"""No plan beats the lower bounds, and on graphs so small that all schedules can be tried the least lies above them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.reproductions.public_problems.branching import Branched, branched_bound
from experiments.reproductions.public_problems.placing import placing_of
from experiments.reproductions.public_problems.table import PROVED, main
from gst.placement.baselines.bounds import lower_bound_us
from gst.placement.baselines.portfolio import portfolio
from gst.placement.machines import machine
from gst.placement.task import Task
from tests.placement.placement_graphs import FIXTURE
from tests.placement.random_tasks import MANY, NO_OVERHEAD, apart, core_sets, made_up, random_task
from tests.programs.small import small_program
from tests.reproductions.public_problems.brute_force import least_us

ROUNDING = 1 + 1e-9
RESULTS = Path(__file__).parents[3] / "experiments/results/public_graphs.json"


def branched(task: Task, most_us: float = np.inf, seconds: float = 100.0) -> Branched:
    return branched_bound(placing_of(task), 0.0, most_us, seconds)


def tiny(seed: int) -> Task:
    """2 to 8 operations on 2 or 3 devices, one in three with memory for half of them, one in five on sets of cores."""
    nodes, count = 2 + seed % 7, 2 + seed % 2
    if seed % 5 == 0:
        generator = np.random.default_rng(seed)
        alone = generator.lognormal(2, 1, nodes)
        times = np.stack([alone, alone, alone / generator.uniform(1.0, 2.0, nodes)])
        return made_up(random_task(seed, nodes).costs.edges, times, core_sets())
    limit = MANY * (nodes + 1) // 2 if seed % 3 == 0 else None
    task = random_task(seed, nodes, apart(count, limit), grouped=seed % 2 == 0)
    if seed % 4 == 0:  # devices that may be exchanged for each other
        task = replace(task, costs=replace(task.costs, times_us=task.times_us[[0]].repeat(count, 0)))
    return replace(task, contention=NO_OVERHEAD)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_bounds_of_tiny_graphs_are_below_the_least_of_all_schedules(first: int) -> None:
    for seed in range(first, first + 10):
        task = tiny(seed)
        least = least_us(task)
        bounds = [branched(task, most) for most in (np.inf, least)]
        assert all(each.complete for each in bounds), seed
        assert max(lower_bound_us(task), *(each.bound for each in bounds)) <= least * ROUNDING, seed
        assert bounds[1].bound >= bounds[0].bound / ROUNDING, "with a plan it proves no less"


def test_bounds_of_a_program_hold_for_plans_that_take_its_colocation_groups_apart() -> None:
    """Here all operations are one group, and the best plan has them on two devices."""
    whole = machine("cores:2").task(small_program("inception"))
    task = replace(whole, colocation=np.zeros(whole.num_nodes, np.int64), contention=NO_OVERHEAD)
    plans = portfolio(task)
    times = {name: task.simulator.run(plan).makespan_us for name, plan in plans.items()}
    best = min(times, key=times.__getitem__)
    assert len(set(plans[best].placement[task.costs.computed].tolist())) > 1, "else the test is void"
    assert max(lower_bound_us(task), branched(task, seconds=2.0).bound) <= times[best] * ROUNDING


def test_the_table_has_a_row_for_each_graph_and_keeps_the_rows_that_are_there(tmp_path: Path) -> None:
    folder, out = tmp_path / "latency_layer_graphs", tmp_path / "table.json"
    folder.mkdir()
    (folder / "bert24_inference.json").write_bytes(FIXTURE.read_bytes())
    arguments = ["--data", str(tmp_path), "--seeds", "1", "--evaluations", "40", "--seconds", ".1", "--json", str(out)]
    main(arguments)
    row = json.loads(out.read_text())["graphs"]["latency bert24_inference"]
    assert row["chains"] <= row["branches"] <= row["annealing"] and "expert" not in row, "no split is there"
    before = out.read_bytes()
    main(arguments)
    assert out.read_bytes() == before
    with pytest.raises(SystemExit, match="--data"):
        main(["--data", str(folder)])


def test_no_recorded_plan_is_below_its_bound() -> None:
    for name, row in json.loads(RESULTS.read_text())["graphs"].items():
        assert row["annealing"] >= max(row["chains"], row["branches"]) / (1 + PROVED), name
        assert row.get("search", np.inf) >= row.get("path", 0.0), name
