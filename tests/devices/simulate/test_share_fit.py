"""Lanes that share an accelerator: shares of its operations, fitted to pairs, and what the simulator makes of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gst.devices import Device, Plan
from gst.devices.execute.costs import Costs
from gst.devices.execute.pair_records import Pair, Pairs
from gst.devices.simulate.share_fit import LEAST_PAIRS, fit_sharing, held_out_errors, pair_shares, pair_us
from gst.devices.simulate.simulator import UNCALIBRATED, Contention, Simulator

from ..execute.test_native import names
from . import slow_simulator
from .test_simulator import NOTHING, ROUGH, made

LANES = [Device(f"xpu:0/stream:{n}", "xpu", (), 1, "xpu:0", "test") for n in range(3)]
MIXED = [*LANES[:2], Device("xpu:1", "xpu", (), 1, "xpu:1", "test"), Device("cpu:0", "cpu", (0,), 1, "host", "test")]
SHARED = {"share_per_kb": 0.3, "share_per_gb_per_s": 2.0, "least_share": 0.2}


@st.composite
def cases(draw: st.DrawFn) -> tuple[Costs, Plan]:
    """A random program on lanes of one accelerator, alone or beside another and a core, whose copies may queue."""
    nodes = draw(st.integers(1, 25))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    devices = draw(st.sampled_from([LANES, MIXED]))
    edges = [(a, b) for b in range(nodes) for a in range(b) if rng.random() < 2 / nodes]
    costs = made(devices, edges, rng.lognormal(2, 1, (len(devices), nodes)), queue=True)
    costs = replace(costs, output_bytes=rng.integers(1, 5_000, nodes))
    return costs, Plan(names(devices), rng.integers(0, len(devices), nodes), rng.integers(0, 4, nodes))


@given(cases(), st.sampled_from([NOTHING, ROUGH]))
@settings(max_examples=100)
def test_the_compiled_simulator_agrees_with_its_slow_twin(case: tuple[Costs, Plan], rough: Contention) -> None:
    costs, plan = case
    contention = rough._replace(**SHARED)
    got = Simulator(costs, contention).run(plan)
    begin, end = slow_simulator.simulate(costs, contention, plan)
    np.testing.assert_allclose(got.begin_us, begin, atol=1e-6)
    np.testing.assert_allclose(got.end_us, end, atol=1e-6)


def ends(devices: list[Device], sizes: list[int], contention: Contention) -> list[float]:
    """Of two operations of 10 and 6 us at once on the first two devices."""
    costs = replace(made(devices, [], np.tile([10.0, 6.0], (len(devices), 1))), output_bytes=np.array(sizes))
    return Simulator(costs, contention).run(Plan(names(devices), np.array([0, 1]))).end_us.tolist()


def test_by_hand_what_fits_beside_each_other_is_not_slowed_and_what_does_not_shares() -> None:
    """Shares of 0.5 and 0.5 fit. Of 0.9 and 0.6 both run at 1 / 1.5: 6 us of work end at 9, then 4 of 10 are left.
    Of 1 and 1, which no share exceeds, they run at half their speed."""
    per_kb = NOTHING._replace(share_per_kb=0.1)
    assert ends(LANES, [5_000, 5_000], per_kb) == [10, 6]
    assert ends(LANES, [9_000, 6_000], per_kb) == pytest.approx([13, 9])
    assert ends(LANES, [90_000, 90_000], per_kb) == pytest.approx([16, 12])
    assert ends(LANES, [10, 10], per_kb._replace(least_share=1.0)) == pytest.approx([16, 12])
    by_rate = NOTHING._replace(share_per_gb_per_s=1.0)  # 9,000 bytes in 10 us are 0.9 GB/s, 3,600 in 6 us 0.6
    assert ends(LANES, [9_000, 3_600], by_rate) == pytest.approx([13, 9])


def test_accelerators_of_their_own_and_cores_know_no_shares() -> None:
    full = NOTHING._replace(least_share=1.0)
    cores = [Device(f"cpu:{n}", "cpu", (n,), 1, "host", "test") for n in range(2)]
    apart = [Device(f"xpu:{n}", "xpu", (), 1, f"xpu:{n}", "test") for n in range(2)]
    for devices in (cores, apart):
        assert ends(devices, [9_000, 9_000], full) == ends(devices, [9_000, 9_000], NOTHING) == [10, 6]


def pairs_under(contention: Contention, count: int, noise: float, threads: int | None = 2**18) -> Pairs:
    """Pairs that take what the shares of a contention say, and noise."""
    rng, pairs = np.random.default_rng(0), []
    for _ in range(count):
        kilobytes, rate, alone = rng.lognormal(5, 2, 2), rng.uniform(5, 900, 2), rng.uniform(50, 200, 2)
        pairs.append(Pair(*(tuple(each.tolist()) for each in (kilobytes, rate, alone)), 0.0))
    empty = Pairs(threads, 900.0, tuple(pairs))
    both = pair_us(np.array([each.alone_us for each in pairs]), pair_shares(empty, contention))
    both = (both * rng.lognormal(0, noise, count)).tolist()
    return replace(empty, pairs=tuple(replace(each, both_us=us) for each, us in zip(pairs, both, strict=True)))


# Half the threads, and half the rate, fill this accelerator.
TRUE = Contention(share_per_kb=2e3 / 2**20, share_per_gb_per_s=2 / 900, least_share=0.25)


def test_shares_are_recovered_from_pairs_under_them() -> None:
    fitted = fit_sharing(pairs_under(TRUE, 36, noise=0.02), ROUGH)
    assert fitted[-3:] == pytest.approx(TRUE[-3:], rel=0.2)
    assert fitted[:-3] == ROUGH[:-3], "all else is left as it was"


def test_pairs_that_were_not_fitted_are_predicted_better_than_by_no_model() -> None:
    errors = held_out_errors(pairs_under(TRUE, 36, noise=0.02))
    assert errors.shares < 0.05 < min(errors.free, errors.in_turns)


def test_an_accelerator_that_does_not_tell_its_threads_is_fitted_by_its_rate() -> None:
    by_rate = TRUE._replace(share_per_kb=0.0)
    fitted = fit_sharing(pairs_under(by_rate, 36, noise=0.0, threads=None))
    assert fitted.share_per_kb == 0 and fitted[-2:] == pytest.approx(by_rate[-2:], rel=0.2)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_kernels_that_never_or_always_take_turns_are_fitted_exactly(share: float) -> None:
    pairs = pairs_under(Contention(least_share=share), 20, noise=0.0)
    assert held_out_errors(pairs).shares < 0.03
    both = pair_us(np.array([each.alone_us for each in pairs.pairs]), pair_shares(pairs, fit_sharing(pairs)))
    assert both == pytest.approx([each.both_us for each in pairs.pairs], rel=0.03)


def test_few_pairs_are_not_fitted() -> None:
    few = pairs_under(TRUE, LEAST_PAIRS - 1, noise=0.0)
    assert fit_sharing(few) == fit_sharing(None) == UNCALIBRATED
    with pytest.raises(ValueError, match=f"^errors need at least {LEAST_PAIRS} pairs, got {LEAST_PAIRS - 1}$"):
        held_out_errors(few)


def test_pairs_and_shares_survive_a_file() -> None:
    pairs, fitted = pairs_under(TRUE, 9, noise=0.1), Contention(**SHARED)
    assert Pairs.from_dict(json.loads(json.dumps(pairs.to_dict(), allow_nan=False))) == pairs
    assert Contention(**json.loads(json.dumps(fitted.to_dict()))) == fitted
