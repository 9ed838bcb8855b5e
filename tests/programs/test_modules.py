"""A program as a module of torch.fx computes what the program computes."""

from __future__ import annotations

import torch

from gst.lowering.calls import eager
from gst.programs import WORKLOADS, Step, as_module, capture, outputs_differ

OFFSET = torch.arange(3.0)


def test_a_module_takes_the_inputs_and_returns_the_outputs_of_the_program() -> None:
    program = capture(WORKLOADS["rnnlm"](layers=1, hidden=8, steps=2, batch=2, vocabulary=10))
    assert outputs_differ(as_module(program)(*program.inputs), eager(program)) is None


def test_constants_are_buffers_and_plain_outputs_stay() -> None:
    program = capture(Step("offset", lambda x: (x + OFFSET, 3), (torch.ones(3),)))
    assert any(operation.kind == "constant" for operation in program.operations)
    shifted, number = as_module(program)(torch.full((3,), 2.0))
    torch.testing.assert_close(shifted, OFFSET + 2)
    assert number == 3
