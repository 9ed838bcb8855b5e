"""Outputs are compared within the tolerance of their dtype; inputs are checked; a module computes the same."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from gst.lowering.calls import eager
from gst.programs import Step, TrainingStep, as_module, capture, differ_beyond_rounding, outputs_differ
from gst.programs.program import rounding_margins
from tests.programs.small import small_program


def test_rounding_by_dtype_is_no_difference_and_anything_else_is() -> None:
    a = torch.linspace(-1, 1, 100)
    assert outputs_differ([a, 3], [a + 1e-6, 3]) is None
    assert "output 1 is 3 instead of 4" in str(outputs_differ([a, 3], [a, 4]))
    assert "off by" in str(outputs_differ([a], [a + 0.01]))
    assert "off by" in str(outputs_differ([a * float("nan")], [a]))
    assert "not equal" in str(outputs_differ([torch.tensor(3)], [torch.tensor(4)]))
    assert "instead of" in str(outputs_differ([a], [a.double()]))
    assert "1 outputs instead of 2" in str(outputs_differ([a], [a, a]))
    a = torch.ones(4)
    assert outputs_differ([a.bfloat16() * 1.01], [a.bfloat16()]) is None
    assert outputs_differ([a.double() + 1e-6], [a.double()]) is not None


def test_inputs_of_another_shape_are_refused() -> None:
    program = capture(TrainingStep("sum", lambda p: (p["w"].sum(), {}), ({"w": torch.ones(2)},)))
    with pytest.raises(ValueError, match=r"captured with torch.float32 \(2,\)"):
        program.check_inputs([torch.ones(3)])
    with pytest.raises(ValueError, match="takes 1 flat inputs, got 2"):
        program.check_inputs([torch.ones(2), torch.ones(2)])


def test_rounding_excuses_what_is_badly_conditioned_and_nothing_else() -> None:
    """The second output is a difference of nearly equal numbers; other code may have another last place there."""

    def run(inputs: Sequence[Any]) -> list[Any]:
        x, count = inputs
        return [x * 2.0, (x - 1.0) * 1e3, count]

    inputs = [1.0 + 1e-6 * torch.arange(1, 9, dtype=torch.float32), torch.tensor(3)]
    want = run(inputs)
    margins = rounding_margins(run, inputs, want)
    assert margins[2] == 0.0 and margins[1] > 10 * margins[0] > 0
    rounded = [want[0], ((inputs[0].double() - 1.0 + 2e-7) * 1e3).float(), inputs[1]]
    assert outputs_differ(rounded, want) is not None and differ_beyond_rounding(rounded, want, run, inputs) is None
    first, second, count = want
    for wrong in ([first + 1, second, count], [first, second + 1e-2, count], [first, second, torch.tensor(4)]):
        assert differ_beyond_rounding(wrong, want, run, inputs) is not None


def test_a_module_takes_the_inputs_and_returns_the_outputs_of_the_program() -> None:
    program = small_program("rnnlm")
    assert outputs_differ(as_module(program)(*program.inputs), eager(program)) is None
    offset = torch.arange(3.0)
    program = capture(Step("offset", lambda x: (x + offset, 3), (torch.ones(3),)))
    assert any(operation.kind == "constant" for operation in program.operations)
    shifted, number = as_module(program)(torch.full((3,), 2.0))
    torch.testing.assert_close(shifted, offset + 2)
    assert number == 3
