from __future__ import annotations

import pytest
import torch

from gst.method.draws import choose_fresh, choose_kept, dropout_weights

DRAWS = 1500


@pytest.mark.parametrize("fixed_number", [False, True])
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize(("num_segments", "num_fresh"), [(1, 1), (2, 1), (5, 2), (9, 1), (7, 7)])
def test_the_expected_weight_of_every_segment_is_one(
    num_segments: int, num_fresh: int, keep: float, fixed_number: bool
) -> None:
    """Known and unknown ones, 4 standard errors: with the seeds given, 1 in 16,000 would miss by chance."""
    generator = torch.Generator().manual_seed(num_segments * 100 + num_fresh)
    known = torch.rand(num_segments, 3, generator=generator) < 0.5
    known[:, 0], known[:, 1] = True, False
    inclusion = torch.full((num_segments,), num_fresh / num_segments)

    def draw() -> torch.Tensor:
        fresh = choose_fresh(num_segments, num_fresh, generator)
        kept = choose_kept(fresh, keep, generator, fixed_number)
        return sum(dropout_weights(fresh, inclusion, known, kept, keep))  # type: ignore[return-value]

    weights = torch.stack([draw() for _ in range(DRAWS)]).double()
    error = weights.std(0) / DRAWS**0.5
    assert ((weights.mean(0) - 1).abs() <= 4 * error + 1e-6).all()


def test_unknown_segments_count_only_while_they_are_fresh() -> None:
    fresh, known = torch.tensor([True, False, False]), torch.tensor([[False], [False], [True]])
    for seed in range(20):
        kept = choose_kept(fresh, 0.5, torch.Generator().manual_seed(seed))
        weights = sum(dropout_weights(fresh, torch.full((3,), 1 / 3), known, kept, 0.5))
        assert weights[0].item() == pytest.approx(3) and weights[1].item() == 0 and weights[2].item() in (0, 1)


def test_known_fresh_segments_weigh_eta() -> None:
    fresh = torch.tensor([True, True, False, False, False])
    known, kept = torch.ones(5, 2, dtype=torch.bool), torch.zeros(5, dtype=torch.bool)
    weights = dropout_weights(fresh, torch.full((5,), 0.4), known, kept, 0.25).fresh
    assert weights[:2].flatten().tolist() == [0.25 + 0.75 * 5 / 2] * 4


def test_a_stale_segment_is_kept_or_dropped_under_all_configurations_alike() -> None:
    fresh = torch.arange(50) < 1
    kept = choose_kept(fresh, 0.5, torch.Generator())
    weights = dropout_weights(fresh, torch.full((50,), 0.02), torch.ones(50, 4, dtype=torch.bool), kept, 0.5).stale
    assert (weights == weights[:, :1]).all() and 0 < weights[1:, 0].mean() < 1


@pytest.mark.parametrize(("keep", "numbers"), [(0.0, {0}), (0.3, {2, 3}), (0.5, {4}), (1.0, {8})])
def test_a_fixed_number_of_stale_segments_is_kept(keep: float, numbers: set[int]) -> None:
    fresh = torch.arange(10) % 5 == 0
    kept = [choose_kept(fresh, keep, torch.Generator().manual_seed(seed), fixed_number=True) for seed in range(50)]
    assert {int(each.sum()) for each in kept} == numbers and not any((each & fresh).any() for each in kept)
