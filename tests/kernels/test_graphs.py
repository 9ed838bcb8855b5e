"""Forward and backward graphs of `torch.compile` on streams: the numbers of Inductor's own code, whatever is kept."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._inductor.compile_fx import compile_fx

from gst.kernels.graphs import GraphOnStreams, inner_compile
from gst.kernels.program import KernelProgram
from gst.kernels.run import Run
from gst.kernels.schedule import list_schedule
from gst.kernels.streams import OnStreams, lowered
from gst.util.compiled import compiler
from tests.choices import with_rest
from tests.kernels.made import on_threads

pytestmark = [
    pytest.mark.slow, pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
]  # fmt: skip
Batches = Sequence[tuple[Tensor, Tensor]]


def on_four_streams(program: KernelProgram, given: Sequence[Tensor]) -> OnStreams:
    """Kernels that take times by chance, so on any of four streams."""
    times_us = np.random.default_rng(0).uniform(1, 100, program.num_kernels)
    run = Run(program, lowered(program, list_schedule(program, times_us, 4)), given)
    return OnStreams(run, partial(on_threads, run))


class Compiled:
    """A model whose graphs run on streams, beside one that Inductor compiled alone; both begin alike."""

    def __init__(self, model: nn.Module) -> None:
        self.graphs: list[GraphOnStreams] = []
        made = inner_compile(on_four_streams, lambda run: partial(on_threads, run))

        def inner(*args: Any, **kwargs: Any) -> Any:
            compiled = made(*args, **kwargs)
            self.graphs.append(compiled.current_callable)
            return compiled

        def backend(graph: Any, inputs: Any, **options: Any) -> Any:
            with torch._functorch.config.patch(donated_buffer=False, enable_autograd_cache=False):
                return compile_fx(graph, inputs, **options)

        self.model, self.other = model, copy.deepcopy(model)
        self.fast = torch.compile(self.model, backend=partial(backend, inner_compile=inner))
        self.slow = torch.compile(self.other, backend=backend)

    def both(self, train: Callable[[Callable[..., Any], nn.Module], Any]) -> None:
        """Train both in the same way; what it returns and all parameters, buffers and gradients have to be equal."""
        results = []
        for function, model in ((self.fast, self.model), (self.slow, self.other)):
            torch.manual_seed(0)
            results.append((train(function, model), dict(model.state_dict()), [p.grad for p in model.parameters()]))
        torch.testing.assert_close(*results, rtol=0, atol=0)

    @property
    def replayed(self) -> list[int]:
        assert not any(graph.reason for graph in self.graphs), [graph.reason for graph in self.graphs]
        return [graph.num_replayed for graph in self.graphs]


def perceptron() -> nn.Module:
    """A model of which each forward pass writes to its inputs: the running statistics."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))


def batches(count: int = 10) -> Batches:
    rng = torch.Generator().manual_seed(2)
    return [(torch.randn(5, 6, generator=rng), torch.randn(5, 3, generator=rng)) for _ in range(count)]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    yield
    torch.set_num_threads(before)


def test_training_on_streams_gives_the_numbers_and_statistics_of_inductor_and_losses_that_are_kept_stay() -> None:
    compiled = Compiled(perceptron())

    def train(function: Callable[..., Any], model: nn.Module) -> Any:
        optimizer, kept = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), []
        for x, y in batches():
            optimizer.zero_grad()
            output = function(x)
            loss = (output - y).square().mean()
            loss.backward()
            optimizer.step()
            kept += [output, loss]
        return kept

    compiled.both(train)
    assert min(compiled.replayed) >= 1


CASES = ["accumulated", "two passes", "backward twice", "moved", "input gradients"]


@pytest.mark.parametrize("case", with_rest(CASES, ["accumulated", "moved"]))
def test_what_is_still_in_use_is_not_overwritten(case: str) -> None:
    compiled = Compiled(perceptron())

    def train(function: Callable[..., Any], model: nn.Module) -> Any:
        kept: list[Any] = []
        for number, (x, y) in enumerate(batches(16)):
            if case != "accumulated" or number % 3 == 0:
                model.zero_grad()
            if case == "moved" and number in (7, 9, 10):
                for each in model.parameters():
                    each.data = each.data * 0.5
            x = x.requires_grad_(case == "input gradients")
            output = function(x)
            loss = (output - y).square().mean()
            if case == "two passes":
                loss = loss + function(2 * x).square().mean() + function(x + 1).sum()
            loss.backward(retain_graph=case == "backward twice")
            if case == "backward twice":
                kept.append([each.grad.clone() for each in model.parameters()])
                loss.backward()
            kept += [loss, x.grad, next(model.parameters()).grad.clone()]
        return kept

    compiled.both(train)
    assert max(compiled.replayed) > 0
