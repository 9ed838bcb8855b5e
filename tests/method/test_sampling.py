from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch

from gst.method.draws import choose_fresh, generator_for


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
