"""Lanes that share an accelerator: shares of operations, fitted to pairs of several, and what the simulator makes of
them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.bench.gpu.held_out import held_out_errors
from gst.execution.costs import Costs, Pair, Pairs
from gst.lowering.plan import Plan
from gst.machine.devices import Device
from gst.simulation.share_fit import LEAST_PAIRS, Timed, fit_sharing, pair_us
from gst.simulation.simulator import UNCALIBRATED, Contention, Factors, Simulator, shares_of
from tests.execution.test_native import names
from tests.simulation import slow_simulator
from tests.simulation.test_simulator import NOTHING, ROUGH, made

LANES = [Device(f"xpu:0/stream:{n}", "xpu", (), 1, "xpu:0", "test") for n in range(3)]
OTHERS = [Device(f"xpu:2/stream:{n}", "xpu", (), 1, "xpu:2", "test") for n in range(2)]
MIXED = [*LANES[:2], Device("xpu:1", "xpu", (), 1, "xpu:1", "test"), Device("cpu:0", "cpu", (0,), 1, "host", "test")]
SHARED = Factors(threads=0.7, memory=2.0, arithmetic=1.5, least=0.2)


def asked(device: str, rng: np.random.Generator, nodes: int) -> Pairs:
    """What operations ask of an accelerator, of which no pairs were timed."""
    threads, flops = rng.lognormal(-1, 1, nodes), rng.lognormal(9, 1, nodes)
    return Pairs(device, rng.uniform(0.2, 2), rng.uniform(0.5, 5), tuple(threads.tolist()), tuple(flops.tolist()), ())


@st.composite
def cases(draw: st.DrawFn) -> tuple[Costs, Plan]:
    """A random program on lanes of one accelerator, of two that differ, or beside another and a core, whose copies may
    queue."""
    nodes = draw(st.integers(1, 25))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    devices = draw(st.sampled_from([LANES, MIXED, [*LANES, *OTHERS]]))
    edges = [(a, b) for b in range(nodes) for a in range(b) if rng.random() < 2 / nodes]
    costs = made(devices, edges, rng.lognormal(2, 1, (len(devices), nodes)), queue=True)
    measured = tuple(asked(name, rng, nodes) for name in draw(st.sampled_from([("xpu:0", "xpu:2"), ("xpu:2",)])))
    costs = replace(costs, output_bytes=rng.integers(1, 5_000, nodes), pairs=measured)
    return costs, Plan(names(devices), rng.integers(0, len(devices), nodes), rng.integers(0, 4, nodes))


@given(cases(), st.sampled_from([NOTHING, ROUGH]))
@settings(max_examples=50)
def test_the_compiled_simulator_agrees_with_its_slow_twin(case: tuple[Costs, Plan], rough: Contention) -> None:
    costs, plan = case
    contention = rough.with_factors(SHARED)
    got = Simulator(costs, contention).run(plan)
    begin, end = slow_simulator.simulate(costs, contention, plan)
    np.testing.assert_allclose(got.begin_us, begin, atol=1e-6)
    np.testing.assert_allclose(got.end_us, end, atol=1e-6)


def ends(devices: list[Device], sizes: list[int], contention: Contention, pairs: tuple[Pairs, ...] = ()) -> list[float]:
    """Of two operations of 10 and 6 us at once on the first two devices."""
    costs = made(devices, [], np.tile([10.0, 6.0], (len(devices), 1)))
    costs = replace(costs, output_bytes=np.array(sizes), pairs=pairs)
    return Simulator(costs, contention).run(Plan(names(devices), np.array([0, 1]))).end_us.tolist()


def test_by_hand_what_fits_beside_each_other_is_not_slowed_and_what_does_not_shares() -> None:
    """Shares of 0.5 and 0.5 fit. Of 0.9 and 0.6 both run at 1 / 1.5: 6 us of work end at 9, then 4 of 10 are left.
    Of 1 and 1, which no share exceeds, they run at half their speed."""

    def by_threads(*threads: float) -> list[float]:
        pairs = Pairs("xpu:0", 0.0, 0.0, threads, (0.0, 0.0), ())
        return ends(LANES, [10, 10], NOTHING.with_factors(Factors(threads=0.5)), (pairs,))

    assert by_threads(1.0, 1.0) == [10, 6]
    assert by_threads(1.8, 1.2) == pytest.approx([13, 9])
    assert by_threads(9.0, 9.0) == pytest.approx([16, 12])
    assert ends(LANES, [10, 10], NOTHING.with_factors(Factors(least=1.0))) == pytest.approx([16, 12])
    rates = (Pairs("xpu:0", 2.0, 4.0, (0.0, 0.0), (36e3, 14.4e3), ()),)
    # 9,000 bytes in 10 us are 0.9 GB/s, 3,600 in 6 us 0.6: parts of 0.45 and 0.3. So are 3.6 and 2.4 of 4 GFLOP/s.
    assert ends(LANES, [9_000, 3_600], NOTHING.with_factors(Factors(memory=2.0)), rates) == pytest.approx([13, 9])
    assert ends(LANES, [9, 3], NOTHING.with_factors(Factors(arithmetic=1.0)), rates) == pytest.approx([13, 9])


def test_a_group_takes_the_threads_of_its_largest_member_and_computes_what_all_do() -> None:
    """Of two operations at once one is a group of two: 0.6 of the threads, and 0.3 + 0.3 of the arithmetic."""
    pairs = Pairs("xpu:0", 0.0, 1.0, (0.4, 0.6, 0.9), (3e3, 3e3, 5.4e3), ())
    grouped = (pairs.contracted(np.array([0, 0, 1]), np.array([0, 2])),)
    for factors in (Factors(threads=1.0), Factors(arithmetic=1.0)):
        assert ends(LANES, [9, 9], NOTHING.with_factors(factors), grouped) == pytest.approx([13, 9])


def test_accelerators_of_their_own_and_cores_know_no_shares() -> None:
    full = NOTHING.with_factors(Factors(least=1.0))
    cores = [Device(f"cpu:{n}", "cpu", (n,), 1, "host", "test") for n in range(2)]
    apart = [Device(f"xpu:{n}", "xpu", (), 1, f"xpu:{n}", "test") for n in range(2)]
    for devices in (cores, apart):
        assert ends(devices, [9_000, 9_000], full) == ends(devices, [9_000, 9_000], NOTHING) == [10, 6]


TRUE = Factors(threads=1.5, memory=1.2, arithmetic=0.9, least=0.3)
GPUS = [(2**18, 3_350.0, 5e4), (2**17, 768.0, 2.8e4), (2**15, 320.0, 8e3), (2**19, 8_000.0, 8e4)]
"""Threads, GB/s and GFLOP/s of four accelerators."""


def timed(number: int, factors: Factors, count: int, noise: float, judged_as: int | None = None) -> Pairs:
    """Pairs that take what shares of an accelerator say, and noise; with parts as if it were another if `judged_as`."""
    rng = np.random.default_rng(number)
    amounts = rng.uniform(0, 1, (count, 2, 3)) ** 2 * GPUS[number]
    alone = rng.uniform(50, 200, (count, 2))
    both = pair_us(alone, shares_of(amounts / GPUS[number], factors)) * rng.lognormal(0, noise, count)
    parts = (amounts / GPUS[number if judged_as is None else judged_as]).tolist()
    pairs = [
        Pair((tuple(one), tuple(other)), tuple(us), each)
        for (one, other), us, each in zip(parts, alone.tolist(), both.tolist(), strict=True)
    ]
    return Pairs(f"cuda:{number}", *GPUS[number][1:], (), (), tuple(pairs))


def error(pairs: Pairs, contention: Contention) -> float:
    """Mean relative error of the times of pairs."""
    timed = Timed.of(pairs)
    guess = pair_us(timed.alone, shares_of(timed.parts, contention.factors))
    return float(np.abs(guess / np.array([each.both_us for each in pairs.pairs]) - 1).mean())


def test_one_set_of_factors_is_recovered_from_three_accelerators_and_predicts_a_fourth() -> None:
    """Numbers in kB and GB/s of the first, which served all before, do not."""
    fitted = fit_sharing([timed(number, TRUE, 36, noise=0.01) for number in range(3)], ROUGH)
    assert fitted.factors == pytest.approx(TRUE, rel=0.1)
    assert fitted[:-4] == ROUGH[:-4], "all else is left as it was"
    assert error(timed(3, TRUE, 36, noise=0.0), fitted) < 0.02
    of_the_first = fit_sharing([timed(0, TRUE, 36, noise=0.0)])
    assert error(timed(3, TRUE, 36, noise=0.0, judged_as=0), of_the_first) > 0.1


def test_an_accelerator_is_predicted_from_the_pairs_of_others() -> None:
    """A quarter of the pairs of a single one are predicted from the others."""
    for measured in ([timed(0, TRUE, 36, 0.02)], [timed(number, TRUE, 24, 0.02) for number in range(3)]):
        errors = held_out_errors(measured)
        assert errors == held_out_errors([*measured, replace(measured[0], pairs=())]), "an alike one is not timed"
        assert errors.shares < 0.05 < min(errors.free, errors.in_turns)


def test_an_accelerator_that_does_not_tell_its_threads_is_fitted_by_its_rates() -> None:
    by_rates = TRUE._replace(threads=0.0)
    pairs = timed(1, by_rates, 36, noise=0.0)
    untold = tuple(replace(each, parts=tuple((0.0, *part[1:]) for part in each.parts)) for each in pairs.pairs)
    fitted = fit_sharing([replace(pairs, pairs=untold)])
    assert fitted.threads_factor == 0 and fitted.factors == pytest.approx(by_rates, rel=0.1)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_kernels_that_never_or_always_take_turns_are_fitted_exactly(share: float) -> None:
    pairs = timed(2, Factors(least=share), 20, noise=0.0)
    assert held_out_errors([pairs]).shares < 0.03
    assert error(pairs, fit_sharing([pairs])) < 0.01


def test_few_pairs_are_not_fitted() -> None:
    few = timed(0, TRUE, LEAST_PAIRS - 1, noise=0.0)
    assert fit_sharing([few]) == fit_sharing([]) == UNCALIBRATED
    with pytest.raises(
        ValueError, match=rf"^errors need at least {LEAST_PAIRS} pairs of each accelerator that was timed, got \[7\]$"
    ):
        held_out_errors([few])


def test_pairs_and_shares_survive_a_file() -> None:
    pairs, fitted = timed(1, TRUE, 9, noise=0.1), Contention().with_factors(SHARED)
    assert Pairs.from_dict(json.loads(json.dumps(pairs.to_dict(), allow_nan=False))) == pairs
    assert Contention(**json.loads(json.dumps(fitted.to_dict()))) == fitted
