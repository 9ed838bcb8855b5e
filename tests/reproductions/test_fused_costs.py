"""Fusion in simulation: what a group saves, what it keeps, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.reproductions.go.fused_costs import FusedObjective
from gst.lowering.fusion import fusion_groups, legalise, pointwise_chains
from gst.lowering.plan import Plan
from gst.lowering.rewrite import CompiledGroup, rewritten
from gst.placement.machines import GPU, Chip, Machine, machine
from gst.placement.objectives import SimulatedObjective
from gst.programs import Program, Reference, TrainingStep, capture
from gst.programs.features import flops
from tests.lowering.test_fusion import STEPS, partition, random_program
from tests.programs.small import small_program


def program_of(step: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], width: int) -> Program:
    def whole(p: dict) -> tuple[torch.Tensor, dict]:
        values = step(p["w"])
        return values[-1].sum(), {str(number): value for number, value in enumerate(values)}

    return capture(TrainingStep("made", whole, ({"w": torch.ones(width)},)))


def negated(times: int) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for _ in range(times):
            x = -x
        return (x,)

    return step


def nodes_named(program: Program, name: str) -> np.ndarray:
    return np.flatnonzero([each.name.startswith(name) for each in program.operations])


def fusing(runtime: FusedObjective, members: np.ndarray, placement: np.ndarray | None = None) -> Plan:
    """Everything on the first device unless placed, these nodes in one group."""
    fusion = np.full(runtime.task.num_nodes, -1)
    fusion[members] = 3
    at = np.zeros(len(fusion), np.int64) if placement is None else placement
    return Plan(runtime.task.names, at, fusion=fusion)


@pytest.fixture(scope="module")
def runtime() -> FusedObjective:
    return FusedObjective(machine("gpus:2"), small_program("rnnlm"))


def random_plan(runtime: FusedObjective, generator: np.random.Generator, groups: int) -> Plan:
    """With groups that are legal."""
    nodes = runtime.task.num_nodes
    placement = generator.integers(0, 2, runtime.task.num_groups)[runtime.task.colocation]
    fusion = legalise(runtime.program, generator.integers(-1, groups, nodes), placement)
    return Plan(runtime.task.names, placement, generator.permutation(nodes), fusion)


def test_without_groups_it_is_the_simulated_runtime(runtime: FusedObjective) -> None:
    generator = np.random.default_rng(0)
    plain = SimulatedObjective(runtime.task)
    for _ in range(5):
        plan = replace(random_plan(runtime, generator, 4), fusion=None)
        assert runtime([plan])[0] == plain([plan])[0]
        for alone in (np.full(runtime.task.num_nodes, -1), np.arange(runtime.task.num_nodes)):
            assert runtime([replace(plan, fusion=alone)])[0] == plain([plan])[0]


@pytest.mark.parametrize("width", [1_000, 4_000_000])
@pytest.mark.parametrize("times", [2, 7])
def test_a_chain_saves_its_launches_and_its_traffic(width: int, times: int) -> None:
    runtime = FusedObjective(machine("gpus:1"), program_of(negated(times), width))
    plan = fusing(runtime, nodes_named(runtime.program, "neg"))
    arithmetic, traffic = width / GPU.gflops / 1e3, 8 * width / GPU.gb_per_s / 1e3
    one, all_of_them = max(arithmetic, traffic), max(times * arithmetic, traffic)
    saved = (times - 1) * GPU.launch_us + times * one - all_of_them
    before, after = runtime([replace(plan, fusion=None), plan])
    assert 1e3 * (before - after) == pytest.approx(saved, rel=1e-9)


def test_a_group_takes_what_its_members_and_its_border_say(runtime: FusedObjective) -> None:
    program, generator = runtime.program, np.random.default_rng(1)
    counted, size = flops(program.operations), program.output_bytes
    for groups in (2, 10, 60):
        plan = random_plan(runtime, generator, groups)
        contracted, _ = runtime.contracted(plan)
        found = runtime._find(plan)
        for group in fusion_groups(program, plan):
            node = found.node_of[group.nodes[0]]
            crossing = size[list(group.inputs)].sum() + size[list(group.outputs)].sum()
            work = max(counted[list(group.nodes)].sum() / GPU.gflops, crossing / GPU.gb_per_s) / 1e3
            views = all(program.operations[each].is_view for each in group.nodes)
            assert contracted.times_us[0, node] == pytest.approx(0.0 if views else GPU.launch_us + work, rel=1e-9)
        alone = np.flatnonzero(plan.fusion < 0)
        assert (contracted.times_us[:, found.node_of[alone]] == runtime.task.times_us[:, alone]).all()


def test_the_new_task_is_that_of_the_program_rewritten_for_real(runtime: FusedObjective) -> None:
    program, generator = runtime.program, np.random.default_rng(2)
    for groups in (1, 3, 30, 100):
        plan = random_plan(runtime, generator, groups)
        kept = [group for group in fusion_groups(program, plan) if group.outputs]
        fusion = np.full(program.num_nodes, -1)
        for number, group in enumerate(kept):
            fusion[list(group.nodes)] = number
        plan = replace(plan, fusion=fusion)
        twin = rewritten(program, {group: CompiledGroup(Path("none"), len(group.nodes)) for group in kept})
        contracted, planned = runtime.contracted(plan)
        found = runtime._find(plan)
        assert (found.node_of == twin.node_of).all()
        assert set(map(tuple, contracted.costs.edges.T)) == set(map(tuple, twin.program.graph.edges.T))
        assert (contracted.costs.output_bytes == twin.program.output_bytes).all()
        returned = {each.node for each in twin.program.outputs if isinstance(each, Reference)}
        assert set(np.flatnonzero(contracted.costs.kept)) == returned
        assert (planned.placement[found.node_of] == plan.placement).all()
        for node in range(len(twin.origin)):
            members = plan.priority[found.node_of == found.node_of[found.origin[node]]]
            assert planned.priority[node] == members.max()


def test_nothing_is_lost_and_nothing_comes_too_early(runtime: FusedObjective) -> None:
    generator, costs = np.random.default_rng(3), runtime.task.costs
    for groups in (1, 5, 50):
        plan = random_plan(runtime, generator, groups)
        contracted, planned = runtime.contracted(plan)
        node_of = runtime._find(plan).node_of
        run = contracted.simulator.run(planned)
        producers, consumers = node_of[costs.edges[:, costs.computed[costs.edges[0]]]]
        apart = producers != consumers
        assert (run.end_us[producers[apart]] <= run.begin_us[consumers[apart]]).all()
        assert contracted.costs.kept.sum() == costs.kept.sum()
        assert contracted.costs.output_bytes[contracted.costs.kept].sum() == costs.output_bytes[costs.kept].sum()
        assert contracted.costs.computed[node_of[costs.computed]].all()
        assert (contracted.costs.edges[0] < contracted.costs.edges[1]).all()
        assert run.makespan_us == pytest.approx(1e3 * runtime([plan])[0])


@settings(max_examples=30)
@given(STEPS, st.integers(0, 10_000), st.integers(1, 4))
def test_refused_is_what_would_have_to_be_made_legal(steps: list, seed: int, groups: int) -> None:
    runtime, generator = FusedObjective(machine("gpus:2"), random_program(steps)), np.random.default_rng(seed)
    nodes = runtime.task.num_nodes
    placement, asked = generator.integers(0, 2, nodes), generator.integers(-1, groups, nodes)
    if generator.random() < 0.7:
        placement[:] = 0
    asked[generator.random(nodes) < 0.5] = -1
    legal = legalise(runtime.program, asked, placement)
    stays = {each for each in partition(asked) if len(each) > 1} == partition(legal)
    assert np.isfinite(runtime([Plan(runtime.task.names, placement, fusion=asked)])[0]) == stays
    assert np.isfinite(runtime([Plan(runtime.task.names, placement, fusion=legal)])[0])


def test_groups_that_wait_for_each_other_or_lie_on_two_devices_are_refused() -> None:
    program = program_of(lambda x: (-(x.cumsum(0)) + x.cumsum(0),), 8)
    runtime = FusedObjective(machine("gpus:2"), program)
    sums, neg, add = (nodes_named(program, name) for name in ("cumsum", "neg", "add"))
    around = np.concatenate([sums[:1], add])  # the negation is between them
    assert np.isnan(runtime([fusing(runtime, around)])[0])
    whole = np.concatenate([sums, neg, add])
    placement = np.zeros(program.num_nodes, np.int64)
    assert np.isfinite(runtime([fusing(runtime, whole, placement)])[0])
    placement[neg] = 1
    assert np.isnan(runtime([fusing(runtime, whole, placement)])[0])
    assert np.isnan(runtime([fusing(runtime, np.array([0, add[0]]))])[0])  # an input is no operation


def test_only_tensors_cross_the_border_of_a_group() -> None:
    program = program_of(lambda x: (torch.cat(torch.ops.aten.split.Tensor(-x, 4)[::-1]),), 8)
    runtime = FusedObjective(machine("gpus:1"), program)
    neg, split, items = (nodes_named(program, name) for name in ("neg", "split", "getitem"))
    assert len(items) == 2
    assert np.isnan(runtime([fusing(runtime, np.concatenate([neg, split]))])[0])
    assert np.isnan(runtime([fusing(runtime, np.concatenate([split, items[:1]]))])[0])
    assert np.isfinite(runtime([fusing(runtime, np.concatenate([neg, split, items]))])[0])


def test_another_program_s_plan_is_refused(runtime: FusedObjective) -> None:
    few = Plan(runtime.task.names, np.zeros(3, np.int64), fusion=np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="3 numbers of fusion groups"):
        runtime([few])


def test_what_stays_within_a_group_takes_no_memory_and_the_rest_does() -> None:
    width = 1_000
    program = program_of(negated(3), width)

    def answers(chips: int, limit: int) -> list[bool]:
        chip = Chip("cuda", 1.0, 1.0, 1.0, memory_bytes=limit)
        runtime = FusedObjective(Machine((chip,) * chips, 1.0, 1.0), program)
        plan = fusing(runtime, nodes_named(program, "neg"))
        return np.isfinite(runtime([replace(plan, fusion=None), plan])).tolist()

    assert answers(1, 3 * width) == [False, False]  # a value of 4,000 bytes and its sum of 4
    assert answers(1, 6 * width) == [False, True]
    assert answers(1, 9 * width) == [True, True]
    assert answers(2, 6 * width) == [False, False]  # and the input, resident among several memories
    assert answers(2, 9 * width) == [False, True]


def test_element_wise_groups_pay_on_one_device_and_answers_do_not_depend_on_the_past(runtime: FusedObjective) -> None:
    nothing = np.zeros(runtime.task.num_nodes, np.int64)
    chains = pointwise_chains(runtime.program, nothing)
    plans = [Plan(runtime.task.names, nothing, fusion=fusion) for fusion in (None, chains)]
    plans += [random_plan(runtime, np.random.default_rng(4), 20)]
    answers = runtime(plans)
    assert answers[1] < 0.98 * answers[0]
    fresh = FusedObjective(runtime.machine, runtime.program)
    assert (fresh(plans[::-1])[::-1] == answers).all()
