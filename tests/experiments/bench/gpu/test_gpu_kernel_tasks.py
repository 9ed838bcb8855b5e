"""Kernels on streams as a task: simulated, searched and lowered like any other, and the choice of streams."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.worlds.kernel_task import kernel_task, lowered
from gst.kernels.run import Run, upward_ranks
from gst.placement.baselines.portfolio import portfolio
from gst.placement.objectives import SimulatedObjective
from tests.kernels.made import by_hand, fresh_inputs, random_program


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4))
def test_plans_take_between_the_critical_path_and_the_sum_and_compute_the_same(seed: int, streams: int) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng, 25)
    times_us = rng.uniform(1, 100, 25)
    task = kernel_task(program, times_us, streams)
    plans = portfolio(task)
    assert {"etf", "heft"} <= plans.keys()
    want = by_hand(program)
    for name, plan in plans.items():
        (simulated_ms,) = SimulatedObjective(task)([plan])
        least, most = upward_ranks(program, times_us).max() / 1e3, times_us.sum() / 1e3
        assert least - 1e-9 <= simulated_ms <= most + 1e-9 or not name.startswith(("etf", "heft", "single"))
        got = Run(program, lowered(program, plan), fresh_inputs(program))()
        assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
