"""A graph that `torch.compile(backend="gst")` compiles has the backward passes of eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gst.util.compiled import compiler

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")]
X = torch.linspace(-1, 1, 24).reshape(6, 4).double()


class Waves(nn.Module):
    """Two heads, one of which no other output reads, batch normalisation and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.two = nn.Linear(4, 32), nn.Linear(32, 2), nn.Linear(32, 1)
        self.norm, self.drop = nn.BatchNorm1d(32), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.drop(torch.sin(self.norm(self.first(x))) * torch.sigmoid(x.sum(1, keepdim=True)))
        return self.one(hidden), self.two(hidden)


def retained(model: Callable[..., Any], x: Tensor) -> list[Any]:
    one, two = model(x)
    one.mean().backward(retain_graph=True)
    two.square().mean().backward()
    return []


def after_a_plain_one(model: Callable[..., Any], x: Tensor) -> list[Any]:
    model(x)[0].mean().backward()
    return retained(model, x)


def penalty(model: Callable[..., Any], x: Tensor) -> list[Any]:
    """As of WGAN-GP: the gradient with respect to the input is part of the loss."""
    x = x.clone().requires_grad_()
    one, _ = model(x)
    (slope,) = torch.autograd.grad(one.square().sum(), x, create_graph=True)
    (one.mean() + slope.square().sum()).backward()
    return [slope, x.grad]


def partial_gradients(model: Callable[..., Any], x: Tensor) -> list[Any]:
    _, two = model(x)
    two.sum().backward()  # no gradient of the other head
    return []


def of_some_inputs(model: Callable[..., Any], x: Tensor) -> list[Any]:
    x = x.clone().requires_grad_()
    one, two = model(x)
    both = torch.autograd.grad([two.sum(), one.sum()], [x], retain_graph=True)
    return [*both, *torch.autograd.grad(one.sum(), [x])]


def hooks(model: Callable[..., Any], x: Tensor) -> list[Any]:
    seen: list[Any] = []
    x = 2 * x.clone().requires_grad_()
    x.register_hook(lambda gradient: seen.append(gradient.clone()))
    one, _ = model(x)
    one.register_hook(lambda gradient: 3 * gradient)
    one.sum().backward()
    return seen


def third(model: Callable[..., Any], x: Tensor) -> list[Any]:
    x = x.clone().requires_grad_()
    value = model(x)[1].sum()
    results = []
    for _ in range(3):
        (slope,) = torch.autograd.grad(value, x, create_graph=True)
        results.append(slope)
        value = slope.square().sum()
    return results


@pytest.mark.parametrize("use", [retained, after_a_plain_one, penalty, partial_gradients, of_some_inputs, hooks, third])
def test_backward_passes_are_those_of_eager_pytorch(use: Callable[..., Any], compiled_wins: list[Any]) -> None:
    torch.manual_seed(0)
    mine = Waves().double()  # gradients of biases before a normalisation are rounding alone
    written = copy.deepcopy(mine)
    mine.compile(backend="gst")
    results = []
    for model in (written, mine):
        torch.manual_seed(1)
        results.append(use(model, X))
    want, got = results
    assert compiled_wins, "the graph was compiled"
    torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9)
    for first, second in zip(mine.parameters(), written.parameters(), strict=True):
        assert (first.grad is None) == (second.grad is None)
        if second.grad is not None:
            torch.testing.assert_close(first.grad, second.grad, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(mine.state_dict(), written.state_dict())
