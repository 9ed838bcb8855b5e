"""Plans run by recorded graphs, and their groups compiled in this process. Memories of CPUs stand for accelerators."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.bench.gpu.host_outputs import exact_convolutions
from gst.execution import executor as executing
from gst.execution import groups as compiling
from gst.execution.executor import GraphExecutor, executor
from gst.execution.groups import LaneGroups
from gst.execution.isolated import Runner, reference
from gst.execution.lane_graphs import Residents
from gst.lowering.calls import eager
from gst.lowering.fusion import fusion_groups, pointwise_chains
from gst.lowering.plan import ExecutionError, Plan
from gst.machine.devices import Device
from gst.programs import Program, capture_module, differ_beyond_rounding, outputs_differ
from tests.execution.recorded import Recorder
from tests.execution.test_lanes import NO_ACCELERATOR, gpus
from tests.execution.tiny import tiny_program
from tests.lowering.test_stream_program import lanes_of, random_plan
from tests.programs.small import SMALL, small_program


def unfused(program: Program, devices: Sequence[Device], seed: int) -> Plan:
    return replace(random_plan(program, list(devices), np.random.default_rng(seed)), fusion=None)


def chained(program: Program, devices: Sequence[Device], seed: int) -> Plan:
    """A plan that fuses every chain of element-wise operations: stretches of the program in turns on the devices."""
    placement = np.arange(program.num_nodes) * 3 // program.num_nodes % len(devices)
    plan = replace(unfused(program, devices, seed), placement=placement)
    return replace(plan, fusion=pointwise_chains(program, placement))


def doubled(program: Program) -> list[Tensor]:
    return [value * 2 if value.is_floating_point() else value for value in program.inputs]


@pytest.mark.parametrize(("memories", "on"), [(1, {0}), (3, {0, 1})])
def test_plans_in_turns_give_the_outputs_of_the_program_and_each_is_recorded_once(
    program: Program, memories: int, on: set[int]
) -> None:
    devices, recorder = lanes_of(memories, 2), Recorder()
    plans = [unfused(program, devices, seed) for seed in range(2)]
    with GraphExecutor(program, devices, on, recorder) as running:
        for plan in plans:
            assert running.record(plan).reason == ""
        count = len(recorder.graphs)
        for inputs in (None, doubled(program), None):
            for plan in plans:
                assert outputs_differ(running.run(plan, inputs), eager(program, inputs)) is None
        assert len(recorder.graphs) == count >= len(plans)


def test_outputs_stay_when_the_plan_runs_again() -> None:
    program = tiny_program()
    devices = lanes_of(1, 2)
    plan = unfused(program, devices, 0)
    with GraphExecutor(program, devices, {0}, Recorder()) as running:
        outputs = running.run(plan)
        running.run(plan, doubled(program))
        assert running.time_ms(plan) > 0
        assert outputs_differ(outputs, eager(program)) is None
        assert outputs_differ(running.run(plan), outputs) is None


def test_what_is_timed_is_what_a_caller_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that stay are not copied, other inputs are, and so are outputs."""
    inference = capture_module(torch.nn.Linear(3, 2), (torch.ones(4, 3),))
    for program, steady in ((tiny_program(), 0), (inference, 2)):
        devices, calls, results = lanes_of(1, 2), list[Any](), list[Any]()
        plan = unfused(program, devices, 0)
        with GraphExecutor(program, devices, {0}, Recorder()) as running:
            graph = running.record(plan)
            run = graph.run
            monkeypatch.setattr(graph, "run", lambda *given, run=run, calls=calls: calls.append(given) or run(*given))
            with monkeypatch.context() as patch:
                patch.setattr(executing, "timed", lambda run, results=results: results.append(run()) or 1.0)
                assert running.time_ms(plan) == 1.0
            ((inputs, num_steady),) = calls
            assert len(inputs) == len(program.inputs) and num_steady == steady
            made = {each.untyped_storage().data_ptr() for each in graph._values[0].values() if isinstance(each, Tensor)}
            assert outputs_differ(results[0], eager(program)) is None
            assert not made & {each.untyped_storage().data_ptr() for each in results[0]}


def test_outputs_are_of_the_stream_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that the thread of the executor takes is that of the caller's stream, who frees it."""
    program, devices, log = tiny_program(), lanes_of(1, 2), list[Any]()
    plan = unfused(program, devices, 0)
    with GraphExecutor(program, devices, {0}, Recorder()) as running:
        running.record(plan)
        count = len(running.run(plan))
        running._home = torch.device("cpu")  # stands for an accelerator

        @contextmanager
        def stream(device: torch.device) -> Iterator[None]:
            asker = threading.current_thread()
            log.append(("begin", asker is threading.main_thread()))
            yield
            log.append(("end", device))

        to = Tensor.to
        monkeypatch.setattr(Tensor, "to", lambda value, *given, **rest: log.append("copy") or to(value, *given, **rest))
        monkeypatch.setattr(torch.accelerator, "current_stream", stream)
        running.run(plan)
    assert log == [("begin", False), *["copy"] * count, ("end", running._home)]


def residents(running: GraphExecutor) -> dict[int, int]:
    """Bytes of inputs and constants of recorded plans, by address."""
    values = [graph._values[memory][node] for graph in running._graphs.values() for node, memory in graph._residents]
    return {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in values}


def test_recorded_plans_read_one_copy_of_the_weights(program: Program) -> None:
    devices = lanes_of(1, 2)
    plans = [unfused(program, devices, seed) for seed in range(3)]
    with GraphExecutor(program, devices, {0}, Recorder()) as running:
        running.record(plans[0])
        alone = residents(running)
        assert sum(alone.values()) >= sum(each.nbytes for each in program.inputs if each.dim())
        for plan in plans:
            running.record(plan)
        assert residents(running) == alone and len(running._graphs) == 3
        assert not {each.untyped_storage().data_ptr() for each in program.inputs} & alone.keys()


def test_one_plan_sees_no_inputs_of_another(program: Program) -> None:
    """Whether they are given as parameters that stay, as examples, or anew; what graphs made is spoilt before each."""
    devices, recorder, count = lanes_of(2, 1), Recorder(), len(program.inputs) - 1
    plans = [unfused(program, devices, seed) for seed in range(3)]
    given = [doubled(program), [value.clone() for value in program.inputs]]
    rng = np.random.default_rng(0)
    with GraphExecutor(program, devices, {0}, recorder) as running:
        for _ in range(24):
            inputs = [None, *given][int(rng.integers(3))]
            for graph in recorder.graphs:
                graph.spoil()
            outputs = running.run(plans[int(rng.integers(3))], inputs, int(rng.integers(2)) * count)
            assert outputs_differ(outputs, eager(program, inputs)) is None
            with torch.no_grad():
                given[0][0].mul_(0.5)  # trained on meanwhile


def test_inputs_that_a_program_writes_to_are_copied_before_each_run() -> None:
    """No captured program does that: here an operation is replaced by the one that works in place."""
    pure = capture_module(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid()), (torch.tensor([-1.0, 2.0]),))
    relu = next(node for node, each in enumerate(pure.operations) if each.target is torch.ops.aten.relu.default)
    operations = list(pure.operations)
    operations[relu] = replace(operations[relu], target=torch.ops.aten.mul_.Tensor, args=(*operations[relu].args, 3.0))
    program, devices = replace(pure, operations=tuple(operations)), lanes_of(1, 1)
    assert Residents(program).writes and not Residents(pure).writes
    plans = [replace(unfused(program, devices, 0), priority=np.arange(3.0) * sign) for sign in (1, -1)]
    want = [torch.tensor([-3.0, 6.0]).sigmoid()]
    with GraphExecutor(program, devices, {0}, Recorder()) as running:
        for plan in plans * 2:
            for inputs in (None, [torch.tensor([-1.0, 2.0])]):
                assert outputs_differ(running.run(plan, inputs, 1), want) is None
        assert len(running._graphs) == 2 and not any(graph.reason for graph in running._graphs.values())


class ShortOfMemory(Recorder):
    """Has memory for the graphs of one plan; others are refused until that one is forgotten."""

    def __init__(self, running: GraphExecutor | None = None) -> None:
        super().__init__()
        self.running = running

    def __call__(self, device: torch.device, pool: Any) -> Any:
        assert self.running is not None
        if self.running._graphs:
            raise torch.OutOfMemoryError("out of memory: tried to allocate 2 GiB")
        return super().__call__(device, pool)


def test_where_memory_is_short_other_plans_are_forgotten() -> None:
    program = tiny_program()
    devices, recorder = lanes_of(1, 2), ShortOfMemory()
    first, second = (unfused(program, devices, seed) for seed in range(2))
    with GraphExecutor(program, devices, {0}, recorder) as running:
        recorder.running = running
        for plan in (first, second, first):
            assert outputs_differ(running.run(plan), eager(program)) is None
            assert running.record(plan).reason == "" and list(running._graphs) == [plan.key]
        assert len(recorder.graphs) == 3


def test_a_run_for_which_memory_is_short_is_tried_again_without_other_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of outputs take memory too, and so does a plan that runs eagerly."""
    program, devices = tiny_program(), lanes_of(1, 2)
    first, second = (unfused(program, devices, seed) for seed in range(2))
    with GraphExecutor(program, devices, {0}, Recorder()) as running:
        running.run(first)
        graph = running.record(second)
        run = graph.run

        def needs_room(*given: Any) -> Any:
            if first.key in running._graphs:
                raise RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA")
            return run(*given)

        monkeypatch.setattr(graph, "run", needs_room)
        assert outputs_differ(running.run(second), eager(program)) is None and list(running._graphs) == [second.key]

        def fails(*given: Any) -> Any:
            raise RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA")

        monkeypatch.setattr(graph, "run", fails)
        with pytest.raises(ExecutionError, match=r"^out of memory: CUDA error: out of memory$"):
            running.run(second)


@pytest.fixture
def always_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group that compiles is used, whatever the clock says."""
    monkeypatch.setattr(compiling, "_times_us", lambda functions, device: [1.0, 4.0])


@pytest.mark.e2e
@pytest.mark.usefixtures("always_faster")
@pytest.mark.parametrize("name", ["gpt", "moe", "rnnlm"])
def test_compiled_groups_give_the_outputs_of_the_program(name: str) -> None:
    program, devices = small_program(name), lanes_of(2, 1)
    with GraphExecutor(program, devices) as running:
        plan = chained(program, devices, 3)
        groups = [group for group in fusion_groups(program, plan) if group.outputs]
        assert groups
        assert set(running._groups.calls(plan)) == {group.nodes for group in groups}
        assert set(running.group_shares(plan).values()) == {0.25}
        for inputs in (None, doubled(program)):
            assert outputs_differ(running.run(plan, inputs), eager(program, inputs)) is None


@pytest.mark.usefixtures("always_faster")
@pytest.mark.parametrize("is_right", [True, False])
def test_a_graph_records_the_function_of_a_group(is_right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in of a graph sees calls of PyTorch alone, so the functions are the operations: right ones give the
    outputs of the program, ones that are wrong behind their check do not."""
    program, devices, recorder = tiny_program(), lanes_of(1, 2), Recorder()

    def compiled(module: Callable[..., Any], inputs: Any) -> Callable[..., Any]:
        count = 0

        def run(*inputs: Tensor) -> list[Tensor]:
            nonlocal count
            count += 1
            return [value if is_right or count == 1 else -value - 1 for value in module(*inputs)]

        return run

    monkeypatch.setattr(torch._inductor, "compile", compiled)
    plan = chained(program, devices, 4)
    with GraphExecutor(program, devices, {0}, recorder) as running:
        for inputs in (None, doubled(program)):
            for each in recorder.graphs:
                each.spoil()
            assert (outputs_differ(running.run(plan, inputs), eager(program, inputs)) is None) == is_right
        assert running.record(plan).reason == "" and len(recorder.graphs) == 1


def for_these_strides(module: Callable[..., Any], examples: Sequence[Tensor]) -> Callable[..., Any]:
    """Stand in for the compiler, whose code is right for inputs of the strides of its examples alone."""

    def run(*inputs: Tensor) -> list[Tensor]:
        is_expected = [each.stride() for each in inputs] == [each.stride() for each in examples]
        return [value if is_expected else -value - 1 for value in module(*inputs)]

    return run


@pytest.mark.usefixtures("always_faster")
def test_inputs_of_another_layout_go_through_operations_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    program, devices = tiny_program(), lanes_of(1, 1)
    monkeypatch.setattr(torch._inductor, "compile", for_these_strides)
    groups, plan = LaneGroups(program, devices), chained(program, devices, 5)
    nodes, call = next((nodes, call) for nodes, call in groups.calls(plan).items())
    group = next(each for each in fusion_groups(program, plan) if each.nodes == nodes)
    values = compiling.example_values(program, {*group.inputs, *group.outputs})
    strided = {
        node: torch.empty(*value.shape, 2, dtype=value.dtype)[..., 0].copy_(value) for node, value in values.items()
    }
    assert any(strided[node].stride() != values[node].stride() for node in group.inputs)
    for given in (values, strided):
        assert outputs_differ([value for _, value in call(given)], [values[node] for node in group.outputs]) is None


@pytest.mark.e2e
def test_a_group_that_is_slower_or_does_not_compile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    program, devices = tiny_program(), lanes_of(1, 1)
    plan = chained(program, devices, 5)
    monkeypatch.setattr(compiling, "_times_us", lambda functions, device: [4.0, 1.0])
    slower = LaneGroups(program, devices)
    assert slower.calls(plan) == {} and set(slower.shares(plan).values()) == {1.0}
    assert {each.reason for each in slower._structures.values()} == {"4.0 us compiled, 1.0 us one by one"}

    def fails(module: Any, inputs: Any) -> Any:
        raise RuntimeError(words)

    monkeypatch.setattr(torch._inductor, "compile", fails)
    broken, words = LaneGroups(program, devices), "no compiler\nat all"
    assert broken.calls(plan) == {} and set(broken.shares(plan).values()) == {1.0}
    assert {each.reason for each in broken._structures.values()} == {"RuntimeError: no compiler"}
    short, words = LaneGroups(program, devices), "CUDA error: out of memory"
    with pytest.raises(RuntimeError, match="out of memory"):
        short.calls(plan)
    assert short._structures == {}  # with more memory it may compile


@pytest.mark.usefixtures("always_faster")
def test_a_structure_is_compiled_once_and_other_groups_of_the_same_nodes_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, devices = tiny_program(), lanes_of(1, 2)
    made = list[Any]()
    monkeypatch.setattr(torch._inductor, "compile", lambda module, inputs: made.append(module) or module)
    groups, plan = LaneGroups(program, devices), chained(program, devices, 6)
    shares = groups.shares(plan)
    count = len(made)
    assert count == len(groups._structures) < len(shares)
    assert groups.shares(replace(plan, priority=None)) == shares and len(made) == count

    def no_form(*arguments: Any) -> str:
        raise ValueError("no form in a file")

    monkeypatch.setattr(compiling, "structure_key", no_form)
    apart = LaneGroups(program, devices)
    group = max(fusion_groups(program, plan), key=lambda each: len(each.nodes))
    fewer = np.full(program.num_nodes, -1)
    fewer[list(group.nodes[:-1])] = 0
    apart.shares(plan)
    count = len(apart._structures)
    if fusion_groups(program, replace(plan, fusion=fewer)):
        apart.shares(replace(plan, fusion=fewer))
        assert len(apart._structures) == count + 1


@pytest.mark.slow
def test_a_child_compares_outputs_and_times_graphs(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    devices, recorder = lanes_of(1, 2), Recorder()
    plan = unfused(program, devices, 8)
    with GraphExecutor(program, devices, {0}, recorder) as running:
        runner = Runner(running, reference(program, devices), None)
        runner.compile(plan)
        assert recorder.graphs == []  # that is limited as runs are
        assert runner.check(plan) == "" and recorder.graphs
        monkeypatch.setattr(running, "run", None)
        elapsed_ms, peak = runner.time(plan)
        assert elapsed_ms > 0 and peak is None
        assert runner.timelines([plan], 1) == [] and runner.groups(plan) == {}
        assert runner.costs(1).times_us.shape == (2, program.num_nodes)
    with GraphExecutor(program, devices, {0}, Recorder(failing=0)) as running:
        assert "out of memory" in Runner(running, reference(program, devices), None).check(plan)


def test_devices_of_several_memories_are_lanes_and_accelerators_must_be_here(monkeypatch: pytest.MonkeyPatch) -> None:
    program = tiny_program()
    if not torch.accelerator.is_available():
        with pytest.raises(ValueError, match=r"^this process has no accelerator 'cuda:0/stream:0'"):
            executor(program, gpus(2, 2))
    monkeypatch.setattr(executing, "is_here", lambda device: device.type == "cuda")
    for devices in (lanes_of(2, 1), gpus(2, 2), gpus(1, 2)[:-1]):
        assert isinstance(executor(program, devices), GraphExecutor)


@pytest.mark.gpu
@NO_ACCELERATOR
@pytest.mark.parametrize("name", sorted(SMALL))
def test_fused_plans_of_an_accelerator_run_by_graphs(name: str) -> None:
    program, devices = small_program(name, "cuda"), gpus(1, 2)
    with executor(program, devices) as running, exact_convolutions():  # as those of the CPU
        assert isinstance(running, GraphExecutor)
        plans, there = (
            [chained(program, devices[:-1], 0), chained(program, devices, 1)],
            partial(eager, program, device=devices[0].torch_device),
        )
        for plan in plans * 2:
            assert differ_beyond_rounding(running.run(plan), there(program.inputs), there, program.inputs) is None
            assert running.record(plan).reason == ""
        assert running.group_shares(plans[0])
