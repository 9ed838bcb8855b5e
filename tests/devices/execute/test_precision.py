"""Convolutions that round to TF32, by a mode on the CPU: runs are right that round alike, and exact ones are compared
with the CPU."""

from __future__ import annotations

import pytest
import torch

from gst.devices import eager
from gst.devices.execute import precision
from gst.devices.execute.on_accelerator import one_by_one, whole
from gst.devices.execute.precision import differs_from_host, exact_convolutions
from gst.programs import differ_beyond_rounding, outputs_differ
from tests.programs.small import small_program

from .tf32 import RoundedConvolutions, on_the_host

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["inception", "wavenet"])
def test_rounded_convolutions_are_compared_with_rounded_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "eager", on_the_host(eager))
    program = small_program(name)
    with RoundedConvolutions():
        there, got = one_by_one(program, CPU), whole(program, CPU)()
        assert outputs_differ(got, on_the_host(eager)(program)) is not None
        assert differ_beyond_rounding(got, there(program.inputs), there, program.inputs) is None
        assert differs_from_host(program, CPU) is None
        monkeypatch.setattr(precision, "one_by_one", lambda program, device: lambda inputs: [2 * each for each in got])
        assert str(differs_from_host(program, CPU)).startswith("output 0 is off by ")


def test_convolutions_are_as_they_were_afterwards() -> None:
    before = torch.backends.cudnn.allow_tf32
    with pytest.raises(ZeroDivisionError), exact_convolutions():
        assert not torch.backends.cudnn.allow_tf32
        1 / 0  # noqa: B018
    assert torch.backends.cudnn.allow_tf32 == before
