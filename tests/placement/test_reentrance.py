"""Calls within calls: no call waits for another one of its own thread, or for a thread that a fork left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import gst
from gst.machine.devices import usable_cores
from gst.placement.api import backend as module
from gst.placement.api.backend import backend
from gst.placement.planning import Settings
from gst.util.compiled import compiler

ROOT = Path(__file__).parents[2]
UNCOMPILED = Settings(compile_step=False, patience_s=0.0)
needs_plans = pytest.mark.skipif(
    compiler() is None or len(usable_cores()) < 2, reason="plans need a C++ compiler and two cores"
)
X = torch.linspace(-1, 1, 12).reshape(3, 4)


def graph_of(function: Callable[..., Any]) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output((graph.call_function(function, (graph.placeholder("x"),)),))
    return fx.GraphModule(nn.Module(), graph)


@pytest.fixture
def learner(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A graph with gradients that the backend runs as compiled code, which needs no compiler here."""
    monkeypatch.setattr(module, "_by_inductor", lambda graph, inputs: lambda x: (torch.exp(x),))
    monkeypatch.setattr(module, "_fastest", lambda runs, *_: runs["compiled"])
    run: Callable[..., Any] = backend(graph_of(torch.exp), [X.clone().requires_grad_()], options={"seconds": 0.1})
    return run


def test_a_graph_that_is_called_while_it_chooses_runs_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    inner: list[Tensor] = []
    entered: list[bool] = []

    def again(x: Tensor) -> Tensor:
        if not entered:
            entered.append(True)
            thread = threading.Thread(target=lambda: inner.append(run(X)[0]))
            thread.start()
            thread.join()
            inner.append(run(X)[0])
        return x.sin()

    monkeypatch.setattr(module, "_by_inductor", lambda graph, inputs: "no compiler, as asked")
    run = backend(graph_of(again), [X.clone().requires_grad_()])
    assert torch.equal(run(X)[0], X.sin()) and [torch.equal(each, X.sin()) for each in inner] == [True] * 2


@pytest.mark.parametrize("around", ["hooks", "checkpoint", "reentrant checkpoint"])
def test_hooks_of_the_user_see_what_they_see_without_the_backend(learner: Callable[..., Any], around: str) -> None:
    seen: list[list[Any]] = []
    for function in (lambda x: (torch.exp(x),), learner, learner):
        packed: list[Any] = []
        x = X.clone().requires_grad_()
        if around == "hooks":
            with saved_tensors_hooks(
                lambda value, packed=packed: packed.append(value.shape) or value, lambda each: each
            ):
                y = function(x)[0]
        else:
            y = checkpoint(lambda x, of=function: of(x)[0], x, use_reentrant=around != "checkpoint")
        y.sum().backward()
        seen.append([packed, x.grad])
    assert all(packed == seen[0][0] and torch.equal(grad, seen[0][1]) for packed, grad in seen[1:])


def test_a_dispatch_mode_sees_the_operations_of_one_call(learner: Callable[..., Any]) -> None:
    counts = []
    for function in (lambda x: (x @ x.t(),), backend(graph_of(lambda x: x @ x.t()), [X.clone().requires_grad_()])):
        with FlopCounterMode(display=False) as counter:
            function(X.clone().requires_grad_())[0].sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_a_placed_function_may_call_itself() -> None:
    @gst.placed(devices="cpu:0", seconds=1, settings=UNCOMPILED)
    def halved(x: Tensor) -> Tensor:
        return x / 2 if x.dim() < 2 else torch.stack([halved(row) for row in x])

    assert torch.equal(halved(X), X / 2)


def test_a_model_may_call_its_placed_form_while_it_runs_as_written() -> None:
    model = nn.Linear(4, 4).eval().requires_grad_(False)
    fast = gst.place(model, X, "cpu:0", 0, seconds=1, settings=UNCOMPILED).module()
    calls: list[Tensor] = []

    def again(*_: object) -> None:
        hook.remove()
        calls.append(fast(X))

    hook = model.register_forward_hook(again)
    with pytest.warns(UserWarning, match="as written"):
        output = fast(X[:2])
    assert torch.equal(output, model(X[:2])) and torch.equal(calls[0], model(X))


FORKED = """
import os, sys, warnings, torch, gst
from gst.placement.planning import Settings
model, x = torch.nn.Linear(8, 2).eval().requires_grad_(False), torch.ones(2, 8)
uncompiled = Settings(compile_step=False, patience_s=0.0)
fast = gst.place(model, x, sys.argv[1], 0, seconds=None, settings=uncompiled).module("plan")
want = fast(x)
child = os.fork()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert all(torch.allclose(fast(x), want) for _ in range(2))
if child == 0:
    del fast
    sys.exit(0 if [str(each.message) for each in caught] and len(caught) == 1 else 3)
assert os.waitpid(child, 0)[1] == 0 and not caught
fast.close()
"""


@pytest.mark.e2e
@needs_plans
def test_a_plan_runs_as_written_in_a_forked_process_with_one_warning() -> None:
    arguments = [sys.executable, "-c", FORKED, "cpu:0,cpu:1"]
    ran = subprocess.run(
        arguments, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
