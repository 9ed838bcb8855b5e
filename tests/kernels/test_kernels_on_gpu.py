"""Kernels on streams of a real accelerator: equal on every plan, in place, with the memory that the layout says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from gst.kernels.inductor import kernel_program
from gst.kernels.lower import stream_program
from gst.kernels.program import KernelProgram
from gst.kernels.run import Run, on_streams
from gst.kernels.state import StepInPlace
from gst.lowering.calls import module_on
from gst.programs import WORKLOADS, capture, outputs_differ
from tests.programs.small import SMALL

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]
CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """Convolutions and products round as on the CPU."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def compiled(name: str) -> KernelProgram:
    program = capture(WORKLOADS[name](**SMALL[name]), kind="cuda")
    inputs = [each.detach().to(CUDA) for each in program.inputs]
    return kernel_program(module_on(program, CUDA), inputs, name)


@pytest.mark.parametrize("name", ["rnnlm", "moe", "inception", "gpt"])
def test_every_plan_computes_what_one_stream_does(name: str) -> None:
    kernels, rng = compiled(name), np.random.default_rng(0)
    want = [each.clone() for each in Run(kernels)()]
    torch.cuda.synchronize()
    for number in range(6):
        streams = stream_program(
            kernels, rng.integers(0, 1 + number, kernels.num_kernels), rng.permutation(kernels.num_kernels)
        )
        run = Run(kernels, streams)
        replay = run.recorded()
        for _ in range(3):
            got = replay()
            torch.cuda.synchronize()
            assert outputs_differ(got, want) is None


def test_losses_on_streams_are_those_of_the_step_as_written() -> None:
    step = WORKLOADS["gpt"](**SMALL["gpt"])
    placed = StepInPlace(step, CUDA, lambda *given: on_streams(*given).call)
    assert not placed.reason
    state = {key: value.to(CUDA) for key, value in step.inputs[0].items()}
    batch = [each.to(CUDA) for each in step.inputs[1:]]
    for _ in range(20):
        loss, state = step.function(state, *batch)
        torch.testing.assert_close(placed(*step.inputs[1:]), loss, rtol=1e-3, atol=1e-4)


def test_a_step_launches_one_graph_and_copies_its_batch_alone() -> None:
    step = WORKLOADS["rnnlm"](**SMALL["rnnlm"])
    placed = StepInPlace(step, CUDA, lambda *given: on_streams(*given).call)
    batch = [each.to(CUDA) for each in step.inputs[1:]]
    placed(*batch)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as profile:
        placed(*batch)
        torch.cuda.synchronize()
    calls = {each.key: each.count for each in profile.key_averages()}
    assert calls.get("cudaGraphLaunch") == 1
    copies = sum(count for key, count in calls.items() if key == "aten::copy_")
    assert copies <= len(batch) + 1, "the batch in, the loss out"
    assert calls.get("cudaStreamSynchronize", 0) == 0


def test_streams_take_little_more_memory_than_one() -> None:
    kernels = compiled("inception")
    given = sum(int(kernels.storage_bytes[storage]) for storage in kernels.beforehand)
    streams = on_streams(kernels).figures["streams"]
    for each in streams.values():
        assert given + each.get("bytes", 0) <= 1.25 * (given + streams[1]["bytes"])
