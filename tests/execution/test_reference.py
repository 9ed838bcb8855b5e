"""Plans are compared with the program on the accelerator that rounds as they do, and may differ from it by rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from experiments.bench.gpu import host_outputs
from experiments.bench.gpu.host_outputs import differs_from_host, exact_convolutions
from gst.execution import isolated as module
from gst.execution.isolated import Runner, reference
from gst.lowering.calls import HOST, eager, in_program_order
from gst.lowering.plan import ExecutionError, Plan
from gst.machine.devices import Device
from gst.programs import Program, as_module, capture, outputs_differ, training_step
from tests.choices import with_rest
from tests.execution.tf32 import RoundedConvolutions, on_the_host
from tests.programs.small import small_program

PLAN = Plan(("cpu:0",), torch.zeros(0, dtype=torch.int64).numpy())
NUMBERLESS = Device("meta:0", "meta", (), 1, "meta:0", "tensors without numbers")
GPU = Device("xpu:0", "xpu", (), 1, "xpu:0", "made up")


@pytest.fixture(scope="module")
def program() -> Program:
    """A step of Adam, which makes the same of a gradient of 1e-9 as of one of 1: its sign counts."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        x = torch.randn(4, 16, 64)
    return capture(training_step("adam", layer, lambda m, x: m(x).square().mean(), (x,), optimizer="adam"))


def in_double(program: Program) -> list[Any]:
    """Outputs that were computed with other rounding, as an accelerator does."""
    up = [each.double() if each.dtype == torch.float32 else each for each in program.inputs]
    values: list[Any] = [*up, *(each.constant for each in program.operations[len(up) :])]
    for node, call, _ in in_program_order(program):
        values[node] = call(values)
    return [values[each.node].to(want.dtype) if isinstance(want, Tensor) else want
            for each, want in zip(program.outputs, eager(program), strict=True)]  # fmt: skip


def test_a_plan_that_rounds_otherwise_is_right_and_another_is_not(program: Program) -> None:
    compared, got = reference(program, [NUMBERLESS]), in_double(program)
    assert reference(program, []).difference(got) is not None  # the host alone rounds as it does
    assert outputs_differ(got, compared.want) is not None  # beyond what is allowed without margins
    executor: Any = SimpleNamespace(program=program, devices=[], run=lambda plan: got)
    assert Runner(executor, compared, None).check(PLAN) == ""
    number = next(index for index, each in enumerate(got) if isinstance(each, Tensor) and each.numel() > 100)
    got[number] = -got[number]
    with pytest.raises(ExecutionError, match=f"wrong outputs: output {number}"):
        Runner(executor, compared, None).check(PLAN)


def by_kind(on_accelerator: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """`eager` with the CPU for an accelerator that computes in a way of its own."""

    def run(program: Program, inputs: Sequence[Tensor] | None = None, device: torch.device = HOST) -> list[Any]:
        return on_the_host(eager)(program, inputs) if device == HOST else on_accelerator(program, inputs)

    return run


@pytest.mark.parametrize("name", with_rest(["inception", "wavenet"], ["inception"]))
def test_convolutions_that_round_are_compared_with_those_of_the_accelerator(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = small_program(name)
    for each in (module, host_outputs):
        monkeypatch.setattr(each, "eager", by_kind(eager))
    with RoundedConvolutions():
        got, compared = list(as_module(program)(*program.inputs)), reference(program, [GPU])
        assert outputs_differ(got, on_the_host(eager)(program)) is not None
        assert compared.difference(got) is None
        assert compared.difference(on_the_host(eager)(program)) is None  # as a plan on both may be
        assert str(compared.difference([2 * each for each in got])).startswith("output 0 is off by ")
        assert differs_from_host(program, GPU.torch_device) is None
    monkeypatch.setattr(host_outputs, "eager", by_kind(lambda *arguments: [2 * each for each in eager(*arguments)]))
    assert str(differs_from_host(program, GPU.torch_device)).startswith("output 0 is off by ")


def test_convolutions_are_as_they_were_afterwards() -> None:
    before = torch.backends.cudnn.allow_tf32
    with pytest.raises(ZeroDivisionError), exact_convolutions():
        assert not torch.backends.cudnn.allow_tf32
        1 / 0  # noqa: B018
    assert torch.backends.cudnn.allow_tf32 == before


def test_an_accelerator_that_cannot_run_the_whole_leaves_the_reference_to_the_host(program: Program) -> None:
    compared = reference(program, [NUMBERLESS])
    assert outputs_differ(compared.want, eager(program)) is None and not compared.least
    assert compared.again and outputs_differ(compared.again(program.inputs), compared.want) is None
