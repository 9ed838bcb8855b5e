"""A block that draws from a seed leaves every generator of the process where it stood."""

from __future__ import annotations

import pytest
import torch

from gst.util.random_numbers import seeded


def test_numbers_are_those_of_manual_seed() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        want = torch.randn(5)
    with seeded(3):
        assert torch.equal(torch.randn(5), want)


def test_generators_go_on_after_an_error_too() -> None:
    before = torch.get_rng_state()
    with pytest.raises(KeyError), seeded(0):
        torch.rand(3)
        raise KeyError
    assert torch.equal(torch.get_rng_state(), before)


def test_accelerators_are_not_seeded_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", told.append)
    with seeded(1):
        torch.rand(1)
    assert not told
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)  # which is what would have told them
    assert told == [1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: only the host draws")
def test_an_accelerator_draws_from_the_seed_and_goes_on() -> None:
    device = torch.device("cuda", 0)
    before = torch.cuda.get_rng_state(device)
    with seeded(2, [device]):
        first = torch.rand(4, device=device)
    with seeded(2, [device]):
        assert torch.equal(torch.rand(4, device=device), first)
    assert torch.equal(torch.cuda.get_rng_state(device), before)
