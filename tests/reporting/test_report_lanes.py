"""Lanes of the report: ink stands for time, gaps stay visible."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

from gst.reporting.headline import step_kind
from gst.reporting.timeline import IDLE, Bars, busy_ms, cells_of, coverage, lanes
from gst.whole_model.device_copy import VARIANTS


def bars(*rows: tuple[float, float, int], device: int = 0) -> Bars:
    begin, end, kind = (np.array(column) for column in zip(*rows, strict=True))
    return Bars(np.full(len(rows), device), begin.astype(float), end.astype(float), kind)


def random_bars(num_bars: int, num_kinds: int, busy: float, seed: int = 0) -> Bars:
    """One after the other on one device, of very different lengths, idle between them."""
    rng = np.random.default_rng(seed)
    took = rng.lognormal(0, 2, num_bars)
    waited = rng.exponential(took.sum() / num_bars * (1 - busy) / busy, num_bars)
    end = np.cumsum(took + waited)
    return Bars(np.zeros(num_bars, np.int64), end - took, end, rng.integers(0, num_kinds, num_bars))


def test_time_of_bars_that_lie_on_each_other_counts_once() -> None:
    assert busy_ms(bars((0, 4, 0), (0, 4, 0), (1, 2, 0), (3, 5, 0), (7, 8, 0))) == 6
    assert busy_ms(bars((0, 9, 0), (1, 2, 0), (4, 5, 0))) == 9


def test_coverage_against_each_bar_and_cell() -> None:
    some, edges = random_bars(40, 3, 0.5), np.linspace(0, 60, 31)
    each = list(zip(some.begin_ms, some.end_ms, strict=True))
    slow = [
        sum(max(0.0, min(end, high) - max(begin, low)) for begin, end in each) / (high - low)
        for low, high in pairwise(edges)
    ]
    np.testing.assert_allclose(coverage(some.begin_ms, some.end_ms, edges), slow, atol=1e-9)


@pytest.mark.parametrize("busy", [0.2, 0.7, 0.999])
@pytest.mark.parametrize("num_bars", [100, 20_000])
def test_ink_is_in_proportion_to_time(num_bars: int, busy: float) -> None:
    some = random_bars(num_bars, 4, busy)
    edges = np.linspace(0, some.span_ms, 1881)
    shown = cells_of(some, 4, edges)
    for kind in range(4):
        took = busy_ms(some.of(some.kind == kind)) / some.span_ms
        assert abs((shown == kind).mean() - took) < 0.03, kind
    covered = coverage(some.begin_ms, some.end_ms, edges)
    assert (shown[covered < 1e-12] == IDLE).all()


def test_a_lane_of_many_bars_stays_small_and_names_every_device() -> None:
    for num_devices in (2, 64):
        each = [random_bars(60_000 // num_devices, 6, 0.9, seed) for seed in range(num_devices)]
        together = Bars(
            np.repeat(np.arange(num_devices), 60_000 // num_devices),
            *(np.concatenate([getattr(one, what) for one in each]) for what in ("begin_ms", "end_ms", "kind")),
        )
        svg = lanes(together, [(index, f"gpu:{index} <b>") for index in range(num_devices)], list(range(6)), "lanes")
        assert len(svg.encode()) < 290_000
        assert len(re.findall("<text[^>]*>gpu:", svg)) == num_devices and "<b>" not in svg


def test_the_report_knows_every_variant_of_an_accelerator() -> None:
    assert all(step_kind(variant.name) for variant in VARIANTS)
