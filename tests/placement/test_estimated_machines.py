"""Simulated machines whose operations take what the model of step times estimates."""

from __future__ import annotations

import numpy as np
import pytest

from gst.cost.step_time.estimate import estimate
from gst.placement.machines import machine
from gst.programs import Program, capture
from gst.programs.features import flops
from gst.programs.traces import resolve


@pytest.fixture(scope="module")
def program() -> Program:
    return capture(resolve("rnnlm:layers=1,steps=2"))


@pytest.mark.parametrize("name", ["rtx4090", "h100"])
def test_no_operation_is_faster_than_at_peak_rates_and_their_sum_is_the_estimate(program: Program, name: str) -> None:
    chips = machine(f"{name}:2")
    times = chips.costs(program).times_us
    assert np.array_equal(times[0], times[1])
    products = np.array([any(each in str(o.target) for each in ("mm", "convolution")) for o in program.operations])
    assert products.any()
    assert (times[0] >= 0.999 * products * flops(program.operations) / chips.chips[0].gflops / 1e3).all()
    assert times[0].sum() / 1e3 == pytest.approx(estimate(program, on=name).milliseconds, rel=0.1)


def test_unknown_machines_are_refused() -> None:
    with pytest.raises(ValueError, match=r"there is no simulated machine 'rtx99:4'; .* rtx4090:4"):
        machine("rtx99:4")
