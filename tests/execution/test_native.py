"""The compiled interpreter: the program's outputs whatever the plan, the rule of cores kept, memory counted."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from gst.execution.executor import NativeExecutor, executor
from gst.execution.groups import load
from gst.lowering.calls import eager, storages
from gst.lowering.happens_before import check
from gst.lowering.lower import stream_program
from gst.lowering.plan import COPY, ExecutionError, Plan, Timeline, ranks
from gst.machine.devices import Device
from gst.programs import Program, TrainingStep, capture, outputs_differ
from gst.util.compiled import compiler
from tests.execution.replay import assert_is_a_run_of, bytes_behind
from tests.execution.test_executor import alone, random_plan
from tests.execution.tiny import tiny_program
from tests.made_devices import pair

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")


def core_sets(*sets: tuple[int, ...]) -> list[Device]:
    """Devices of these cores, whether the machine has them or not: one that it lacks runs unbound."""
    return [Device(f"cpu:{number}", "cpu", cores, len(cores), "host", "test") for number, cores in enumerate(sets)]


MOLDABLE = core_sets((0,), (1,), (0, 1))
CHAINED = core_sets((0, 1), (1, 2), (2, 3), (0, 3), (0,), (1, 2, 3))


def names(devices: list[Device]) -> tuple[str, ...]:
    return tuple(device.name for device in devices)


def keeps_the_rule(program: Program, plan: Plan, timeline: Timeline, devices: list[Device]) -> None:
    """Nothing starts before its inputs are there, and no core does two things at once."""
    begin, end = timeline.begin_us, timeline.end_us
    for producer, consumer in program.graph.edges.T.tolist():
        if program.operations[producer].kind == "operation":
            assert end[producer] <= begin[consumer]
    computed = np.array([each.kind == "operation" for each in program.operations])
    for core in {core for device in devices for core in device.cores}:
        uses = np.array([core in device.cores for device in devices])[timeline.device] & computed
        by_time = np.flatnonzero(uses)[np.argsort(begin[uses], kind="stable")]
        assert (begin[by_time][1:] >= end[by_time][:-1]).all()


@pytest.mark.parametrize("devices", [MOLDABLE, CHAINED], ids=["moldable", "chained"])
def test_random_plans_compute_the_program_and_keep_the_rule(program: Program, devices: list[Device]) -> None:
    want, rng = eager(program), np.random.default_rng(0)
    with NativeExecutor(program, devices) as native:
        for _ in range(5):
            plan = random_plan(program, rng, names(devices))
            assert outputs_differ(native.run(plan), want) is None
            keeps_the_rule(program, plan, native.last_timeline, devices)


def in_order_of(run: Timeline) -> np.ndarray:
    """Ranks of nodes by the time at which they began."""
    rank = np.empty(len(run.begin_us), np.int64)
    rank[np.argsort(run.begin_us, kind="stable")] = np.arange(len(rank))
    return rank


@pytest.mark.parametrize("devices", [MOLDABLE, CHAINED], ids=["moldable", "chained"])
def test_a_run_is_one_of_the_stream_program_of_its_order(program: Program, devices: list[Device]) -> None:
    """The interpreter finds the order while it runs. Lowered in this order the plan has the same lanes, nothing is
    copied, every wait is kept, and the run takes no more memory than is proven."""
    rng, allocated = np.random.default_rng(4), storages(program)
    with NativeExecutor(program, devices) as native:
        for _ in range(3):
            plan = random_plan(program, rng, names(devices))
            native.run(plan)
            run = native.last_timeline
            own = np.tile(run.own_bytes, (len(devices), 1))
            streams = stream_program(program, plan, devices, allocated, own, in_order_of(run))
            assert not (streams.kind == COPY).any()
            assert_is_a_run_of(streams, run)
            assert run.peak_bytes <= check(streams).peak_bytes["host"]


def test_on_one_device_values_are_freed_where_the_stream_program_frees_them(program: Program) -> None:
    with NativeExecutor(program, MOLDABLE) as native:
        plan = alone(program, priority=np.random.default_rng(5).integers(0, 9, program.num_nodes))
        native.run(plan)
        run = native.last_timeline
    behind = bytes_behind(stream_program(program, plan, MOLDABLE))
    assert [run.live_bytes[node] for node in behind] == list(behind.values())
    assert max(behind.values()) > 0


def test_of_ready_operations_the_greatest_priority_runs_first() -> None:
    """On one device the order is that of a list schedule by rank."""
    program = tiny_program()
    plan = alone(program, priority=np.random.default_rng(2).integers(0, 9, program.num_nodes))
    rank = ranks(plan)
    with NativeExecutor(program, MOLDABLE) as native:
        native.run(plan)
        begin = native.last_timeline.begin_us
    computed = [node for node, each in enumerate(program.operations) if each.kind == "operation"]
    done = set(range(program.num_nodes)) - set(computed)
    for node in sorted(computed, key=lambda node: begin[node]):
        ready = [n for n in computed if n not in done and set(program.operations[n].producers) <= done]
        assert node == min(ready, key=lambda n: rank[n])
        done.add(node)


def captured(function: object, *tensors: torch.Tensor) -> Program:
    return capture(TrainingStep("made", function, ({"w": torch.ones(4, 4)}, *tensors)))  # type: ignore[arg-type]


def test_arguments_that_python_writes_more_freely_than_the_operators_schema() -> None:
    """Numbers for tensors and floats, lists of optional tensors, empty lists, dtypes, devices, memory formats."""

    def step(p: dict, index: torch.Tensor) -> tuple[torch.Tensor, dict]:
        w = p["w"]
        picked = torch.ops.aten.index.Tensor(w, [None, index]) + torch.ops.aten.index.Tensor(w, [index, index])[:, None]
        parts = torch.ops.aten.split_with_sizes.default(w, [1, 3])
        made = torch.zeros([], dtype=torch.float32, device="cpu") + torch.full([2, 2], 3).to(torch.float64).sum()
        drawn = torch.ops.aten.native_layer_norm.default(w, [4], None, None, 1)
        kept = torch.ops.aten.clone.default(w, memory_format=torch.contiguous_format)
        mean = torch.ops.aten.mean.dim(w, [], dtype=torch.float64) * 0.5**2
        scaled = torch.ops.aten.addmm.default(w, w, w, beta=1, alpha=0.25)
        return picked.sum() + made, {"w": torch.stack([drawn[0], kept, scaled]), "p": parts[1] - 1, "m": mean}

    program = captured(step, torch.tensor([0, 2, 1, 1]))
    with NativeExecutor(program, MOLDABLE) as native:
        assert outputs_differ(native.run(alone(program)), eager(program)) is None


def test_other_inputs_give_other_outputs_and_are_not_changed(program: Program) -> None:
    inputs = [value * 1.5 if value.is_floating_point() else value.clone() for value in program.inputs]
    before = [value.clone() for value in inputs]
    with NativeExecutor(program, MOLDABLE) as native:
        got = native.run(alone(program), inputs)
        assert outputs_differ(got, eager(program, inputs)) is None
        assert outputs_differ(got, eager(program)) is not None
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


def test_a_failing_operation_is_named_and_the_executor_survives() -> None:
    program = captured(lambda p, i: (p["w"][i].sum(), {"w": p["w"] * 2}), torch.tensor([1]))
    with NativeExecutor(program, MOLDABLE) as native:
        with pytest.raises(ExecutionError, match=r"failed on cpu:0: .*out of range|out of bounds") as caught:
            native.run(alone(program), [torch.ones(4, 4), torch.tensor([9])])
        assert "index" in program.operations[caught.value.node].name and "\n" not in str(caught.value)
        assert outputs_differ(native.run(alone(program)), eager(program)) is None


def test_bytes_are_counted_to_the_last() -> None:
    """Each operation makes one tensor beside its input, and for a moment the number it adds as a tensor of 4 bytes."""
    rows = 1 << 14
    program = capture(TrainingStep("bytes", lambda p: (((p["w"] + 1) * 2).exp().sum(), {}), ({"w": torch.ones(rows)},)))
    with NativeExecutor(program, MOLDABLE) as native:
        native.run(alone(program))
        timeline = native.last_timeline
        assert timeline.live_bytes[1:].tolist() == [4 * rows, 4 * rows, 4 * rows, 4]
        assert timeline.own_bytes[1:].tolist()[:3] == [4 * rows + 4, 4 * rows + 4, 4 * rows]
        assert timeline.peak_bytes == 8 * rows + 4


def capped(least: int) -> list[Device]:
    return [dataclasses.replace(device, memory_limit=least + number) for number, device in enumerate(MOLDABLE)]


def test_a_memory_limit_ends_the_run_with_a_reason(program: Program) -> None:
    with NativeExecutor(program, MOLDABLE) as native:
        native.run(alone(program))
        peak = native.last_timeline.peak_bytes
    with (
        NativeExecutor(program, capped(peak // 2)) as native,
        pytest.raises(ExecutionError, match=f"out of memory: .* limit {peak // 2}"),
    ):
        native.run(alone(program))
    with NativeExecutor(program, capped(2 * peak)) as native:
        native.run(alone(program))


def test_what_does_not_fit_is_refused(program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one memory"):
        NativeExecutor(program, pair(separate_memory=True))
    native = NativeExecutor(program, MOLDABLE)
    with pytest.raises(ValueError, match="is closed"):
        native.run(alone(program))
    with native:
        with pytest.raises(ValueError, match="uses device 'cpu:9'"):
            native.run(alone(program, "cpu:9"))
        with pytest.raises(ValueError, match="make the plan again"):
            native.run(Plan(("cpu:0",), np.zeros(3, np.int64)))
    bad = dataclasses.replace(program.operations[-1], target=print)
    with pytest.raises(ValueError, match="no operator of PyTorch"):
        NativeExecutor(dataclasses.replace(program, operations=(*program.operations[:-1], bad)), MOLDABLE)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("gst.execution.executor.load", load.__wrapped__)
    with pytest.raises(ValueError, match=r"^plans on core sets need a C\+\+ compiler.*install g\+\+"):
        executor(program, MOLDABLE)


@pytest.mark.slow
def test_plans_on_both_sides_of_each_border_between_words_keep_the_rule() -> None:
    """132 single cores, of which a few are threads here, and sets that reach over one or two borders of words."""
    used = [(0,), (63,), (64,), (65,), (127,), (128,), (131,), (63, 64), (0, 64, 128), (127, 128), (1, 131)]
    cores = sorted({core for each in used for core in each})
    fill = [core for core in range(132) if core not in cores]  # numbers of cores are dense: these make the others far
    wide = Device("wide", "cpu", tuple(fill), 1, "host", "made up")
    devices = [Device(f"cpu:{number}", "cpu", each, 1, "host", "made up") for number, each in enumerate(used)]
    devices.append(wide)
    program, rng = tiny_program(), np.random.default_rng(0)
    want = eager(program)
    with NativeExecutor(program, devices) as native:
        for _ in range(4):
            placement, priority = (rng.integers(0, most, program.num_nodes) for most in (len(devices), 9))
            plan = Plan(names(devices), placement, priority)
            assert outputs_differ(native.run(plan), want) is None
            keeps_the_rule(program, plan, native.last_timeline, devices)
