"""Orders: the longest way first, and fewer live bytes, predicted and measured."""

import numpy as np
import pytest
import torch

from gst.devices import Device, NativeExecutor, Plan, eager
from gst.devices.execute.costs import storages
from gst.devices.execute.interpreter import compiler
from gst.devices.plan import ranks
from gst.devices.simulate.orders import critical_path_priority, memory_aware_priority, peak_bytes
from gst.programs import Program, TrainingStep, capture, outputs_differ

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
DEVICES = [Device("cpu:0", "cpu", (), 1, "host", "test")]
BRANCHES, ROWS = 6, 1 << 12


def branches() -> Program:
    """Branches that are wide at first and one number at last; the program makes all of them wide before the first
    number."""

    def step(p: dict) -> tuple[torch.Tensor, dict]:
        wide = [torch.exp(row) for row in p["w"].unbind(0)]
        return torch.stack([row.amax() for row in wide]).amax(), {}

    return capture(TrainingStep("branches", step, ({"w": torch.ones(BRANCHES, ROWS)},)))


def on_one(program: Program, priority: np.ndarray | None = None) -> Plan:
    return Plan(("cpu:0",), np.zeros(program.num_nodes, np.int64), priority)


def memory_aware(program: Program) -> Plan:
    return on_one(program, memory_aware_priority(program, np.zeros(program.num_nodes, np.int64), storages(program)))


def measured_peak(program: Program, plan: Plan) -> int:
    with NativeExecutor(program, DEVICES) as native:
        assert outputs_differ(native.run(plan), eager(program)) is None
        return native.last_timeline.peak_bytes


@pytest.mark.parametrize("without", ["_greedy", "_depth_first"])
def test_wide_branches_run_one_after_the_other(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By greed, and by depth first."""
    program = branches()
    in_order = [node for node, each in enumerate(program.operations) if each.kind == "operation"]
    monkeypatch.setattr(f"gst.devices.simulate.orders.{without}", lambda *_: in_order)
    plan = memory_aware(program)
    assert measured_peak(program, on_one(program)) >= BRANCHES * 4 * ROWS
    assert measured_peak(program, plan) < 2 * 4 * ROWS


def test_the_predicted_peak_is_the_measured_one() -> None:
    """Exactly, where no operation takes memory that it gives back."""
    program = branches()
    for plan in (on_one(program), memory_aware(program)):
        order = [node for node in np.argsort(ranks(plan)).tolist() if program.operations[node].kind == "operation"]
        assert peak_bytes(program, order, storages(program)) == measured_peak(program, plan)


def test_on_average_no_more_memory_than_in_program_order(programs: dict[str, Program]) -> None:
    ratios = [measured_peak(each, memory_aware(each)) / measured_peak(each, on_one(each)) for each in programs.values()]
    assert np.mean(ratios) <= 1.0


def test_several_devices_get_distinct_priorities(program: Program) -> None:
    placement = np.random.default_rng(0).integers(0, 3, program.num_nodes)
    priority = memory_aware_priority(program, placement, storages(program))
    assert sorted(priority.tolist()) == list(range(program.num_nodes))
    for producer, node in program.graph.edges.T.tolist():
        assert priority[producer] > priority[node]


def test_the_longest_way_is_worked_out_by_hand() -> None:
    """w -> exp (5) -> neg (1) -> add (1); w -> sin (3) -> add: ways 7, 2, 1 and 4, w first."""
    step = lambda p: (torch.exp(p["w"]).neg() + torch.sin(p["w"]), {})  # noqa: E731
    program = capture(TrainingStep("ways", step, ({"w": torch.ones(2)},)))
    names = [each.name for each in program.operations]
    assert [name.partition("_")[0] for name in names][1:] == ["exp", "neg", "sin", "add"]
    priority = critical_path_priority(program, np.array([0.0, 5, 1, 3, 1]))
    assert priority.tolist() == [4, 3, 1, 2, 0]


def test_no_operation_goes_before_what_it_reads(program: Program) -> None:
    priority = critical_path_priority(program, np.random.default_rng(1).random(program.num_nodes))
    for producer, node in program.graph.edges.T.tolist():
        assert priority[producer] > priority[node]
