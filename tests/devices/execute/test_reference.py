"""Plans are compared with the program on the accelerator that rounds as they do, and may differ from it by rounding."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gst.devices import Device, ExecutionError, Plan, eager
from gst.devices.execute import child
from gst.devices.execute.calls import in_program_order
from gst.devices.execute.child import Runner, reference
from gst.programs import Program, capture, outputs_differ, training_step

PLAN = Plan(("cpu:0",), torch.zeros(0, dtype=torch.int64).numpy())
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
    want, again = reference(program, [])
    got = in_double(program)
    assert outputs_differ(got, want) is not None  # beyond what is allowed without margins
    executor: Any = SimpleNamespace(program=program, devices=[], run=lambda plan: got)
    assert Runner(executor, want, again, None).check(PLAN) == ""
    number = next(index for index, each in enumerate(got) if isinstance(each, Tensor) and each.numel() > 100)
    got[number] = -got[number]
    with pytest.raises(ExecutionError, match=f"wrong outputs: output {number}"):
        Runner(executor, want, again, None).check(PLAN)


def test_the_reference_is_computed_on_the_first_accelerator(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []

    def computed(program: Program, inputs: Sequence[Tensor] | None, device: torch.device) -> list[Any]:
        asked.append(device)
        return eager(program, inputs)

    monkeypatch.setattr(child, "eager", computed)
    core = Device("cpu:0", "cpu", (0,), 1, "host", "made up")
    _, again = reference(program, [core, GPU])
    again(program.inputs)
    assert asked == [torch.device("xpu:0")] * 2


def test_an_accelerator_that_cannot_run_the_whole_leaves_the_reference_to_the_host(program: Program) -> None:
    want, again = reference(program, [Device("meta:0", "meta", (), 1, "meta:0", "tensors without numbers")])
    assert outputs_differ(want, eager(program)) is None
    assert outputs_differ(again(program.inputs), want) is None
