"""Laws of GO: what it must not depend on, what it may see, and that its plans are legal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from jaxtyping import Float64

from experiments.random_tasks import generated_task
from gst.lowering.fusion import legalise
from gst.lowering.plan import Plan
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.policies.go import GO, GoTraining, RecurrentAttention
from gst.placement.policies.ppo import draw, plans_of, policy_inputs
from gst.placement.task import Task
from tests.relabelling import relabelled_graph


def another_order(task: Task, seed: int) -> np.ndarray:
    """A topological order of the nodes drawn at random."""
    generator = np.random.default_rng(seed)
    waiting = np.bincount(task.costs.edges[1], minlength=task.num_nodes)
    ready, order = np.flatnonzero(waiting == 0).tolist(), []
    while ready:
        node = ready.pop(int(generator.integers(len(ready))))
        order.append(node)
        for consumer in task.costs.edges[1][task.costs.edges[0] == node]:
            waiting[consumer] -= 1
            if not waiting[consumer]:
                ready.append(int(consumer))
    return np.array(order)


def relabelled(task: Task, order: np.ndarray) -> Task:
    """The task with node order[i] renamed to i."""
    costs, graph = task.costs, relabelled_graph(task.graph, order)
    costs = replace(
        costs, edges=graph.edges, computed=costs.computed[order], kept=costs.kept[order],
        times_us=costs.times_us[:, order], output_bytes=costs.output_bytes[order], own_bytes=costs.own_bytes[:, order],
    )  # fmt: skip
    return replace(
        task, graph=graph, costs=costs, colocation=task.colocation[order], resident_bytes=task.resident_bytes[order]
    )


def with_devices_in(task: Task, order: Sequence[int]) -> Task:
    costs = task.costs
    return replace(task, costs=replace(
        costs, devices=tuple(costs.devices[each] for each in order), times_us=costs.times_us[order],
        own_bytes=costs.own_bytes[order], latency_us=costs.latency_us[np.ix_(order, order)],
        bytes_per_us=costs.bytes_per_us[np.ix_(order, order)],
    ))  # fmt: skip


def unequal(num_devices: int) -> Task:
    """A generated task whose devices differ in speed."""
    for seed in range(100):
        task = generated_task(seed, num_nodes=60, num_devices=num_devices)
        if not np.allclose(task.times_us[0], task.times_us[1]):
            return task
    raise AssertionError("every second machine has unequal devices")


def test_what_nodes_are_numbered_changes_nothing() -> None:
    task = unequal(3)
    task = replace(task, colocation=np.arange(task.num_nodes) // 3)
    order = another_order(task, 1)
    assert (order != np.arange(task.num_nodes)).any()
    inputs, others = policy_inputs(task), policy_inputs(relabelled(task, order))
    policy = GO(("placement", "schedule", "fusion"), channels=16)
    with torch.no_grad():
        torch.testing.assert_close(policy.embed(inputs)[order], policy.embed(others), atol=1e-5, rtol=1e-4)
        by_node, by_other = ({name: each if name == "fusion" else each[one.group] for name, each in policy(one).items()}
                             for one in (inputs, others))  # fmt: skip
    for name in ("placement", "schedule"):
        torch.testing.assert_close(by_node[name][order], by_other[name], atol=1e-4, rtol=1e-3)


def test_scores_of_devices_move_with_them() -> None:
    task, policy = unequal(4), GO(channels=16)
    order = [2, 0, 3, 1]
    with torch.no_grad():
        one, other = (policy(policy_inputs(each))["placement"] for each in (task, with_devices_in(task, order)))
    torch.testing.assert_close(one[:, order], other, atol=1e-5, rtol=1e-4)
    assert (one - one.mean(0)).abs().max() > 1e-3


def test_equal_devices_are_told_apart_by_their_slots_alone() -> None:
    generated = (generated_task(seed, 60, 4) for seed in range(100))
    task = next(each for each in generated if np.ptp(each.times_us, 0).max() == 0)
    inputs, policy = policy_inputs(task), GO(channels=16)
    assert inputs.slots.tolist() == [0, 1, 2, 3]
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        one = policy(inputs)["placement"]
        other = policy(replace(inputs, slots=inputs.slots[order]))["placement"]
    torch.testing.assert_close(one[:, order], other, atol=1e-5, rtol=1e-4)
    assert (one[:, 0] - one[:, 1]).abs().max() > 1e-3


def slow_attention(layer: RecurrentAttention, rows: torch.Tensor) -> torch.Tensor:
    """Twin of RecurrentAttention, segment by segment and head by head."""
    heard = []
    for start in range(0, len(rows), layer.segment):
        own = layer.norm(rows[start : start + layer.segment])
        seen = own
        if layer.recurrence and start:
            seen = torch.cat([layer.norm(rows[start - layer.segment : start]).detach(), own])
        query, (key, value) = layer.query(own), layer.key_value(seen).chunk(2, dim=1)
        parts = []
        for head in range(layer.heads):
            q, k, v = (each.chunk(layer.heads, dim=1)[head] for each in (query, key, value))
            parts.append((q @ k.T / q.shape[1] ** 0.5).softmax(1) @ v)
        heard.append(layer.mix(torch.cat(parts, dim=1)))
    after = rows + torch.cat(heard)
    return after + layer.narrow(layer.widen(layer.forward_norm(after)).relu())


@pytest.mark.parametrize("num_rows", [1, 7, 20])
@pytest.mark.parametrize("recurrence", [True, False])
def test_attention_equals_its_slow_twin(num_rows: int, recurrence: bool) -> None:
    torch.manual_seed(0)
    layer, rows = RecurrentAttention(8, heads=2, segment=6, recurrence=recurrence), torch.randn(num_rows, 8)
    torch.testing.assert_close(layer(rows), slow_attention(layer, rows), atol=1e-5, rtol=1e-4)


def test_the_previous_segment_is_seen_but_gets_no_gradient() -> None:
    torch.manual_seed(0)
    layer = RecurrentAttention(8, heads=2, segment=5)
    rows = torch.randn(12, 8, requires_grad=True)
    layer(rows)[5:10].sum().backward()
    assert rows.grad is not None
    assert (rows.grad[:5] == 0).all() and (rows.grad[10:] == 0).all() and (rows.grad[5:10] != 0).any()
    changed = rows.detach().clone()
    changed[:5] += 1 + torch.randn(5, 8)
    assert (layer(changed) - layer(rows))[5:10].abs().max() > 1e-4
    layer.recurrence = False
    torch.testing.assert_close(layer(changed)[5:], layer(rows)[5:])


def test_plans_are_legal_and_groups_stay_together(task: Task) -> None:
    inputs, policy = policy_inputs(task), GO(("fusion", "schedule", "placement"), channels=16)
    assert policy.tasks == ("placement", "schedule", "fusion")
    with torch.no_grad():
        decisions = draw(policy(inputs), 6, torch.Generator().manual_seed(0))
    assert task.program is not None
    for number, plan in enumerate(plans_of(task, inputs, decisions)):
        for group in range(task.num_groups):
            assert len(set(plan.placement[task.colocation == group])) == 1
        assert plan.fusion is not None and (plan.fusion >= 0).any() and plan.priority is not None
        assert np.array_equal(legalise(task.program, plan.fusion, plan.placement), plan.fusion)
        level = decisions["schedule"][number].numpy()[inputs.group.numpy()]
        by_priority = np.argsort(-plan.priority, kind="stable")
        assert (np.diff(level[by_priority]) <= 0).all(), "greater levels come first"
        same = level[by_priority][1:] == level[by_priority][:-1]
        assert (np.diff(inputs.upward_rank[by_priority])[same] <= 1e-9).all(), "the longest way first within a level"


def test_nothing_is_placed_where_it_cannot_run() -> None:
    task = generated_task(1, num_nodes=60, num_devices=3)
    times = task.times_us.copy()
    times[1, ::2] = np.inf
    task = replace(task, costs=replace(task.costs, times_us=times))
    inputs = policy_inputs(task)
    with torch.no_grad():
        chances = GO(channels=16)(inputs)
    assert all(torch.isfinite(each).all() for each in (inputs.costs, inputs.relative, inputs.devices, inputs.graph))
    for plan in plans_of(task, inputs, draw(chances, 20, torch.Generator().manual_seed(0))):
        assert (plan.placement[::2] != 1).all()


def test_what_cannot_be_decided_is_refused() -> None:
    with pytest.raises(ValueError, match="'colour'"):
        GO(("placement", "colour"))
    with pytest.raises(ValueError, match="placement must be"):
        GO(("schedule",))
    with pytest.raises(ValueError, match="at least one row"):
        RecurrentAttention(8, segment=0)
    task = generated_task(0, num_nodes=50)
    inputs, policy = policy_inputs(task), GO(("placement", "fusion"), channels=16)
    with pytest.raises(ValueError, match="no program"), torch.no_grad():
        plans_of(task, inputs, draw(policy(inputs), 1, torch.Generator()))


class Recorded:
    """A runtime that remembers the plans; every third one fails."""

    def __init__(self, task: Task) -> None:
        self.simulated, self.keys = SimulatedObjective(task), list[str]()

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        numbers = len(self.keys) + np.arange(len(plans))
        self.keys += [plan.key for plan in plans]
        return np.where(numbers % 3 == 0, np.nan, self.simulated(plans))


@pytest.mark.parametrize("budget", [1, 37])
def test_go_spends_its_budget_and_seeds_repeat(budget: int) -> None:
    task = generated_task(0, num_nodes=60)
    runs = [Recorded(task) for _ in range(3)]
    for run, seed in zip(runs, (0, 0, 1), strict=True):
        budgeted = Budgeted(run, budget)
        GoTraining(task, seed, channels=16).run(budgeted)
        assert budgeted.num_asked == len(run.keys) == budget
    assert runs[0].keys == runs[1].keys != runs[2].keys


def test_go_works_with_one_device_and_with_one_group() -> None:
    task = generated_task(0, num_nodes=50, num_devices=1)
    for each in (task, replace(task, colocation=np.zeros(task.num_nodes, np.int64))):
        budgeted = Budgeted(SimulatedObjective(each), 12)
        GoTraining(each, channels=16, tasks=("placement", "schedule")).run(budgeted)
        assert budgeted.num_asked == 12 and budgeted.best is not None
