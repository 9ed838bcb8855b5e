"""Conformal intervals: they hold what they say, whatever the errors, and refuse what so few labels cannot say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gst.cost.model import Calibration, held_out
from gst.data.synthetic import synthetic_program


def simulated(generator: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Heavy-tailed errors, seven times as large as the spreads promise and unbalanced, on spreads of two magnitudes."""
    spreads = np.exp(generator.normal(size=size))
    return 7 * spreads * generator.standard_t(3, size=size) + 0.5, spreads


@pytest.mark.parametrize("coverage", [0.5, 0.68, 0.9])
def test_intervals_hold_the_share_they_say(coverage: float) -> None:
    generator, inside = np.random.default_rng(0), []
    for _ in range(300):
        calibration = Calibration.of(*simulated(generator, 60), offset=0.3)
        errors, spreads = simulated(generator, 200)
        inside.append(np.mean(np.abs(errors) <= calibration.half_width(spreads, coverage)))
    assert coverage - 0.01 < np.mean(inside) < coverage + 1 / 60 + 0.01  # Lei et al. 2018, theorem 2.2


def test_widths_follow_the_spread_of_the_members() -> None:
    calibration = Calibration.of(np.linspace(-1, 1, 9), np.full(9, 0.5), offset=0.5)
    narrow, wide = calibration.half_width(np.array([0.0, 2.0]), 0.9)
    assert wide == pytest.approx(5 * narrow)
    assert calibration.half_width(np.array([0.5]), 0.9)[0] == 1.0  # nine labels and 0.9: the largest of their errors


@pytest.mark.parametrize(("coverage", "message"), [(0.91, "needs 11 held-out"), (0.0, "share"), (1.0, "share")])
def test_what_nine_labels_cannot_promise_is_refused(coverage: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Calibration.of(np.ones(9), np.ones(9), 1.0).half_width(np.ones(1), coverage)


def test_members_that_agree_entirely_still_have_a_width() -> None:
    assert Calibration.of(np.ones(9), np.zeros(9), 0.0).half_width(np.zeros(1), 0.9)[0] == pytest.approx(1.0)


def test_a_configuration_stays_on_its_side_in_another_list() -> None:
    graph = synthetic_program(60, 400, num_regions=2)
    away = held_out(graph, 0.2)
    assert 50 < away.sum() < 110
    order = np.random.default_rng(0).permutation(400)[:100]
    some = replace(
        graph, config_features=graph.config_features[order], targets=graph.targets[order] * 2,
        counts=graph.counts[order], spreads=graph.spreads[order],
    )  # fmt: skip
    assert np.array_equal(held_out(some, 0.2), away[order])
