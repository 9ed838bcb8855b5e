"""The fitted simulator: its derivatives are those of the simulator, and its posterior is that of a linear model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.random_tasks import generated_task
from gst.execution.measure import Log
from gst.lowering.plan import Plan, Timeline
from gst.placement.baselines.portfolio import portfolio, single
from gst.placement.cost_models import LEARNED, NetworkOnFitted, load_costs, save_costs
from gst.placement.fitted import UNSURE, Fitted, FittedSimulator, layout
from gst.placement.loop import Loop
from gst.placement.machines import machine
from gst.placement.objectives import Reward, SimulatedObjective, Surrogate, limits
from gst.placement.planning import Settings
from gst.placement.search.neighbourhoods import mutate
from gst.placement.task import Task
from gst.programs import traced
from gst.simulation.copies import copies_of, critical_path
from tests.choices import with_rest
from tests.placement.pretended import Pretended


def plans_of(task: Task, count: int) -> list[Plan]:
    rng, plans = np.random.default_rng(0), list(portfolio(task).values())
    while len(plans) < count:
        plans.append(mutate(task, plans[int(rng.integers(len(plans)))], rng))
    return plans[:count]


def task_of(name: str) -> Task:
    if name == "queues":  # copies wait for each other, in lanes
        return machine("gpus:3").task(traced("rnnlm:layers=1,hidden=32,steps=4", kind="cuda"))
    if name == "cores":
        return machine("cores:3").task(traced("rnnlm:layers=1,hidden=32,steps=4"))
    if name == "one memory":  # where operations wait for each other, and slow each other down
        apart = machine("gpus:3").task(traced("rnnlm:layers=1,hidden=32,steps=4", kind="cuda"))
        devices = tuple(replace(each, memory="cuda:0") for each in apart.devices)
        delays = apart.contention._replace(hand_over_us=2.0, wake_us=2.0)
        nothing = {"latency_us": np.zeros((3, 3)), "bytes_per_us": np.full((3, 3), np.inf), "copies_queue": False}
        return replace(apart, costs=replace(apart.costs, devices=devices, **nothing), contention=delays)
    if name == "core sets":  # devices that use several cores
        return next(task for task in map(generated_task, range(100)) if "-" in task.names[-1] and task.num_nodes < 200)
    return generated_task(3, num_nodes=120, num_devices=3)


@pytest.mark.parametrize("name", ["generated", "queues", "cores", "one memory", "core sets"])
def test_derivatives_are_shares_of_the_critical_path(name: str) -> None:
    task = task_of(name)
    places, plans = layout(task), plans_of(task, 24)
    begin = 0.05 * np.abs(np.random.default_rng(1).standard_normal(len(places.widths)))  # no time is less than none
    logs, rows = Fitted(task, places, begin).logs_and_rows(plans)
    right, step = [], 1e-6
    assert all(abs(rows[:, place]).max() > 0 for place in places.contention.values())
    for number in np.flatnonzero(np.abs(rows).max(0) > 1e-3):
        there = begin.copy()
        there[number] += step
        numeric = (np.log(Fitted(task, places, there).simulator.makespans(plans) / 1e3) - logs) / step
        right += (np.abs(numeric - rows[:, number]) < 1e-3 + 1e-2 * np.abs(numeric)).tolist()
    least = {"core sets": 0.8, "one memory": 0.9}  # sets also wait for helpers; slowed operations count as fast ones
    assert len(right) > 200 and np.mean(right) > least.get(name, 0.97)


def test_the_critical_path_ends_where_rounding_turns_the_order_of_operations() -> None:
    """The second reads the first, which takes no time and seems to begin a little after it."""
    task = machine("cores:1").task(traced("rnnlm:layers=1,hidden=32,steps=4"))
    run, computed = task.simulator.run(single(task, 0)), task.costs.computed
    producer, consumer = next(edge for edge in task.costs.edges.T.tolist() if computed[edge].all())
    last = run.end_us.max() + 1.0
    begin, end = run.begin_us.copy(), run.end_us.copy()
    begin[[producer, consumer]], end[[producer, consumer]] = (np.nextafter(last, np.inf), last), last
    turned = Timeline(run.device, begin, end)
    assert turned.order.tolist().index(producer) > turned.order.tolist().index(consumer)
    path = critical_path(task.costs, turned, copies_of(task.costs, turned)).nodes
    assert {producer, consumer} <= set(path.tolist())


def test_costs_are_found_from_runtimes_of_other_plans() -> None:
    task = task_of("queues")
    rng, places, plans = np.random.default_rng(3), layout(task), plans_of(task, 100)
    true = Fitted(task, places, 0.7 * places.widths * rng.standard_normal(len(places.widths))).simulator
    measured, believed = true.makespans(plans) / 1e3, SimulatedObjective(task)(plans)
    noisy = np.log(measured / believed) + 0.01 * rng.standard_normal(len(plans))
    model = FittedSimulator(task)
    model.learn(plans[:50], believed[:50], noisy[:50])
    corrected = SimulatedObjective(model.corrected(task))(plans)
    errors = np.log(corrected / measured)[50:]
    assert np.std(errors) < 0.03 < 0.1 < np.std(np.log(believed / measured)[50:])
    deviations = model(plans[50:], believed[50:])[1]
    assert 0.3 < np.sqrt(np.mean(np.square(errors / deviations))) < 2.0, "errors are as large as they are said to be"
    rows = model._fitted.logs_and_rows(plans[50:])[1]
    drawn = np.array([model._posterior_sample(np.random.default_rng(seed)) for seed in range(400)]) @ rows.T
    said = np.sqrt(np.square(deviations) - model.error**2)
    np.testing.assert_allclose(drawn.std(0), said, rtol=0.15)  # parameters drawn differ as the deviations say
    others = [SimulatedObjective(model.corrected(task, np.random.default_rng(seed)))(plans[50:]) for seed in (0, 1)]
    assert (others[0] != others[1]).all()


def test_costs_learned_of_one_program_predict_another_before_it_is_measured() -> None:
    chips = machine("gpus:3")
    first, second = (
        chips.task(traced(f"{name}:layers=1,hidden=32,steps=4", kind="cuda")) for name in ("rnnlm", "gnmt")
    )
    drawn = 0.7 * np.random.default_rng(3).standard_normal(500)

    def measured(task: Task, plans: list[Plan]) -> np.ndarray:
        """On a machine whose shared parameters are those drawn; those of classes are as believed."""
        places, parameters = layout(task), np.zeros(len(layout(task).widths))
        for name, value in zip(sorted(places.shared), drawn.tolist(), strict=False):
            parameters[places.shared[name]] = value * places.widths[places.shared[name]]
        return Fitted(task, places, parameters).simulator.makespans(plans) / 1e3

    assert sorted(layout(first).shared) == sorted(layout(second).shared), "kinds, devices, links and times of both"
    plans, others = plans_of(first, 60), plans_of(second, 60)
    teacher, believed = FittedSimulator(first), SimulatedObjective(first)(plans)
    assert teacher.learned() == {}, "nothing was measured"
    teacher.learn(plans, believed, np.log(measured(first, plans) / believed))
    learned = teacher.learned()
    reward = Reward(second, FittedSimulator(second, learned))
    before, after = (np.log(each(others) / measured(second, others)) for each in (reward.prior, reward))
    assert np.abs(after).mean() < 0.25 * np.abs(before).mean()
    assert learned.keys() <= reward.surrogate.learned().keys(), "the next program starts from all that was learned"
    widths, deviations = layout(first).widths, {name: deviation for name, (_, deviation) in learned.items()}
    shares = [deviations[name] / widths[at] for name, at in layout(first).shared.items()]
    assert min(shares) == pytest.approx(UNSURE) and max(shares) <= 1 + 1e-12, "none is ever certain of another program"


def test_learned_costs_are_kept_in_a_file_and_checked(tmp_path: Path) -> None:
    machine_of, learned = {"cpu": "one", "cores": 2}, {"cpu:0": (0.25, 0.05), "latency": (-1.0, 0.5)}
    save_costs(tmp_path, learned, machine_of, ["cpu:0"])
    assert load_costs(tmp_path, machine_of, ["cpu:0", "cpu:1"]) == learned
    with pytest.raises(ValueError, match=r"there is no .*nowhere.*name the --out of a gst place"):
        load_costs(tmp_path / "nowhere", machine_of, ["cpu:0"])
    with pytest.raises(ValueError, match="with cpu one, here it is two"):
        load_costs(tmp_path, {**machine_of, "cpu": "two"}, ["cpu:0"])
    with pytest.raises(ValueError, match="learned on cpu:0, and the devices are cuda:0"):
        load_costs(tmp_path, machine_of, ["cuda:0"])
    for wrong in ("[]", '{"machine": {}, "devices": []}', "{", (tmp_path / LEARNED).read_text().replace("0.05", "0")):
        (tmp_path / LEARNED).write_text(wrong)
        with pytest.raises(ValueError, match="cannot be read"):
            load_costs(tmp_path, machine_of, ["cpu:0"])
    with pytest.raises(ValueError, match="without a cost model a search starts from no learned costs"):
        Settings(cost_model="none", warm_start=tmp_path)


def test_leave_one_out_residuals_are_those_of_predictions_by_the_others() -> None:
    task = task_of("generated")
    plans, rng = plans_of(task, 20), np.random.default_rng(3)
    model, places = FittedSimulator(task), layout(task)
    rows = Fitted(task, places, np.zeros(len(places.widths))).logs_and_rows(plans)[1]
    values = rows @ (0.3 * rng.standard_normal(rows.shape[1])) + 0.02 * rng.standard_normal(20)
    model._condition(rows, values)
    covariance = (rows * model._prior) @ rows.T + model.error**2 * np.eye(20)
    for number, found in enumerate(model.leave_one_out_residuals()):
        others = np.delete(np.arange(20), number)
        prediction = covariance[number, others] @ np.linalg.solve(covariance[np.ix_(others, others)], values[others])
        assert found == pytest.approx(values[number] - prediction, abs=1e-9)


def test_a_network_counts_only_as_far_as_it_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of("generated")
    plans = plans_of(task, 60)
    believed = SimulatedObjective(task)(plans)
    busy = np.array([task.times_us[plan.placement, np.arange(task.num_nodes)].sum() for plan in plans])
    logs = 0.3 * (busy - busy.mean()) / busy.std()  # no cost of the simulator expresses it
    for told, is_used in ((lambda each: 0.0 * each, False), (lambda each: each, True)):
        model = NetworkOnFitted(task)
        monkeypatch.setattr(model.network, "learn", lambda *_: None)
        model.fitted.learn(plans, believed, logs)
        left = dict(zip([plan.key for plan in plans], model.fitted.leave_one_out_residuals(), strict=True))

        def means(plans: list[Plan], ms: np.ndarray, told: Any = told, left: dict[str, float] = left) -> np.ndarray:
            return told(np.array([left[each.key] for each in plans]))

        monkeypatch.setattr(model.network, "means", means)
        model.learn(plans[:20], believed[:20], logs[:20])
        assert model.weight == 0.0, "it has predicted nothing"
        model.learn(plans, believed, logs)
        assert (model.weight > 0.5) == is_used
        assert bool(np.any(model.means(plans, believed))) == is_used


def test_limits_of_memories_tell_plans_that_fail_from_those_that_run() -> None:
    task = task_of("generated")
    devices = tuple(replace(each, memory_limit=10**12) for each in task.devices)
    task = replace(task, costs=replace(task.costs, devices=devices))
    plans = [single(task, 0), single(task, 1)]
    use = task.memory_use(task.simulator.run(plans[0]))[task.devices[0].memory]
    found = limits(task, plans[:1], plans[1:])
    assert 0.96 * use < found[task.devices[0].memory] < 0.97 * use and found[task.devices[1].memory] == 10**12
    uses = {task.memory_use(task.simulator.run(plan))[task.devices[0].memory]: plan for plan in plans_of(task, 40)}
    less, more = next((one, two) for one, two in pairwise(sorted(uses)) if 0.95 < one / two < 0.99)
    found = limits(task, [uses[more]], [uses[less]])
    assert found[task.devices[0].memory] == pytest.approx((less + more) / 2, abs=1), "half of the way to what ran"
    assert limits(task, plans[:1], plans[:1] * 3) == task.memories, "it ran three times and failed once"
    assert limits(task, plans[:1], plans[:1] * 2)[task.devices[0].memory] < use, "a failure counts twice"
    reward = Reward(task, FittedSimulator(task))
    reward.learn(plans[1:], np.array([5.0]), plans[:1])
    assert np.isnan(reward(plans[:1])[0]) and reward(plans[1:])[0] == pytest.approx(5.0)


def test_a_posterior_sample_is_weighed_by_what_the_model_predicts_besides() -> None:
    """The model says that the plan which is slowest in simulation takes a hundredth of its time."""
    task = task_of("generated")
    first, *others = plans_of(task, 20)

    class Halves(Surrogate):
        corrects, least = True, 0

        def __call__(self, plans: Sequence[Plan], simulated_ms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return np.array([np.log(0.01) * (plan.key == slowest.key) for plan in plans]), np.zeros(len(plans))

    slowest = max([first, *others], key=lambda plan: SimulatedObjective(task)([plan])[0])
    plans = [*others, first]
    chosen = Reward(task, Halves()).chosen(plans, 1, np.random.default_rng(0))
    assert plans[chosen[0]].key == slowest.key


@pytest.mark.slow
@pytest.mark.parametrize("killed_after", with_rest([1, 9, 16, 27, 36], [27]))
def test_a_loop_that_was_killed_finds_the_same_plan(tmp_path: Path, killed_after: int) -> None:
    """In a phase: among the first plans, after them, in a round, or among those measured again."""
    task = generated_task(3, num_nodes=50, num_devices=3)

    def loop(name: str, measurer: Pretended) -> Loop:
        log = Log(tmp_path / name)
        model = FittedSimulator(task)
        return Loop(task, measurer, log, portfolio(task), 38, 64, surrogate=model, methods=["annealing", "go"])

    whole = loop("whole", Pretended(task))
    plan = whole.run()
    lines = (tmp_path / "whole").read_text().splitlines(keepends=True)
    (tmp_path / "killed").write_text("".join(lines[:killed_after]))
    again = loop("killed", Pretended(task))
    assert again.run().key == plan.key
    assert [each.plan.key for each in again.trials] == [each.plan.key for each in whole.trials]
    assert len((tmp_path / "killed").read_text().splitlines()) == len(lines) == 38
