"""Kernels of Inductor: recorded, run in other orders and on threads with equal outputs, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from gst.execution.lanes import issue_order
from gst.kernels import inductor
from gst.kernels.inductor import NotUnderstoodError, kernel_program, require_movable
from gst.kernels.lower import stream_program
from gst.kernels.program import GENERATOR, KernelProgram
from gst.kernels.run import Run, kernel_times_us
from gst.lowering.calls import eager
from gst.programs import WORKLOADS, Program, Step, as_module, capture, capture_module, outputs_differ
from tests.kernels.made import in_order, on_threads
from tests.programs.small import SMALL

TINY = {"layers": 1, "hidden": 8, "steps": 2, "batch": 2, "vocabulary": 10}
ONE_THREAD = {"cpp.threads": 1}  # sums of several threads differ from run to run


@pytest.fixture
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def require_equal_in_every_order(program: Program, plans: int = 6) -> KernelProgram:
    """Run kernels in random topological orders on random streams, and compare bit for bit with those in order."""
    kernels = kernel_program(as_module(program), program.inputs, program.name, ONE_THREAD)
    want = [each.clone() if isinstance(each, torch.Tensor) else each for each in Run(kernels)()]
    assert outputs_differ(want, eager(program)) is None
    rng, count = np.random.default_rng(0), kernels.num_kernels
    for number in range(plans):
        streams = stream_program(kernels, rng.integers(0, rng.integers(1, 9), count), rng.permutation(count))
        run = Run(kernels, streams)
        run._memory.copy_(torch.full((run.places.size,), 255, dtype=torch.uint8).untyped_storage())
        got = (
            on_threads(run, lambda: torch.set_num_threads(1))
            if number % 3 == 2
            else in_order(run, issue_order(streams, rng))
        )
        for one, other in zip(got, want, strict=True):
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    return kernels


@pytest.mark.e2e
@pytest.mark.slow
def test_a_training_step_computes_the_same_in_every_order(one_thread: None) -> None:
    kernels = require_equal_in_every_order(capture(WORKLOADS["rnnlm"](**TINY)))
    assert {each.kind for each in kernels.kernels} == {"generated", "operator"}
    times = kernel_times_us(Run(kernels), 2)
    assert (times > 0).all() and np.isfinite(times).all()


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("name", list(SMALL))
def test_every_workload_computes_the_same_in_every_order(name: str, one_thread: None) -> None:
    require_equal_in_every_order(capture(WORKLOADS[name](**SMALL[name])))


def test_random_numbers_keep_their_order(one_thread: None) -> None:
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.rand_like(x) * x, torch.randn_like(x) + x, torch.nn.functional.dropout(x, 0.5)]

    module = torch.fx.experimental.proxy_tensor.make_fx(step)(torch.ones(64, 64))
    kernels = kernel_program(module, [torch.ones(64, 64)], settings=ONE_THREAD | {"fallback_random": True})
    draws = [each for each in kernels.kernels if any(region.storage == GENERATOR for region in each.writes)]
    assert len(draws) >= 3
    rng, results = np.random.default_rng(0), []
    for number in range(3):
        streams = stream_program(kernels, rng.integers(0, 1 + number, kernels.num_kernels))
        torch.manual_seed(7)
        results.append([each.clone() for each in in_order(Run(kernels, streams), issue_order(streams, rng))])
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))
    torch.manual_seed(7)
    assert all(torch.equal(a, b) for a, b in zip(results[0], step(torch.ones(64, 64)), strict=True))


def _aliasing() -> Callable[..., Any]:
    library = torch.library.Library("gst_tests", "FRAGMENT")
    library.define("secret(Tensor x) -> Tensor")
    library.impl("secret", lambda x: x.view(-1), "CPU")
    library.impl("secret", lambda x: x.new_empty(x.numel()), "Meta")
    _aliasing.library = library  # type: ignore[attr-defined]  # registered as long as it lives
    return torch.ops.gst_tests.secret


def test_what_is_not_understood_is_refused_by_name() -> None:
    for operator, words in (
        (torch.ops.aten.nonzero.default, "aten.nonzero.default returns sizes that depend on values"),
        (torch.ops.aten._local_scalar_dense.default, "waits for a value of the device"),
        (torch.ops._c10d_functional.all_reduce.default, "exchanges data with other processes"),
        (len, "is no operator whose mutations are known"),
    ):
        with pytest.raises(NotUnderstoodError, match=words):
            require_movable(operator)
    secret = _aliasing()
    module = torch.fx.experimental.proxy_tensor.make_fx(lambda x: [secret(x + 1) * 2])(torch.ones(3))
    refused = pytest.raises(NotUnderstoodError, match=r"gst_tests\.secret\.default returns memory of its arguments")
    with torch._functorch.config.patch(check_custom_op_aliasing=False), refused:  # PyTorch's own check, an error in CI
        kernel_program(module, [torch.ones(3)])


def test_this_version_is_known_and_others_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert inductor.unsupported() == ""
    monkeypatch.setitem(inductor.NAMES, "torch._guards", ("that_is_gone",))
    assert inductor.unsupported.__wrapped__() == f"torch {torch.__version__} has no torch._guards.that_is_gone"
    reason = inductor.unsupported("9.1.0")
    assert reason == "the code that torch 9.1.0 generates is unknown here; known are 2.11 to 2.15"
    monkeypatch.setattr(inductor, "unsupported", lambda: reason)
    program = capture(Step("relu", lambda x: [torch.relu(x) @ x], (torch.ones(4, 4),)))
    with pytest.raises(NotUnderstoodError, match=reason):
        kernel_program(as_module(program), program.inputs)


def test_what_inductor_does_stays_as_it_was() -> None:
    """Recording leaves the code of the step, the inputs and the settings as they were."""
    from torch._inductor import config

    program = capture(Step("relu", lambda x: [torch.relu(x) @ x], (torch.linspace(-1, 1, 16).view(4, 4),)))
    before, x = config.allow_buffer_reuse, program.inputs[0].clone()
    first = kernel_program(as_module(program), program.inputs)
    hits = counters["inductor"]["fxgraph_cache_hit"]
    second = kernel_program(as_module(program), program.inputs)
    assert counters["inductor"]["fxgraph_cache_hit"] == hits + 1, "Inductor keeps its code"
    assert config.allow_buffer_reuse == before and torch.equal(program.inputs[0], x)
    assert first.key == second.key and first.num_kernels == second.num_kernels
    (result,) = torch.compile(as_module(program))(x)
    torch.testing.assert_close(result, torch.relu(x) @ x)


def test_constants_and_views_of_inputs_are_found() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = torch.arange(4.0)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.mm(x[:, 1:].t(), x) + self.shift, x.t()

    program = capture_module(Shifted(), (torch.arange(12.0).view(3, 4),))
    kernels = kernel_program(as_module(program), program.inputs)
    run = Run(kernels)
    assert outputs_differ(run(), eager(program)) is None
    run.inputs[-1].mul_(2)
    x = 2 * torch.arange(12.0).view(3, 4)
    assert outputs_differ(run(), [x[:, 1:].t() @ x + torch.arange(4.0), x.t()]) is None
