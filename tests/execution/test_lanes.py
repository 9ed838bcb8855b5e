"""Lanes as streams of accelerators: without one, outputs on several CPU devices are those of the program, and programs
that were captured for CUDA find every operand on the device where they need it."""

from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from experiments.bench.gpu.host_outputs import differs_from_host, exact_convolutions
from gst.execution.lanes import Lane, LaneExecutor, issue_order
from gst.lowering.calls import eager, storages
from gst.lowering.happens_before import check
from gst.lowering.lower import stream_program
from gst.lowering.plan import COPY, RECORD, WAIT, ExecutionError, Plan, StreamProgram, example
from gst.machine.devices import Device
from gst.programs import WORKLOADS, Program, Reference, differ_beyond_rounding, outputs_differ
from gst.util.recording import is_here
from tests.choices import with_rest
from tests.lowering.test_stream_program import allocated, lanes_of, random_plan, random_streams
from tests.programs.small import SMALL, small_program

HOST = Device("cpu:0", "cpu", (), 1, "host", "test")
FOR_CUDA = ("inception", "gpt")
NO_ACCELERATOR = pytest.mark.skipif(
    not torch.accelerator.is_available(), reason="needs an accelerator that PyTorch knows; there is none here"
)
storages_of = cache(storages)


def gpus(count: int, lanes: int) -> list[Device]:
    """Streams of GPUs, which need not be here, and the CPU."""
    streams = [
        Device(f"cuda:{number}/stream:{lane}", "cuda", (), 1, f"cuda:{number}", "test")
        for number in range(count)
        for lane in range(lanes)
    ]
    return [*streams, HOST]


def fake_outputs(program: Program, streams: StreamProgram, devices: list[Device]) -> list[Any]:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return LaneExecutor(program, streams, devices).run()


def test_outputs_on_several_cpu_devices_are_those_of_the_program(bundled_program: Program) -> None:
    rng, devices = np.random.default_rng(0), lanes_of(3, 2)
    plan = random_plan(bundled_program, devices, rng)
    streams = stream_program(bundled_program, plan, devices, allocated(bundled_program))
    want = eager(bundled_program)
    for order in (None, issue_order(streams, rng)):
        got = LaneExecutor(bundled_program, streams, devices, order).run()
        assert outputs_differ(got, want) is None


def test_a_step_can_be_iterated_from_where_its_parameters_are() -> None:
    """New parameters are made where the next step reads them, and inputs of a caller are not changed."""
    program, devices = small_program("rnnlm"), lanes_of(3, 2)
    streams = random_streams(program, np.random.default_rng(3), 3, 2)
    count = len(WORKLOADS["rnnlm"](**SMALL["rnnlm"]).inputs[0])
    assert set(map(tuple, streams.residents.T.tolist())) >= {
        (int(program.parameter_home[node]), memory)
        for node, memory in streams.results.T.tolist()
        if program.parameter_home[node] in streams.residents[0]
    }
    before = [value.clone() for value in program.inputs]
    inputs, want = list(program.inputs), list(program.inputs)
    executor = LaneExecutor(program, streams, devices)
    for _ in range(3):
        got, expected = executor.run(inputs), eager(program, want)
        assert outputs_differ(got, expected) is None
        inputs[:count], want[:count] = got[1 : count + 1], expected[1 : count + 1]
    assert all(torch.equal(a, b) for a, b in zip(before, program.inputs, strict=True))


def test_every_order_of_issue_gives_the_outputs_and_inputs_stay_as_they_are(program: Program) -> None:
    rng, devices, want = np.random.default_rng(1), lanes_of(2, 3), eager(program)
    streams = random_streams(program, rng, 2, 3)
    before = [value.clone() for value in program.inputs]
    for _ in range(5):
        executor = LaneExecutor(program, streams, devices, issue_order(streams, rng))
        for inputs in (None, [value.clone() for value in program.inputs]):
            assert outputs_differ(executor.run(inputs), want) is None
    assert all(torch.equal(a, b) for a, b in zip(before, program.inputs, strict=True))


def test_a_wait_stands_behind_the_record_of_its_event_and_lanes_keep_their_order(program: Program) -> None:
    rng = np.random.default_rng(2)
    streams = random_streams(program, rng, 3, 2)
    for order in (issue_order(streams), issue_order(streams, rng)):
        assert (np.sort(order) == np.arange(streams.num_steps)).all()
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        assert all((np.diff(place[a:b]) > 0).all() for a, b in zip(streams.bounds, streams.bounds[1:], strict=False))
        recorded = dict(zip(streams.argument[streams.kind == RECORD], place[streams.kind == RECORD], strict=True))
        waits = np.flatnonzero(streams.kind == WAIT)
        assert len(waits) and all(recorded[streams.argument[step]] < place[step] for step in waits)


def test_lanes_that_wait_for_ever_are_an_error() -> None:
    stuck = replace(example(), argument=np.array([0, 1, 0, 1, 0, 1, 1, 1, 1]))
    with pytest.raises(ExecutionError, match=r"step 0 of copies of host \(wait event 0\) waits for ever"):
        issue_order(stuck)


def test_a_value_that_was_not_copied_is_an_error_that_names_the_step(program: Program) -> None:
    streams = random_streams(program, np.random.default_rng(3), 2, 1)
    keep = np.flatnonzero(streams.kind != COPY)
    without = replace(
        streams, bounds=np.searchsorted(keep, streams.bounds), kind=streams.kind[keep],
        argument=streams.argument[keep], target=streams.target[keep],
    )  # fmt: skip
    with pytest.raises(ExecutionError, match=r"step \d+ of gpu:\d/0 \((run|free) .*KeyError"):
        LaneExecutor(program, without, lanes_of(2, 1)).run()


def test_devices_of_another_machine_are_refused(program: Program) -> None:
    streams = random_streams(program, np.random.default_rng(4), 2, 1)
    with pytest.raises(ValueError, match=r"^no device has the memory 'gpu:0'; there are host$"):
        LaneExecutor(program, streams, [HOST])


@pytest.mark.parametrize("name", with_rest(sorted(SMALL), FOR_CUDA[:1]))
def test_a_program_for_cuda_finds_its_operands_on_every_gpu(name: str) -> None:
    """2 and 4 GPUs with the CPU, several lanes each: fake tensors refuse operands on different devices."""
    program = small_program(name, "cuda")
    for seed, (count, lanes) in enumerate(((2, 2), (4, 3))):
        devices = gpus(count, lanes)
        plan = random_plan(program, devices, np.random.default_rng(seed))
        streams = stream_program(program, plan, devices, storages_of(program))
        check(streams)
        outputs = fake_outputs(program, streams, devices)
        where = {node: streams.memories[memory] for node, memory in streams.results.T.tolist()}
        for output, value in zip(program.outputs, outputs, strict=True):
            if isinstance(output, Reference) and isinstance(value, torch.Tensor):
                assert str(value.device).replace("cpu", "host") == where[output.node]
                assert [tuple(value.shape)] == list(program.operations[output.node].shapes)


def test_an_operand_on_the_wrong_gpu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program, devices = small_program("inception", "cuda"), gpus(2, 1)
    plan = Plan(tuple(each.name for each in devices), np.arange(program.num_nodes) % 2)
    streams = stream_program(program, plan, devices, storages_of(program))
    monkeypatch.setattr(Lane, "copy", lambda self, value, device: value)
    with pytest.raises(ExecutionError, match=r"of cuda:\d/stream:0 \(run .*(device|cuda:)"):
        fake_outputs(program, streams, devices)


@pytest.mark.gpu
@NO_ACCELERATOR
@pytest.mark.parametrize("name", sorted(SMALL))
def test_outputs_on_lanes_of_an_accelerator_are_those_of_the_program(name: str) -> None:
    program, rng = small_program(name, "cuda"), np.random.default_rng(0)
    devices = gpus(torch.accelerator.device_count(), 3)
    assert is_here(devices[0].torch_device)
    assert differs_from_host(program, devices[0].torch_device) is None
    there = partial(eager, program, device=devices[0].torch_device)
    for chosen in (devices[:1], devices[:3], devices):  # alone, and beside the CPU, which knows no TF32
        with exact_convolutions() if HOST in chosen else nullcontext():
            want = there(program.inputs)
            for _ in range(3):
                plan = random_plan(program, chosen, rng)
                streams = stream_program(program, plan, chosen, storages_of(program))
                executor = LaneExecutor(program, streams, chosen)
                for _ in range(3):
                    assert differ_beyond_rounding(executor.run(), want, there, program.inputs) is None
