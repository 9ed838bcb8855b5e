"""Activation checkpoints in graphs of Dynamo: the pass that is computed again draws what the first one drew."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from gst.placement.api.trials import outcome, with_checkpoints
from gst.util.compiled import compiler

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")

X = torch.linspace(0, 1, 3)


def products_are_saved(_: object, operator: object, *args: object, **keywords: object) -> CheckpointPolicy:
    is_product = operator is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


class Blocks(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.second = kind, nn.Linear(4, 8), nn.Linear(8, 4)

    def inner(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.second(torch.dropout(torch.sin(scale * self.first(x)), 0.5, True))

    def outer(self, x: Tensor) -> Tensor:
        return x + checkpoint(self.inner, torch.dropout(x, 0.5, True), use_reentrant=False)

    def forward(self, x: Tensor) -> Tensor:
        selective = functools.partial(create_selective_checkpoint_contexts, products_are_saved)
        calls: dict[str, Callable[[Tensor], Tensor]] = {
            "plain": lambda x: checkpoint(self.inner, x, use_reentrant=False),
            "reentrant": lambda x: checkpoint(self.inner, x, use_reentrant=True),
            "keywords": lambda x: checkpoint(self.inner, x, use_reentrant=False, scale=0.7),
            "nested": lambda x: checkpoint(self.outer, x, use_reentrant=False),
            "selective": lambda x: checkpoint(self.inner, x, use_reentrant=False, context_fn=selective),
        }
        for _ in range(2):
            x = x + calls[self.kind](x)
        return x


def passes(kind: str, backend: Any) -> list[Tensor]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Blocks(kind).double(), torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    run = model if backend is None else torch.compile(model, backend=backend)
    results = []
    for seed in range(2):
        torch.manual_seed(seed)
        y = run(x)
        results += [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *model.parameters()])] if (
            kind != "reentrant"
        ) else backward(y, [x, *model.parameters()])  # fmt: skip
        results.append(torch.get_rng_state())
    return results


def backward(y: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    for each in leaves:
        each.grad = None
    y.square().sum().backward()
    return [y.detach(), *(each.grad.clone() for each in leaves if each.grad is not None)]


@pytest.mark.parametrize("kind", ["plain", "reentrant", "keywords", "nested", "selective"])
def test_a_graph_as_written_has_the_gradients_of_the_model(kind: str) -> None:
    changed: list[bool] = []

    def as_written(graph: fx.GraphModule, _: object) -> fx.GraphModule:
        written = with_checkpoints(graph)
        changed.append(written is not graph)
        return written

    torch.testing.assert_close(passes(kind, as_written), passes(kind, None), rtol=0, atol=1e-12)
    assert changed == [True]


def test_a_graph_without_checkpoints_stays_as_it_is() -> None:
    graph = fx.symbolic_trace(nn.Sequential(nn.ReLU()))
    assert with_checkpoints(graph) is graph


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("kind", ["plain", "reentrant", "nested"])
@pytest.mark.usefixtures("compiled_wins")
def test_compiled_checkpoints_have_the_gradients_of_the_model(kind: str) -> None:
    torch.testing.assert_close(passes(kind, "gst"), passes(kind, None), rtol=0, atol=1e-12)


@pytest.mark.slow
@needs_compiler
def test_training_of_dynamic_shape_runs_compiled(compiled_wins: list[Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    fast = torch.compile(model, backend="gst", dynamic=True)
    for rows in (5, 3, 7):
        x = torch.randn(rows, 4)
        for retain in (True, False):
            gradients = [
                torch.autograd.grad(run(x).square().mean(), list(model.parameters()), retain_graph=retain)
                for run in (fast, model)
            ]
            torch.testing.assert_close(*gradients)
    assert len(compiled_wins) == 1


def test_a_lost_old_value_shows_in_a_later_call() -> None:
    """The first call of a step in place leaves its state as it was, so that a copy which was dropped is not missed."""

    def step(now: Tensor, old: Tensor, drops: bool) -> tuple[Tensor]:
        kept = now if drops else now.clone()
        now.sub_(0.5 * old)
        old.copy_(kept)
        return (now.sum(),)

    want, got = (outcome(functools.partial(step, drops=drops), [X, torch.zeros(3)], 0) for drops in (False, True))
    assert want.difference(want) is None and torch.equal(want.values[1], got.values[1])
    assert str(got.difference(want)).startswith("output 5 is off by")
