"""Operation times by the model of step times."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.reproductions.timm.step_time.estimate import estimate, operation_times_us
from experiments.reproductions.timm.step_time.machines import machine_of
from gst.programs import Program, capture
from gst.programs.features import flops
from gst.programs.traces import resolve


@pytest.fixture(scope="module")
def program() -> Program:
    return capture(resolve("rnnlm:layers=1,steps=2"))


@pytest.mark.parametrize("name", ["rtx4090", "h100"])
def test_no_operation_is_faster_than_at_peak_rates_and_their_sum_is_the_estimate(program: Program, name: str) -> None:
    times, tflops = operation_times_us(program, name), machine_of(name).single
    products = np.array([any(each in str(o.target) for each in ("mm", "convolution")) for o in program.operations])
    assert products.any()
    assert (times >= 0.999 * products * flops(program.operations) / tflops / 1e6).all()
    assert times.sum() / 1e3 == pytest.approx(estimate(program, on=name).milliseconds, rel=0.1)
