"""Outputs are compared within the tolerance of their dtype; inputs are checked."""

import pytest
import torch

from gst.programs import TrainingStep, capture, outputs_differ


def test_rounding_is_no_difference_and_anything_else_is() -> None:
    a = torch.linspace(-1, 1, 100)
    assert outputs_differ([a, 3], [a + 1e-6, 3]) is None
    assert "output 1 is 3 instead of 4" in str(outputs_differ([a, 3], [a, 4]))
    assert "off by" in str(outputs_differ([a], [a + 0.01]))
    assert "off by" in str(outputs_differ([a * float("nan")], [a]))
    assert "not equal" in str(outputs_differ([torch.tensor(3)], [torch.tensor(4)]))
    assert "instead of" in str(outputs_differ([a], [a.double()]))
    assert "1 outputs instead of 2" in str(outputs_differ([a], [a, a]))


def test_tolerance_follows_the_dtype() -> None:
    a = torch.ones(4)
    assert outputs_differ([a.bfloat16() * 1.01], [a.bfloat16()]) is None
    assert outputs_differ([a.double() + 1e-6], [a.double()]) is not None


def test_inputs_of_another_shape_are_refused() -> None:
    program = capture(TrainingStep("sum", lambda p: (p["w"].sum(), {}), ({"w": torch.ones(2)},)))
    with pytest.raises(ValueError, match=r"captured with torch.float32 \(2,\)"):
        program.check_inputs([torch.ones(3)])
    with pytest.raises(ValueError, match="takes 1 flat inputs, got 2"):
        program.check_inputs([torch.ones(2), torch.ones(2)])
