"""`torch.compile(backend="gst")`: found by name without importing gst, never other numbers, never a step of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from gst.machine.devices import Device
from gst.placement.api import backend as module
from gst.placement.api import place as placing
from gst.placement.api.backend import backend
from gst.placement.api.trials import outcome
from gst.util.compiled import compiler
from tests.choices import with_rest

ROOT = Path(__file__).parents[2]
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
X = torch.linspace(-1, 1, 12).reshape(3, 4)

USER = """
import copy, sys, warnings, torch
from torch import nn

def same(first, second):
    torch.testing.assert_close(first, second)

torch.manual_seed(0)
mine = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
written, x = copy.deepcopy(mine), torch.randn(4, 6)
names = list(mine.state_dict())
assert "gst" in torch._dynamo.list_backends()
mine.compile(backend="gst", options={"seconds": 2})
for step in range(2):                               # the first call decides, and takes no step of its own
    for model in (mine, written):
        torch.manual_seed(step)
        model(x).square().mean().backward()
for (name, first), second in zip(mine.named_parameters(), written.parameters(), strict=True):
    same(first.grad, second.grad)
same(mine.state_dict(), written.state_dict())       # running statistics too
assert list(mine.state_dict()) == names and type(mine) is nn.Sequential
for model in (mine, written):
    model.eval().requires_grad_(False)
same(mine(x + 1), written(x + 1))
for model in (mine, written):
    model[0].weight.mul_(2)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")                 # weights may have been constants
    same(mine(x), written(x))
for rows in (3, 5, 2):                              # the second of them makes shapes dynamic
    same(mine(x[:1].expand(rows, 6)), written(x[:1].expand(rows, 6)))
with torch.inference_mode():
    same(mine(x), written(x))
print("as written")
"""


@pytest.mark.e2e
@pytest.mark.slow
@needs_compiler
def test_a_program_that_does_not_import_gst_finds_it_and_computes_what_it_computed(tmp_path: Path) -> None:
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    installed = tmp_path / "graph_segment_training-0.dist-info"  # as pip would write it
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: graph-segment-training\nVersion: 0\n")
    (installed / "entry_points.txt").write_text(
        "".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in each.items()) for group, each in entries.items())
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", USER], env=environment, capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout == "as written\n"


def of_inputs(function: Callable[..., Any], count: int) -> fx.GraphModule:
    """A graph as Dynamo makes it, whose inputs have no source in a module."""
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{number}") for number in range(count)]
    graph.output((graph.call_function(function, tuple(nodes)),))
    return fx.GraphModule(nn.Module(), graph)


def test_a_trial_changes_neither_inputs_nor_the_generator() -> None:
    counts, weight = torch.zeros(3, 4), X.clone().requires_grad_()
    before = torch.get_rng_state()
    output, _, *gradients, counts_then, weight_then = outcome(
        lambda c, w: (torch.dropout(w * w, 0.5, True), c.add_(1)), [counts, weight], seed=0
    ).values
    assert torch.equal(torch.get_rng_state(), before) and not counts.any() and weight.grad is None
    assert (counts_then == 1).all() and torch.equal(weight_then, weight) and len(gradients) == 1
    assert output.count_nonzero() < 12
    again = outcome(lambda c, w: (torch.dropout(w * w, 0.5, True),), [counts, weight], seed=0)
    assert torch.equal(again.values[0], output)


@pytest.mark.parametrize(("function", "pure"), [
    (torch.sin, True), (torch.bernoulli, False), (torch.Tensor.sin_, False), (torch.rand_like, False),
])  # fmt: skip
def test_what_draws_or_renews_is_not_placed_as_inference(function: Callable[..., Any], pure: bool) -> None:
    graph, inputs = of_inputs(function, 1), [X.abs()]
    trial = outcome(graph, inputs, 0)
    assert (not trial.draws and not trial.mutated) is pure


def test_what_compiles_to_something_else_or_not_at_all_runs_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, x = of_inputs(torch.sin, 1), X.clone().requires_grad_()
    for compiled in (lambda x: (torch.cos(x),), lambda x: (torch.sin(x.detach()),), "no C++ compiler"):
        monkeypatch.setattr(module, "_by_inductor", lambda graph, inputs, compiled=compiled: compiled)
        run = backend(graph, [x])
        assert torch.equal(run(x)[0], x.sin()) and run(x)[0].requires_grad
        assert run._run is graph


def test_what_writes_into_a_result_is_tried_on_results() -> None:
    """A graph that Dynamo cuts out of a training step may write into what another one computed, never into a weight."""

    def in_place(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        x += 1
        return (x * weight,)

    weight = torch.ones(4, requires_grad=True)
    result = 2 * torch.linspace(0, 1, 4).requires_grad_()
    outputs, to_x, to_weight, new, _ = outcome(in_place, [result, weight], 0).values
    torch.testing.assert_close(new, result + 1)
    torch.testing.assert_close(to_weight, outputs / weight * torch.linspace(-1, 1, 4))
    torch.testing.assert_close(to_x, weight * torch.linspace(-1, 1, 4))


def test_a_graph_that_fails_is_run_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Tensor:
        raise RuntimeError("no backward pass")

    monkeypatch.setattr(module, "_by_inductor", lambda graph, inputs: fails)
    run = module._Chosen(of_inputs(torch.sin, 1), [], 1.0)
    torch.testing.assert_close(run(X)[0], X.sin())


def test_the_faster_of_both_runs_and_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(x: Tensor) -> Tensor:
        for _ in range(300):
            x = x + 0
        return x.sin()

    graph = of_inputs(slow, 1)
    quick: Callable[..., Any] = lambda x: (x.sin(),)  # noqa: E731
    monkeypatch.setattr(module, "_by_inductor", lambda graph, inputs: quick)
    x = X.clone().requires_grad_()
    run = backend(graph, [x], options={"seconds": 0.1})
    assert torch.equal(run(x)[0], x.sin()) and run._run.compiled is quick


def placed(run: Callable[..., Any]) -> SimpleNamespace:
    return SimpleNamespace(winner="compiled", explain=str, module=lambda: run)


def test_weights_of_another_model_are_never_those_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "place", lambda bound, inputs, devices, seconds: placed(lambda x: (x * 2,)))
    graph = of_inputs(torch.mul, 2)
    two, three = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(3.0))
    with torch.no_grad():
        want = outcome(graph, [X, two], 0)
    run = module._inference(graph, [False, True], [X, two], want, 1.0)
    assert torch.equal(run(X, two)[0], 2 * X) and torch.equal(run(X, three)[0], 3 * X)


def test_options_are_seconds_alone() -> None:
    graph = of_inputs(torch.sin, 1)
    with pytest.raises(ValueError, match="has no option 'budget'; there is 'seconds'"):
        backend(graph, [X], options={"budget": 3})
    with pytest.raises(ValueError, match="seconds is 0; want more than 0"):
        backend(graph, [X], options={"seconds": 0})


def test_a_graph_of_the_host_is_placed_on_its_cores_beside_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Device("cpu:0", "cpu", (0,), 1, "host", "made up")
    gpu = Device("cuda:0", "cuda", (), 1, "cuda:0", "made up")
    monkeypatch.setattr(placing, "discover", lambda: [core, gpu, replace(gpu, name="meta", kind="meta")])
    assert module._devices([X, 3]) == ["cpu:0"]
    assert module._devices([X.to("meta"), 3]) == ["cpu:0", "meta"]  # not on other accelerators
    with pytest.raises(ValueError, match="its tensors are on cpu, meta"):
        module._devices([X.to("meta"), X])


def test_a_graph_whose_outputs_would_lie_elsewhere_is_not_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "place", lambda *given, **settings: placed(lambda x, _: (x.to("meta"),)))
    monkeypatch.setattr(module, "_by_inductor", lambda graph, inputs: "no compiler, as asked")
    graph = of_inputs(torch.mul, 2)
    with pytest.raises(ValueError, match="compiled leaves outputs on meta, the graph as written on cpu"):
        module._inference(graph, [False, False], [X, X], outcome(graph, [X, X], 0), 1.0)
    run = module._Chosen(graph, [False, False], 1.0)
    assert run(X, X)[0].device.type == "cpu" and run._run is graph


@needs_compiler
@pytest.mark.parametrize("learns", with_rest([False, True], [True]))
def test_random_numbers_that_reach_no_output_are_drawn_as_written(learns: bool) -> None:
    weight = torch.ones(4, 4, requires_grad=learns)

    def step(x: Tensor) -> Tensor:
        torch.rand_like(x)
        return torch.sin(x @ weight)

    torch._dynamo.reset()
    fast = torch.compile(step, backend="gst", options={"seconds": 1})
    for seed in range(2):
        states = []
        for run in (step, fast):
            torch.manual_seed(seed)
            run(X)
            states.append(torch.get_rng_state())
        assert torch.equal(*states)
