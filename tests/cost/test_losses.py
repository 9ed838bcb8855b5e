from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import slow_list_mle, slow_log_runtime, slow_pairwise_hinge
from torch import Tensor

from gst.cost.losses import LOSSES

TWINS = {"pairwise_hinge": slow_pairwise_hinge, "list_mle": slow_list_mle, "log_runtime": slow_log_runtime}


def lists(
    num_graphs: int, num_configs: int, padding: float, seed: int, distinct: bool = False
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(num_graphs, num_configs, dtype=torch.float64, generator=generator)
    targets = 1 + torch.rand(scores.shape, generator=generator).argsort(1).double()
    if not distinct:
        targets = (targets / 2).ceil()
    absent = torch.rand(scores.shape, generator=generator) < padding
    return scores, targets.masked_fill(absent, math.nan)


@pytest.mark.parametrize("name", TWINS)
@given(
    graphs=st.integers(1, 3),
    configs=st.integers(1, 6),
    padding=st.sampled_from([0, 0.3, 1]),
    seed=st.integers(0, 999),
)
def test_losses_are_their_slow_twins(name: str, graphs: int, configs: int, padding: float, seed: int) -> None:
    scores, targets = lists(graphs, configs, padding, seed)
    torch.testing.assert_close(LOSSES[name](scores, targets), TWINS[name](scores, targets))


@pytest.mark.parametrize("name", TWINS)
def test_padding_changes_nothing_whatever_its_score(name: str) -> None:
    scores, targets = lists(2, 5, 0, 0)
    for garbage in (0.0, 1e30, math.nan):
        wide = torch.cat([scores, torch.full((2, 3), garbage, dtype=torch.float64)], 1).requires_grad_()
        loss = LOSSES[name](wide, torch.cat([targets, torch.full((2, 3), math.nan, dtype=torch.float64)], 1))
        torch.testing.assert_close(loss.detach(), LOSSES[name](scores, targets))
        loss.backward()
        assert (wide.grad[:, 5:] == 0).all() and wide.grad[:, :5].isfinite().all()


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("padding", [0.0, 0.4])
def test_gradients_are_right(name: str, padding: float) -> None:
    scores, targets = lists(2, 6, padding, 1)
    assert torch.autograd.gradcheck(lambda scores: LOSSES[name](scores, targets), scores.requires_grad_())


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e6])
@pytest.mark.parametrize("padding", [0.0, 0.4, 1.0])
def test_large_scores_give_finite_losses_and_gradients(name: str, scale: float, padding: float) -> None:
    scores, targets = lists(3, 8, padding, 2)
    large = (scores.float() * scale).requires_grad_()
    loss = LOSSES[name](large, targets)
    loss.backward()
    assert loss.isfinite() and large.grad.isfinite().all()


@pytest.mark.parametrize("name", ["pairwise_hinge", "list_mle"])
def test_the_true_order_costs_least(name: str) -> None:
    _, targets = lists(2, 6, 0.3, 3, distinct=True)
    right = LOSSES[name](30 * targets.nan_to_num(), targets)
    assert right < 1e-6 < LOSSES[name](-30 * targets.nan_to_num(), targets)


def test_a_hinge_by_hand() -> None:
    scores, targets = torch.tensor([[0.0, 0.5, 3.0]]), torch.tensor([[1.0, 2.0, 2.0]])
    assert LOSSES["pairwise_hinge"](scores, targets).item() == 0.25  # (1 - 0.5, 0) over two pairs


def test_a_plackett_luce_likelihood_by_hand() -> None:
    scores, targets = torch.zeros(1, 3), torch.tensor([[3.0, 1.0, 2.0]])
    assert LOSSES["list_mle"](scores, targets).item() == pytest.approx(math.log(6) / 3)


def test_logarithms_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="positive targets"):
        LOSSES["log_runtime"](torch.zeros(1, 1), torch.zeros(1, 1))
