"""What is expected of old rows, and how keys are chosen by it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from embedding_cache import EmbeddingTable, inclusion_probabilities, sample_by_probability
from embedding_cache.refresh import _UNIT, _lengths, _systematic


def tracking(num_keys: int, channels: int = 1, **options: object) -> EmbeddingTable:
    return EmbeddingTable(num_keys, channels, track_drift=True, **options)


def push(table: EmbeddingTable, keys: list[int], values: list[float], step: int) -> None:
    table.push(torch.tensor(keys), torch.tensor(values)[:, None], step)


# Drift ---------------------------------------------------------------------------------------------


def test_drift_by_hand() -> None:
    table, all_keys = tracking(4), torch.arange(4)
    assert table.expected_drift(all_keys).tolist() == [1, 1, 1, 1]
    push(table, [0, 1], [3.0, 4.0], 0)
    whole = math.sqrt(12.5)  # the mean of 9 and 16; nothing was rewritten yet
    assert table.expected_drift(all_keys, 8).tolist() == pytest.approx([whole] * 4)
    assert table.expected_drift(all_keys, 0).tolist() == pytest.approx([0, 0, whole, whole])
    push(table, [0], [5.0], 4)  # 2 in 4 steps
    whole = math.sqrt(0.9 * 12.5 + 0.1 * 25)
    expected = table.expected_drift(all_keys, 8)
    assert expected.tolist() == pytest.approx([2, math.sqrt(8), whole, whole])  # beyond 4 steps a random walk
    push(table, [1], [8.0], 8)  # 4 in 8 steps
    curve = {4: 4.0, 8: 16.0}
    assert table.expected_drift(all_keys, 8)[0].item() == pytest.approx(math.sqrt(curve[4]))
    assert table.expected_drift(all_keys, 12)[0].item() == pytest.approx(math.sqrt(curve[8]))
    between = 4 + (16 - 4) * math.log2(6 / 4)
    assert table.expected_drift(all_keys, 10)[0].item() == pytest.approx(math.sqrt(between))
    assert table.expected_drift(all_keys, 9)[1].item() == pytest.approx(math.sqrt(4 / 4))


def test_each_key_has_its_own_speed() -> None:
    speeds = torch.tensor([1.0, 2.0, 0.0, 5.0])
    table = tracking(4)
    for step in range(0, 200, 4):
        table.push(torch.arange(4), (speeds * step)[:, None], step)
    assert table.expected_drift(torch.arange(4), 196 + 4).tolist() == pytest.approx(
        (4 * speeds).tolist(), rel=1e-3, abs=1e-6
    )


@pytest.mark.parametrize("ages", [[1], [3], [1, 2, 5, 11, 30]])
def test_a_random_walk_is_foretold(ages: list[int]) -> None:
    generator, speeds, step = torch.Generator().manual_seed(0), torch.tensor([0.5, 1.0, 4.0]).repeat(20), 0
    table, rows = tracking(60, 64), torch.zeros(60, 64)
    for age in ages * 60:
        step += age
        rows = rows + speeds[:, None] * math.sqrt(age) * torch.randn(rows.shape, generator=generator)
        table.push(torch.arange(60), rows, step)
    for age in ages:
        expected = table.expected_drift(torch.arange(60), step + age)
        assert torch.allclose(expected, speeds * math.sqrt(64 * age), rtol=0.35)


def test_a_key_that_comes_back_or_takes_a_place_starts_anew() -> None:
    table = tracking(4, capacity=2)
    for step in range(20):
        push(table, [0, 1], [10.0 * step, 0.1 * step], step)
    fast, slow = table.expected_drift(torch.tensor([0, 1]), 20).tolist()
    assert fast > 50 * slow
    push(table, [2, 3], [0.0, 0.0], 20)
    push(table, [1, 0], [0.0, 0.0], 21)
    assert len(set(table.expected_drift(torch.tensor([0, 1]), 24).tolist())) == 1


def test_evicted_and_rewritten_in_one_push_a_key_keeps_its_speed() -> None:
    table, twin = tracking(4, capacity=2), tracking(4)
    for step in range(10):
        for each in (table, twin):
            push(each, [0, 1], [10.0 * step, 0.1 * step], step)
    for each in (table, twin):
        push(each, [3, 0], [0.0, 100.0], 10)  # 3 takes the place of 0, and 0 that of 1
    assert table.is_known(torch.arange(4)).tolist() == [True, False, False, True]
    keys = torch.tensor([0, 3])
    assert torch.equal(table.expected_drift(keys, 13), twin.expected_drift(keys, 13))


def test_rows_that_are_not_numbers_are_forgotten() -> None:
    table = tracking(2)
    for step, value in enumerate([1.0, math.nan, 2.0, 3.0, 4.0]):
        push(table, [0, 1], [value, value], step)
    assert table.expected_drift(torch.tensor([0, 1]), 5).tolist() == pytest.approx([1, 1])


def test_pushed_in_the_background_as_in_the_foreground() -> None:
    tables = [tracking(20, 8, dtype=torch.bfloat16) for _ in range(2)]
    generator = torch.Generator().manual_seed(0)
    for step in range(30):
        keys, rows = torch.randperm(20, generator=generator)[:7], torch.randn(7, 8, generator=generator)
        tables[0].push(keys, rows, step)
        tables[1].write_back(keys, rows, step)
    assert torch.equal(*(table.expected_drift(torch.arange(20), 33) for table in tables))


def test_drift_is_told_only_where_it_is_tracked() -> None:
    with pytest.raises(ValueError, match="make the table with track_drift=True"):
        EmbeddingTable(2, 1).expected_drift(torch.tensor([0]))
    with pytest.raises(ValueError, match=r"keys are 2\.\.2"):
        tracking(2).expected_drift(torch.tensor([2]))


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


# Together ------------------------------------------------------------------------------------------


def spread(criterion: str) -> float:
    """The mean variance of the estimated sum of 200 rows that walk at random, few of them fast, 20 computed a step."""
    generator, table, keys = torch.Generator().manual_seed(0), tracking(200, 8), torch.arange(200)
    speeds, rows, variances = 0.05 * 100 ** torch.rand(200, generator=generator), torch.zeros(200, 8), []
    table.push(keys, rows, 0)
    for step in range(1, 300):
        rows = rows + speeds[:, None] * torch.randn(200, 8, generator=generator)
        kept, ages, _ = table.pull(keys, step)
        scores = {"uniform": torch.ones(200), "age": ages.sqrt(), "drift": table.expected_drift(keys, step)}[criterion]
        probabilities = inclusion_probabilities(scores, 20)
        variances.append(float(((1 - probabilities) / probabilities * (rows - kept).square().sum(1)).sum()))
        chosen = sample_by_probability(probabilities, generator)
        table.push(keys[chosen], rows[chosen], step)
    return sum(variances[100:]) / len(variances[100:])


def test_chosen_by_drift_an_estimate_varies_less_than_by_age_or_without_criterion() -> None:
    uniform, age, drift = (spread(criterion) for criterion in ("uniform", "age", "drift"))
    assert drift < 0.6 * age and drift < 0.6 * uniform
