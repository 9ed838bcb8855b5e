"""Lanes recorded as graphs of accelerators, one for each stretch: memories of CPUs stand for accelerators, and what is
recorded there is made again in place. Where that is impossible lanes run eagerly and say why."""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from experiments.bench.gpu.host_outputs import exact_convolutions
from gst.execution import lane_graphs
from gst.execution.lane_graphs import LaneGraph
from gst.execution.lanes import Lane, LaneExecutor
from gst.lowering.calls import eager
from gst.lowering.lower import stream_program
from gst.programs import Program, Reference, differ_beyond_rounding, outputs_differ
from gst.programs.described import run_described
from tests.choices import with_rest
from tests.execution.recorded import Recorder
from tests.execution.test_lanes import FOR_CUDA, NO_ACCELERATOR, gpus, storages_of
from tests.lowering.test_stream_program import lanes_of, random_plan, random_streams
from tests.programs.small import SMALL, small_program

NOTHING_HERE = pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator: described no more")


@NOTHING_HERE
def test_lanes_of_accelerators_that_are_not_here_run_eagerly_and_say_why(program: Program) -> None:
    streams = random_streams(program, np.random.default_rng(0), 1, 3)
    graph = LaneGraph(LaneExecutor(program, streams, lanes_of(1, 3)))
    assert graph.reason == "graphs are recorded on an accelerator; this runs on cpu"
    doubled = [value * 2 if value.is_floating_point() else value for value in program.inputs]
    for inputs in (None, doubled, None):
        assert outputs_differ(graph.run(inputs), eager(program, inputs)) is None
    program, devices = small_program("inception", "cuda"), gpus(2, 1)
    streams = stream_program(program, random_plan(program, devices, np.random.default_rng(1)), devices)
    with FakeTensorMode(allow_non_fake_inputs=True):
        graph = LaneGraph(LaneExecutor(program, streams, devices))
    assert graph.reason == "graphs are recorded on an accelerator; this runs on cuda:0, cuda:1, cpu"


def recorded(program: Program, memories: int, lanes: int, seed: int, on: set[int]) -> tuple[LaneGraph, Recorder]:
    """Lanes of memories of CPUs, some of which record as accelerators would."""
    recorder = Recorder()
    streams = random_streams(program, np.random.default_rng(seed), memories, lanes)
    graph = LaneGraph(LaneExecutor(program, streams, lanes_of(memories, lanes)), on, recorder)
    assert graph.reason == ""
    return graph, recorder


@pytest.mark.parametrize(("memories", "on"), [(2, {0}), (3, {0, 1, 2})])
def test_replays_of_stretches_give_the_outputs_of_the_program(program: Program, memories: int, on: set[int]) -> None:
    """One accelerator beside the host; three. What graphs made is spoilt before each run."""
    graph, recorder = recorded(program, memories, 2, memories, on)
    assert graph.num_graphs == len(recorder.graphs) >= len(on)
    doubled = [value * 2 if value.is_floating_point() else value for value in program.inputs]
    for inputs in (None, doubled, doubled, None):
        want = eager(program, inputs)
        for each in recorder.graphs:
            each.spoil()
        assert outputs_differ(graph.run(inputs), want) is None


@pytest.mark.parametrize("budget", [2**30, 0])
def test_what_the_host_computes_is_sent_from_pinned_memory(
    program: Program, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    """A memory of the CPU stands for an accelerator beside the host. Beyond the budget values are sent as they are,
    and so are those that are expanded."""
    pinned, sent, empty_like, refill = list[torch.Tensor](), list[bool](), torch.empty_like, Lane.refill

    def pinned_like(like: torch.Tensor, **options: Any) -> torch.Tensor:
        assert options.pop("pin_memory")
        pinned.append(empty_like(like, **options))
        return pinned[-1]

    def noted(lane: Lane, buffer: Any, value: Any) -> None:
        is_pinned = any(value is each for each in pinned)
        is_dense = isinstance(buffer, torch.Tensor) and 0 not in buffer.stride()
        if is_pinned or (lane.memory == 1 and is_dense and not any(buffer is each for each in pinned)):
            sent.append(is_pinned)
        refill(lane, buffer, value)

    monkeypatch.setattr(lane_graphs, "PINNED_BYTES", budget)
    monkeypatch.setattr(lane_graphs, "is_here", lambda device: True)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty_like", pinned_like)
        graph, _ = recorded(program, 2, 2, 2, {0})
    monkeypatch.setattr(Lane, "refill", noted)
    doubled = [value * 2 if value.is_floating_point() else value for value in program.inputs]
    for inputs in (None, doubled, None):
        assert outputs_differ(graph.run(inputs), eager(program, inputs)) is None
    assert sent and (all(sent) if budget else not any(sent)) and bool(pinned) == bool(budget)
    assert graph._pinned_bytes == sum(each.nbytes for each in pinned)


@NOTHING_HERE
@pytest.mark.parametrize("name", with_rest(FOR_CUDA, FOR_CUDA[:1]))
def test_what_graphs_of_several_gpus_read_lies_on_theirs(name: str) -> None:
    """Two described GPUs beside the CPU: copies into buffers that stay are fake too, and operands are on one device."""
    program, devices = small_program(name, "cuda"), gpus(2, 2)
    plan = random_plan(program, devices, np.random.default_rng(12))
    streams = stream_program(program, plan, devices, storages_of(program))

    def run() -> None:
        with FakeTensorMode(allow_non_fake_inputs=True):
            graph = LaneGraph(LaneExecutor(program, streams, devices), {0, 1}, Recorder())
            outputs = graph.run()
        assert graph.reason == "" and graph.num_graphs > 2, graph.reason
        home, places = dict(streams.results.T.tolist()), graph.executor.devices
        for output, value in zip(program.outputs, outputs, strict=True):
            if isinstance(output, Reference):
                assert value.device == places[home[output.node]]
                assert tuple(value.shape) == program.operations[output.node].shapes[0]

    run_described(run)  # copies in place ask for a guard of the device


def test_steady_inputs_are_copied_when_they_were_written_to_or_are_others(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, _ = recorded(program, 1, 2, 3, {0})
    given = [value.clone().requires_grad_(value.is_floating_point()) for value in program.inputs]
    count = len(given) - 1
    read = [node for node, _ in graph.executor.streams.residents.T.tolist() if node < count]
    copies = list[torch.Tensor]()
    copy = torch.Tensor.copy_
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, value: copies.append(self) or copy(self, value))

    def run(inputs: list[torch.Tensor] | None, copied: int) -> None:
        copies.clear()
        outputs = graph.run(inputs, count)
        buffers = {id(graph._values[0][node]) for node in read}
        assert sum(id(each) in buffers for each in copies) == copied
        assert outputs_differ(outputs, eager(program, inputs)) is None

    run(given, len(read))
    run(given, 0)
    run([value.detach() for value in given], 0)  # as a module without gradients gives them
    floating = next(node for node in read if given[node].is_floating_point())
    with torch.no_grad():
        given[floating].mul_(0.5)
    run(given, 1)
    given[floating] = given[floating].detach().clone()
    run(given, 1)
    run(None, len(read))
    run(given, len(read))
    with torch.inference_mode():
        given[floating] = given[floating].clone()
    run(given, 1)
    run(given, 1)  # nobody counts what is written to it


def test_graphs_of_a_memory_share_it_and_hold_every_operation_of_theirs_once(program: Program) -> None:
    _, recorder = recorded(program, 2, 2, 8, {0, 1})
    assert recorder.pools.count(None) == 2 and set(recorder.pools) == {None, "pool"}
    called = Counter(function for each in recorder.graphs for function, *_ in each.calls)
    products = [each.target for each in program.operations if "aten.mm" in str(each.target)]
    assert products and called[products[0]] == products.count(products[0])


@pytest.mark.parametrize("failing", [0, 2])
def test_memory_that_is_short_is_a_reason_and_the_lanes_still_run(program: Program, failing: int) -> None:
    streams = random_streams(program, np.random.default_rng(10), 3, 2)
    graph = LaneGraph(LaneExecutor(program, streams, lanes_of(3, 2)), {0, 1}, Recorder(failing))
    assert graph.reason == "OutOfMemoryError: out of memory: tried to allocate 2 GiB" and graph.num_graphs == 0
    assert outputs_differ(graph.run(), eager(program)) is None


def test_a_recording_that_fails_ends_and_the_lanes_still_run(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = random_streams(program, np.random.default_rng(11), 2, 1)
    executor, recorder = LaneExecutor(program, streams, lanes_of(2, 1)), Recorder()
    issue = executor.issue

    def fails_while_recording(memories: list[Any], turns: Any = None) -> None:
        issue(memories, turns)
        if turns is not None and recorder.graphs:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(executor, "issue", fails_while_recording)
    graph = LaneGraph(executor, {0, 1}, recorder)
    assert graph.reason == "RuntimeError: operation not permitted when stream is capturing"
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert outputs_differ(graph.run(), eager(program)) is None


@pytest.mark.gpu
@NO_ACCELERATOR
@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_graph_of_lanes_gives_the_outputs_of_the_program(name: str) -> None:
    program, rng = small_program(name, "cuda"), np.random.default_rng(0)
    doubled = [value * 2 if value.is_floating_point() else value for value in program.inputs]
    count = torch.accelerator.device_count()
    for devices in (gpus(1, 1)[:-1], gpus(1, 3)[:-1], gpus(1, 2), gpus(count, 2)):  # alone, beside the CPU, all
        plan = random_plan(program, devices, rng)
        streams = stream_program(program, plan, devices, storages_of(program))
        with exact_convolutions():  # as the CPU's are, which may compute some of them
            graph, there = (
                LaneGraph(LaneExecutor(program, streams, devices)),
                partial(eager, program, device=devices[0].torch_device),
            )
            assert graph.reason == ""
            for inputs in (program.inputs, doubled, program.inputs):
                assert differ_beyond_rounding(graph.run(inputs), there(inputs), there, inputs) is None
    assert torch.accelerator.is_available()
