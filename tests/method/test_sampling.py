from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gst.method.draws import (
    _UNIT,
    _lengths,
    _systematic,
    choose_fresh,
    generator_for,
    inclusion_probabilities,
    sample_by_probability,
)


@pytest.mark.parametrize(("num_segments", "num_fresh", "marked"), [(1, 1, 1), (5, 2, 2), (5, 5, 5), (3, 8, 3)])
def test_as_many_are_fresh_as_asked_for_or_there_are(num_segments: int, num_fresh: int, marked: int) -> None:
    fresh = choose_fresh(num_segments, num_fresh, torch.Generator())
    assert fresh.shape == (num_segments,) and int(fresh.sum()) == marked


def test_every_choice_of_segments_is_equally_likely() -> None:
    generator, draws = torch.Generator().manual_seed(0), 6000
    counts = Counter(tuple(choose_fresh(4, 2, generator).nonzero().flatten().tolist()) for _ in range(draws))
    assert set(counts) == set(itertools.combinations(range(4), 2))
    chi_squared = sum((count - draws / 6) ** 2 / (draws / 6) for count in counts.values())
    assert chi_squared < 20.5  # five degrees of freedom, one in a thousand


def test_generators_depend_on_all_their_numbers_and_on_nothing_else() -> None:
    draw = lambda *numbers: torch.rand(4, generator=generator_for(*numbers)).tolist()  # noqa: E731
    tuples = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, -1), (0, 0, 0), (2**62,)]
    assert len({tuple(draw(*numbers)) for numbers in tuples}) == len(tuples)
    torch.manual_seed(1)
    assert draw(3, 4) == draw(3, 4)


# Probabilities -------------------------------------------------------------------------------------

SCORE = st.sampled_from([0.0, 1e-200, 1e-3, 0.5, 1.0, 7.0, 1e6]) | st.floats(1e-9, 1e9)
SCORES = st.lists(SCORE, min_size=1, max_size=12)
ANY_SCORES = st.lists(st.floats(0, allow_infinity=False), min_size=1, max_size=12)  # some vanish beside others


def slow_proportional(scores: list[float], num_chosen: int) -> list[float]:
    """Scale to the sum; whatever exceeds 1 is certain; scale the rest to what is left; and so on."""
    probabilities: dict[int, float] = {}
    left = set(range(len(scores)))
    while left:
        total = sum(scores[i] for i in left)
        share = {i: (num_chosen - len(probabilities)) * (scores[i] / total if total else 1 / len(left)) for i in left}
        exceeding = {i for i in left if share[i] > 1}
        if not exceeding:
            return [probabilities.get(i, share.get(i, 0.0)) for i in range(len(scores))]
        probabilities |= dict.fromkeys(exceeding, 1.0)
        left -= exceeding
    return [1.0] * len(scores)


@given(SCORES, st.integers(1, 12), st.sampled_from([0.0, 0.1, 1.0]))
def test_probabilities_equal_the_slow_twin(scores: list[float], num_chosen: int, uniform_share: float) -> None:
    chosen, size = min(num_chosen, len(scores)), len(scores)
    probabilities = inclusion_probabilities(torch.tensor(scores, dtype=torch.float64), num_chosen, uniform_share)
    proportional = slow_proportional(scores, chosen) if chosen < size else [1.0] * size
    expected = [uniform_share * chosen / size + (1 - uniform_share) * each for each in proportional]
    assert probabilities.tolist() == pytest.approx(expected, abs=1e-9)
    assert float(probabilities.sum()) == pytest.approx(chosen, abs=1e-9)
    assert (
        float(probabilities.min()) >= uniform_share * chosen / size - 1e-12 and float(probabilities.max()) <= 1 + 1e-12
    )


def test_probabilities_by_hand() -> None:
    scores = torch.tensor([10.0, 2.0, 1.0, 1.0])
    assert inclusion_probabilities(scores, 1, 0.0).tolist() == pytest.approx([10 / 14, 2 / 14, 1 / 14, 1 / 14])
    assert inclusion_probabilities(scores, 2, 0.0).tolist() == pytest.approx([1, 1 / 2, 1 / 4, 1 / 4])
    assert inclusion_probabilities(scores, 2).tolist() == pytest.approx([0.95, 0.5, 0.275, 0.275])
    assert inclusion_probabilities(torch.zeros(4), 3).tolist() == pytest.approx([0.75] * 4)
    assert inclusion_probabilities(scores, 9).tolist() == [1] * 4


@pytest.mark.parametrize(
    ("scores", "num_chosen", "share", "message"),
    [
        ([1.0], 0, 0.1, "num_chosen is 0; wanted at least 1"),
        ([1.0], 1, 1.5, r"uniform_share is 1\.5; wanted 0\.\.1"),
        ([-1.0, 1.0], 1, 0.1, "scores are negative or not finite"),
        ([math.nan, 1.0], 1, 0.1, "scores are negative or not finite"),
        ([math.inf, 1.0], 1, 0.1, "scores are negative or not finite"),
    ],
)
def test_impossible_probabilities_are_refused(scores: list[float], num_chosen: int, share: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inclusion_probabilities(torch.tensor(scores), num_chosen, share)


# Sampling ------------------------------------------------------------------------------------------


def every_sample(probabilities: Tensor) -> list[tuple[float, Tensor]]:
    """Each outcome of `sample_by_probability` with its probability: all orders, and all starts, of which those between
    two ends of intervals give the same."""
    outcomes, lengths = [], _lengths(probabilities)
    orders = [list(order) for order in itertools.permutations(range(len(probabilities)))]
    for order in orders:
        breaks = sorted({0, _UNIT, *(lengths[order].cumsum(0) % _UNIT).tolist()})
        for low, high in itertools.pairwise(breaks):
            chosen = torch.empty(len(order), dtype=torch.bool)
            chosen[order] = _systematic(lengths[order], low)
            assert torch.equal(chosen[order], _systematic(lengths[order], high - 1))
            outcomes.append(((high - low) / _UNIT / len(orders), chosen))
    return outcomes


@pytest.mark.parametrize(
    ("scores", "num_chosen"),
    [([1, 1, 1], 1), ([1, 2, 3, 4], 2), ([100, 3, 2, 1, 1], 3), ([5, 0, 0, 1], 2), ([1, 1, 1, 1, 4], 4), ([1], 1)],
)
def test_each_key_is_chosen_with_exactly_its_probability(scores: list[float], num_chosen: int) -> None:
    probabilities = inclusion_probabilities(torch.tensor(scores, dtype=torch.float64), num_chosen)
    outcomes = every_sample(probabilities)
    assert all(int(chosen.sum()) == num_chosen for _, chosen in outcomes)
    marginals = sum(weight * chosen.double() for weight, chosen in outcomes)
    assert marginals.tolist() == pytest.approx(probabilities.tolist(), abs=1e-11)
    now, old = torch.randn(2, len(scores), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    estimate = sum(w * float(old.sum() + ((now - old) / probabilities)[chosen].sum()) for w, chosen in outcomes)
    assert estimate == pytest.approx(float(now.sum()))


@given(SCORES | ANY_SCORES, st.integers(1, 12), st.integers(0, 2**16), st.sampled_from([torch.float64, torch.float32]))
def test_always_as_many_are_chosen(scores: list[float], num_chosen: int, seed: int, dtype: torch.dtype) -> None:
    probabilities = inclusion_probabilities(torch.tensor(scores, dtype=torch.float64), num_chosen).to(dtype)
    draws = [sample_by_probability(probabilities, torch.Generator().manual_seed(seed)) for _ in range(2)]
    assert int(draws[0].sum()) == min(num_chosen, len(scores)) and torch.equal(*draws)


def test_frequencies_are_probabilities() -> None:
    probabilities = inclusion_probabilities(torch.arange(1.0, 41.0) ** 2, 13)
    generator, draws = torch.Generator().manual_seed(0), 4000
    counts = torch.stack([sample_by_probability(probabilities, generator) for _ in range(draws)]).sum(0)
    deviation = (probabilities * (1 - probabilities) / draws).sqrt()
    assert ((counts / draws - probabilities).abs() <= 4.5 * deviation + 1e-9).all()


@pytest.mark.parametrize(
    ("probabilities", "message"),
    [
        ([0.5, 0.7], r"sum to 1\.19.*; wanted a whole number"),
        ([1.5, 0.5], r"wanted 0\.\.1"),
        ([-0.5, 0.5], r"wanted 0\.\.1"),
    ],
)
def test_impossible_samples_are_refused(probabilities: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample_by_probability(torch.tensor(probabilities), torch.Generator())
