from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import slow_list_mle, slow_log_runtime, slow_pairwise_hinge
from torch import Tensor

from gst.cost.losses import LOSSES, cross_entropy

TWINS = {"pairwise_hinge": slow_pairwise_hinge, "list_mle": slow_list_mle, "log_runtime": slow_log_runtime}
RANKING = ["pairwise_hinge", "list_mle"]


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
    graphs=st.integers(1, 3), configs=st.integers(1, 6), padding=st.sampled_from([0, 0.3, 1]), seed=st.integers(0, 999)
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


@pytest.mark.parametrize("name", RANKING)
def test_equal_targets_do_not_contribute(name: str) -> None:
    """Their scores pull at nothing, and the order in which they stand does not matter."""
    scores = torch.randn(1, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = LOSSES[name](scores, torch.full((1, 5), 7.0, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(loss, scores)
    assert loss == 0 and (gradient == 0).all()
    scores, targets = lists(2, 8, 0.2, 4)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    assert any(row[~row.isnan()].unique().numel() < (~row.isnan()).sum() for row in targets)
    torch.testing.assert_close(LOSSES[name](scores[:, order], targets[:, order]), LOSSES[name](scores, targets))


@pytest.mark.parametrize("name", RANKING)
@pytest.mark.parametrize("spread", [1.0, 1e4])
def test_a_thousand_configurations_in_float32_are_as_good_as_in_float64(name: str, spread: float) -> None:
    """The gradient, entry by entry, relative to the largest one."""
    scores, targets = lists(1, 1000, 0, 5)
    scores, outcomes = (spread * scores).float().double(), []
    for dtype in (torch.float32, torch.float64):
        given = scores.to(dtype).requires_grad_()
        loss = LOSSES[name](given, targets)
        loss.backward()
        outcomes.append((loss.double(), given.grad.double()))
    (loss, gradient), (truth, exact) = outcomes
    torch.testing.assert_close(loss, truth, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient, exact, rtol=1e-4, atol=1e-5 * exact.abs().max().item())


def test_list_mle_of_far_apart_scores_by_hand() -> None:
    """The slower one scored 10,000 lower: the mean over both of the distance and of 0; the gradient is flat."""
    scores = torch.tensor([[0.0, -1e4]], requires_grad=True)
    loss = LOSSES["list_mle"](scores, torch.tensor([[1.0, 2.0]]))
    loss.backward()
    assert loss.item() == 5000 and scores.grad.tolist() == [[0.5, -0.5]]


@pytest.mark.parametrize("name", RANKING)
def test_the_true_order_costs_least(name: str) -> None:
    _, targets = lists(2, 6, 0.3, 3, distinct=True)
    right = LOSSES[name](30 * targets.nan_to_num(), targets)
    assert right < 1e-6 < LOSSES[name](-30 * targets.nan_to_num(), targets)


@pytest.mark.parametrize(
    ("name", "scores", "targets", "wanted"),
    [
        ("pairwise_hinge", [0.0, 0.5, 3.0], [1.0, 2.0, 2.0], 0.25),  # (1 - 0.5, 0) over two pairs
        ("list_mle", [0.0, 0.0, 0.0], [3.0, 1.0, 2.0], math.log(6) / 3),
    ],
)
def test_losses_by_hand(name: str, scores: list[float], targets: list[float], wanted: float) -> None:
    assert LOSSES[name](torch.tensor([scores]), torch.tensor([targets])).item() == pytest.approx(wanted)


def test_logarithms_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="positive targets"):
        LOSSES["log_runtime"](torch.zeros(1, 1), torch.zeros(1, 1))


def selected(name: str, scores: Tensor, targets: Tensor) -> Tensor:
    """The loss of what is no padding alone, which a mask as an index selects."""
    present = ~targets.isnan()
    if name == "cross_entropy":
        return torch.nn.functional.cross_entropy(scores[present], targets[present].long())
    wanted = targets[present].log() if name == "log_runtime" else targets[present]
    return (scores[present] - wanted.to(scores.dtype)).square().sum() / present.sum().clamp(min=1)


@pytest.mark.parametrize("garbage", [0.0, 1e30, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name", ["squared_error", "log_runtime", "cross_entropy"])
def test_scores_of_padding_are_as_if_left_out(name: str, garbage: float) -> None:
    """Their values and gradients, whatever they are."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 5, *([4] if name == "cross_entropy" else []), generator=generator)
    targets = torch.randint(1, 4, (3, 5), generator=generator).double()
    targets[0, 2:] = targets[2] = math.nan
    scores[targets.isnan()] = garbage
    outcomes = []
    for loss in (LOSSES[name], partial(selected, name)):
        given = scores.clone().requires_grad_()
        value = loss(given, targets)
        outcomes.append((value.detach(), *torch.autograd.grad(value, given)))
    for one, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(one, other)
        assert one.isfinite().all()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.5, 1.5], "targets are 0.5, 1.5; number them from 0 in the source, {0.5: 0, 1.5: 1}"),
        ([0.0, -100.0], "targets are -100, 0; number them"),
        ([0.0, 1.0, 2.0], "targets are 0, 1, 2; give the head 3 outputs"),
        ([float(2 * number) for number in range(20)], "18 and 10 more; number them .*, ...}, and give the head 20"),
        ([0.0, torch.inf], "targets are 0, inf"),
    ],
)
def test_targets_that_are_no_classes_are_named(labels: list[float], message: str) -> None:
    targets = torch.tensor([[*labels, torch.nan]])
    with pytest.raises(ValueError, match=message):
        cross_entropy(torch.zeros(1, len(labels) + 1, 2), targets)
