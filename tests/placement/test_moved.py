"""Plans for an accelerator stand beside the model on it; here the CPU stands for it, and what is recorded there is made
again in place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import gst
from gst.devices.execute import on_accelerator
from gst.devices.execute.interpreter import compiler
from gst.devices.execute.plain import COMPILED, PYTORCH
from gst.placement import choosing, moved, placed
from gst.placement.moved import Moved, candidates_there
from gst.placement.planning import Settings
from gst.placement.whole import ONE_GRAPH, Way
from gst.programs import Step, capture, outputs_differ, training_step
from tests.devices.execute.recorded import Recorder

CPU = torch.device("cpu")
QUICK = Settings(evaluations=20, methods=("annealing",), repetitions=5, patience_s=0.0, compile_step=False)
X, OTHER = torch.linspace(-1, 1, 64).reshape(4, 16), torch.linspace(0, 2, 64).reshape(4, 16)


@pytest.fixture
def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.BatchNorm1d(8)).eval()


@pytest.fixture
def is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are copied as if they lay on another device."""
    monkeypatch.setattr(moved, "_lies_on", lambda device, model: False)


@pytest.fixture
def stands_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """The CPU is taken for an accelerator that records."""
    recorder = Recorder()
    monkeypatch.setattr(placed, "first_accelerator", lambda devices: CPU)
    monkeypatch.setattr(choosing, "MAY_WIN", 1e3)  # what stands for a graph is slow
    monkeypatch.setattr(on_accelerator, "graph_maker", lambda device, graph=None: recorder)
    return recorder


@pytest.mark.parametrize("kind", [PYTORCH, ONE_GRAPH])
@pytest.mark.usefixtures("is_elsewhere")
def test_a_way_computes_what_the_model_does_with_its_weights_of_now(model: nn.Module, kind: str) -> None:
    recorder = Recorder()
    there = Moved(model, (X,), CPU, graph=recorder)
    assert there._copies and all(each is not other for each, other in zip(there._copies, there._sources, strict=True))
    run = there.run(Way(kind))
    first = run(X)
    for given in (OTHER, X):
        for graph in recorder.graphs:
            graph.spoil()
        torch.testing.assert_close(run(given), model(given))
    torch.testing.assert_close(first, model(X))  # later runs left it alone
    with torch.no_grad():
        model[0].weight.mul_(2)
        model[2].running_mean.add_(1)
        model[0].bias.data = torch.ones(8)  # another tensor, of which nobody counts the writes
    torch.testing.assert_close(run(OTHER), model(OTHER))
    assert len(recorder.graphs) == (kind == ONE_GRAPH)


@pytest.mark.usefixtures("is_elsewhere")
def test_a_model_that_changes_its_buffers_is_not_run_by_a_copy(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="it changes its buffers when it runs"):
        Moved(model.train(), (X,), CPU)


def test_a_recorded_model_whose_weights_lie_elsewhere_now_runs_as_written(model: nn.Module) -> None:
    recorder = Recorder()
    run = Moved(model, (X,), CPU, graph=recorder).run(Way(ONE_GRAPH))
    with torch.no_grad():
        model[0].weight.mul_(2)  # where the graph reads it
    torch.testing.assert_close(run(OTHER), model(OTHER))
    model[0].weight.data = torch.ones(8, 16)
    torch.testing.assert_close(run(OTHER), model(OTHER))


def test_a_training_step_is_recorded_and_sees_other_parameters(model: nn.Module) -> None:
    step = training_step("linear", nn.Linear(16, 8), lambda model, x: model(x).square().mean(), (X,), optimizer="adam")
    found = candidates_there(step, step.inputs, CPU, compiled=False, program=capture(step), graph=Recorder())
    assert list(found.runs) == [PYTORCH, ONE_GRAPH] and found.reasons[COMPILED] == "left out, as asked"
    state, *rest = step.inputs
    for _ in range(3):
        want = step.function(state, *rest)
        for run in found.runs.values():
            got = pytree.tree_leaves(run(state, *rest))
            assert outputs_differ(got, pytree.tree_leaves(want)) is None
        state = pytree.tree_map(lambda each: each.detach(), want[1])


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
def test_compiled_ways_compute_what_a_model_or_a_step_does(model: nn.Module) -> None:
    step = training_step("linear", nn.Linear(16, 8), lambda model, x: model(x).square().mean(), (X,))
    for each, inputs, program in ((model, (X,), None), (step, step.inputs, capture(step))):
        found = candidates_there(each, inputs, CPU, program=program, graph=Recorder())
        assert list(found.runs) == [way.name for way in moved.WAYS], found.reasons
        want = pytree.tree_leaves(found.runs[PYTORCH](*inputs))
        for run in found.runs.values():
            assert outputs_differ(pytree.tree_leaves(run(*inputs)), want) is None
            assert outputs_differ(pytree.tree_leaves(run.timed(inputs)()), want) is None


def test_plans_stand_beside_the_model_on_the_accelerator(model: nn.Module, stands_in: Recorder, tmp_path: Path) -> None:
    result = gst.place(model, X, devices=["cpu:0"], budget=0, settings=QUICK, seconds=None)
    assert result.result["whole_on"] == "cpu" and list(result.runs) == [PYTORCH, ONE_GRAPH]
    assert all(result.result["plans"][name]["median_ms"] > 0 for name in result.runs)
    assert set(result.result["left_out"]) == {way.name for way in moved.WAYS if way.compiles}
    assert "without a plan it runs on cpu:" in result.explain()
    won = replace(result, result=result.result | {"winner": ONE_GRAPH, "whole_on": "cpu:0"})
    torch.testing.assert_close(won.module()(OTHER), model(OTHER))
    won.save(tmp_path / "placed")
    count = len(stands_in.graphs)
    again = gst.load(tmp_path / "placed", model)
    torch.testing.assert_close(again.module()(OTHER), model(OTHER))
    assert again.winner == ONE_GRAPH and len(stands_in.graphs) == count + 1


def test_without_a_plan_a_step_is_timed_there_too(stands_in: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed, "no_room", lambda *given: "no room, as asked")
    step = Step("sums", lambda x: x.cumsum(0), (X,))
    result = gst.place(step, devices=["cpu:0"], settings=QUICK, seconds=20.0)
    assert result.result["no_plan"] == "no room, as asked" and result.result["whole_on"] == "cpu"
    torch.testing.assert_close(result.module(ONE_GRAPH)(OTHER), OTHER.cumsum(0))


@pytest.mark.usefixtures("stands_in")
def test_where_it_does_not_run_there_plans_stand_beside_it_where_it_lies(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def short_of_memory(*given: object) -> None:
        raise torch.OutOfMemoryError("out of memory: tried to allocate 2 GiB\nand more")

    monkeypatch.setattr(placed, "candidates_there", short_of_memory)
    result = gst.place(model, X, devices=["cpu:0"], budget=0, settings=QUICK, seconds=None)
    assert "whole_on" not in result.result and PYTORCH in result.runs and ONE_GRAPH not in result.runs
    assert "as a whole (out of memory: tried to allocate 2 GiB); plans are compared" in capfd.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator here")
def test_a_model_on_the_host_is_placed_on_a_gpu(model: nn.Module, tmp_path: Path) -> None:
    result = gst.place(model, X, devices=["cuda:0"], budget=2, settings=replace(QUICK, compile_step=True), seconds=120)
    assert result.result["whole_on"] == "cuda:0" and {PYTORCH, ONE_GRAPH, COMPILED} <= set(result.runs)
    for name in result.runs:
        got = result.module(name)(OTHER)
        assert got.device.type == "cuda"
        torch.testing.assert_close(got.cpu(), model(OTHER), rtol=1e-3, atol=1e-3)
    result.save(tmp_path / "placed")
    torch.testing.assert_close(
        gst.load(tmp_path / "placed", model).module()(OTHER).cpu(), model(OTHER), rtol=1e-3, atol=1e-3
    )
