"""Plans for an accelerator stand beside the model on it; here the CPU stands for it, and what is recorded there is made
again in place."""

from __future__ import annotations

import gc
import time
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import gst
from gst.execution import costs
from gst.placement.api import place as placing
from gst.placement.planning import Settings
from gst.programs import Step, capture, capture_module, outputs_differ, training_step
from gst.util.compiled import compiler
from gst.whole_model import choosing, device_copy
from gst.whole_model.choosing import tried
from gst.whole_model.device_copy import DeviceCopy, subject_on_accelerator
from gst.whole_model.variants import COMPILED, MOST_COMPILED, ONE_GRAPH, PYTORCH, Variant
from tests.choices import with_rest
from tests.execution.recorded import Recorder, counted

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
    monkeypatch.setattr(device_copy, "_is_on", lambda device, model: False)


@pytest.fixture
def stands_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """The CPU is taken for an accelerator that records."""
    recorder = Recorder()
    monkeypatch.setattr(placing, "first_accelerator", lambda devices: CPU)
    monkeypatch.setattr(choosing, "MAY_WIN", 1e3)  # what stands for a graph is slow
    monkeypatch.setattr(costs, "graph_maker", lambda device, graph=None: recorder)
    return recorder


@pytest.mark.parametrize("kind", [PYTORCH, ONE_GRAPH])
@pytest.mark.usefixtures("is_elsewhere")
def test_a_variant_computes_what_the_model_does_with_its_weights_of_now(model: nn.Module, kind: str) -> None:
    recorder = Recorder()
    on_device = DeviceCopy(model, (X,), CPU, capture_module(model, (X,)), recorder)
    pairs = list(zip(on_device._copies, on_device._sources, strict=True))
    assert pairs and all(each is not other for each, other in pairs)
    run = on_device.run(Variant(kind))
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
def test_no_other_weight_can_lie_where_one_did_that_was_copied(model: nn.Module) -> None:
    run = DeviceCopy(model, (X,), CPU).run(Variant(PYTORCH))
    array = np.ones((8, 16), np.float32)
    memory = weakref.ref(array)
    model[0].weight.data = torch.from_numpy(array)
    del array
    run(X)
    model[0].weight.data = torch.zeros(8, 16)
    assert memory() is not None  # else what replaces it may have its address, and be taken for it
    torch.testing.assert_close(run(X), model(X).detach())
    assert memory() is None


@pytest.mark.usefixtures("is_elsewhere")
def test_a_model_that_changes_its_buffers_is_not_run_by_a_copy(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="it changes its buffers when it runs"):
        DeviceCopy(model.train(), (X,), CPU)


def test_a_recorded_model_whose_weights_lie_elsewhere_now_runs_as_written(model: nn.Module) -> None:
    recorder = Recorder()
    run = DeviceCopy(model, (X,), CPU, graph=recorder).run(Variant(ONE_GRAPH))
    with torch.no_grad():
        model[0].weight.mul_(2)  # where the graph reads it
    torch.testing.assert_close(run(OTHER), model(OTHER))
    model[0].weight.data = torch.ones(8, 16)
    torch.testing.assert_close(run(OTHER), model(OTHER))


def test_a_training_step_is_recorded_and_sees_other_parameters(model: nn.Module) -> None:
    step = training_step("linear", nn.Linear(16, 8), lambda model, x: model(x).square().mean(), (X,), optimizer="adam")
    found = tried(
        subject_on_accelerator(step, step.inputs, CPU, program=capture(step), graph=Recorder()), compiled=False
    )
    assert list(found.runs) == [PYTORCH, ONE_GRAPH] and found.reasons[COMPILED] == "left out, as asked"
    state, *rest = step.inputs
    for _ in range(3):
        want = step.function(state, *rest)
        for run in found.runs.values():
            got = pytree.tree_leaves(run(state, *rest))
            assert outputs_differ(got, pytree.tree_leaves(want)) is None
        state = pytree.tree_map(lambda each: each.detach(), want[1])


def test_inputs_that_are_refilled_uncounted_are_copied_anew() -> None:
    array = np.ones(4, np.float32)
    x = torch.from_numpy(array)
    run = DeviceCopy(Step("double", lambda x: x * 2, (x,)), (x,), CPU, graph=Recorder()).run(Variant(ONE_GRAPH))
    for value in (1.0, 3.0, 5.0):
        array[:] = value
        assert run(x).tolist() == [2 * value] * 4


@pytest.mark.usefixtures("is_elsewhere")
def test_callers_on_two_threads_take_turns(model: nn.Module) -> None:
    on_device = DeviceCopy(model, (X,), CPU, graph=Recorder())
    run = on_device.run(Variant(ONE_GRAPH))
    again = run.again

    def slowly() -> Any:
        time.sleep(0.02)  # behind the inputs, which another caller could overwrite meanwhile
        return again()

    run.again = slowly
    with ThreadPoolExecutor(2) as threads:
        given = [X, OTHER] * 4
        for x, got in zip(given, threads.map(run, given), strict=True):
            torch.testing.assert_close(got, model(x))


def test_a_call_waits_for_the_call_before_on_another_stream(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[tuple[str, int]] = []

    def stream(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(
            wait_event=lambda event: log.append(("wait", event)),
            record_event=lambda: log.append(("record", len(log))) or len(log) - 1,
        )

    monkeypatch.setattr(device_copy, "is_here", lambda device: True)
    monkeypatch.setattr(torch.accelerator, "current_stream", stream)
    on_device = DeviceCopy(model, (X,), CPU, graph=Recorder())
    for kind in (PYTORCH, ONE_GRAPH):
        on_device.run(Variant(kind))(X)
    assert log == [("record", 0), ("wait", 0), ("record", 2), ("wait", 2), ("record", 4)]


class Tied(nn.Module):
    """A buffer and a parameter in two places each."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.one.weight
        scale = torch.full((4,), 2.0)
        self.one.register_buffer("scale", scale)
        self.other.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(x) * self.one.scale) * self.other.scale


@pytest.mark.usefixtures("is_elsewhere")
def test_weights_of_two_modules_stay_one_in_the_copy() -> None:
    model, x = Tied(), torch.linspace(-1, 1, 8).reshape(2, 4)
    on_device = DeviceCopy(model, (x,), CPU)
    mine = on_device._model
    assert isinstance(mine, Tied) and mine.one.scale is mine.other.scale and mine.one.weight is mine.other.weight
    assert mine.one.weight is not model.one.weight and isinstance(mine.one.weight, nn.Parameter)
    run = on_device.run(Variant(PYTORCH))
    with torch.no_grad():
        model.one.scale.add_(1)
        model.one.weight.mul_(2)
        model.other.bias.add_(1)
    torch.testing.assert_close(run(x), model(x).detach())
    mine = DeviceCopy(model, (x,), torch.device("meta"))._model  # where all weights are others
    assert isinstance(mine, Tied) and mine.one.scale is mine.other.scale and mine.one.weight is mine.other.weight


def test_no_way_is_compiled_under_the_limit_of_dynamo(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def compiled_by(function: nn.Module, **settings: Any) -> Any:
        def run(*inputs: Any) -> Any:
            limits.append(torch._dynamo.config.recompile_limit)
            return function(*inputs)

        return run

    monkeypatch.setattr(torch, "compile", compiled_by)
    before = torch._dynamo.config.recompile_limit
    on_device = DeviceCopy(model, (X,), CPU)
    for variant in device_copy.VARIANTS:
        if variant.compiles:
            torch.testing.assert_close(on_device.run(variant)(OTHER), model(OTHER))
    assert limits == [MOST_COMPILED, MOST_COMPILED] * 2 and torch._dynamo.config.recompile_limit == before


def test_compiled_code_is_given_the_strides_that_it_was_compiled_for(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    strides = set()

    def compiled_by(function: nn.Module, **settings: Any) -> Any:
        return lambda *inputs: strides.add(inputs[0].stride()) or function(*inputs)

    monkeypatch.setattr(torch, "compile", compiled_by)
    result = tried(subject_on_accelerator(model, (X,), CPU, graph=Recorder()))
    columns = X.t().contiguous().t()
    assert columns.stride() != X.stride()
    torch.testing.assert_close(result.runs[COMPILED](columns), model(X))
    assert strides == {X.stride()}


@pytest.mark.usefixtures("is_elsewhere")
def test_what_is_placed_in_inference_mode_runs_outside_of_it(model: nn.Module) -> None:
    with torch.inference_mode():
        inside = torch.ones(4, 16)
        on_device = DeviceCopy(model, (inside,), CPU, graph=Recorder())
        runs = [on_device.run(Variant(kind)) for kind in (PYTORCH, ONE_GRAPH)]
    with torch.no_grad():
        model[0].weight.mul_(2)
    for run in runs:
        for x in (X, inside):
            with torch.no_grad():
                torch.testing.assert_close(run(x), model(x))
        with torch.inference_mode():
            torch.testing.assert_close(run(X), model(X))


def test_a_graph_that_is_recorded_under_autocast_casts_the_weights_of_now(model: nn.Module) -> None:
    """Autocast keeps the casts of weights that require gradients: a recording that finds one there holds no cast."""
    with torch.autocast("cpu", torch.bfloat16):
        result = tried(subject_on_accelerator(model, (X,), CPU, graph=Recorder()), compiled=False)
        run = result.runs[ONE_GRAPH]
        with torch.no_grad():
            model[0].weight.mul_(2)
        torch.clear_autocast_cache()
        torch.testing.assert_close(run(OTHER), model(OTHER).detach())
        assert run(OTHER).dtype == torch.bfloat16 and torch.is_autocast_cache_enabled()
    with pytest.warns(UserWarning, match="called without autocast, and was placed under autocast of cpu to torch.bf"):
        assert run(OTHER).dtype == torch.float32


def test_random_numbers_of_a_seed_are_not_recorded() -> None:
    recorder = Recorder()
    step = training_step(
        "drop", nn.Sequential(nn.Linear(16, 8), nn.Dropout()), lambda model, x: model(x).sum(), (X,), seed=0
    )
    result = tried(
        subject_on_accelerator(step, step.inputs, CPU, program=capture(step), graph=recorder), compiled=False
    )
    assert list(result.runs) == [PYTORCH] and not recorder.graphs
    assert "random numbers are drawn on the host" in result.reasons[ONE_GRAPH]


@pytest.mark.usefixtures("is_elsewhere")
def test_calls_of_another_shape_run_on_the_device_with_the_weights_of_now(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = tried(subject_on_accelerator(model, (X,), CPU, graph=Recorder()), compiled=False)
    run, on_device, eager = result.runs[ONE_GRAPH], [], DeviceCopy.eager
    monkeypatch.setattr(DeviceCopy, "eager", lambda self, *given: (on_device.append(1), eager(self, *given))[1])
    with torch.no_grad():
        model[0].weight.mul_(2)
        with pytest.warns(UserWarning, match="such calls run the model as written"):
            got = run(X[:2])
        assert on_device
        torch.testing.assert_close(got, model(X[:2]))
    on_device.clear()
    run(X.clone().requires_grad_()).sum().backward()
    assert not on_device
    model.train()
    torch.testing.assert_close(run(X), model(X))
    assert not on_device  # a copy stays in the mode in which it was placed


def test_what_is_timed_is_a_call_with_examples_on_the_accelerator() -> None:
    wide, trained = torch.ones(1, 3).expand(4, 3), torch.ones(4, 3, requires_grad=True)
    step = Step("product", lambda x, y: (x * y, x + y), (wide, trained))
    runs = tried(subject_on_accelerator(step, step.inputs, CPU, graph=Recorder()), compiled=False).runs
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a call that the guard refuses would be timed as written
        for name, run in runs.items():
            timed, mine = run.timed(step.inputs), (wide, trained.detach().clone().requires_grad_())
            assert [each.tolist() for each in timed()] == [[[1.0] * 3] * 4, [[2.0] * 3] * 4]
            counts = counted(timed)
            assert counts == counted(lambda run=run, mine=mine: run(*mine))
            copies = counts[torch.ops.aten.copy_.default], counts[torch.ops.aten.clone.default]
            # the stand-in of a graph copies its two results too
            assert copies == ((4, 2) if name == ONE_GRAPH else (0, 0))
    given = weakref.ref(runs[PYTORCH].run.examples())
    assert given() is runs[ONE_GRAPH].run.examples()  # in one memory for all
    del timed
    assert given() is None  # which lasts while somebody times


def test_outputs_on_the_accelerator_are_inputs_of_the_next_call() -> None:
    step = Step("double", lambda state, x: (x.sum(), state * 2), (torch.ones(3), X))
    result = tried(subject_on_accelerator(step, step.inputs, torch.device("meta")), compiled=False)
    state, _ = step.inputs
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):  # the first time its state lies on the host
            _, state = result.runs[PYTORCH](state, X)
    assert state.device.type == "meta"
    with pytest.warns(UserWarning, match=r"input 0 is torch.float32 \(2,\), not torch.float32 \(3,\); such calls"):
        result.runs[PYTORCH](torch.ones(2), X)


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize(("is_step", "count"), with_rest([(True, 3), (True, 4), (False, 4)], [(True, 3)]))
def test_compiled_variants_compute_what_a_model_or_a_step_does(
    model: nn.Module, is_step: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_copy, "VARIANTS", device_copy.VARIANTS[:count])
    step = training_step("linear", nn.Linear(16, 8), lambda model, x: model(x).square().mean(), (X,))
    each, inputs, program = (step, step.inputs, capture(step)) if is_step else (model, (X,), None)
    result = tried(subject_on_accelerator(each, inputs, CPU, program=program, graph=Recorder()))
    assert list(result.runs) == [each.name for each in device_copy.VARIANTS], result.reasons
    want = pytree.tree_leaves(result.runs[PYTORCH](*inputs))
    for run in result.runs.values():
        assert outputs_differ(pytree.tree_leaves(run(*inputs)), want) is None
        assert outputs_differ(pytree.tree_leaves(run.timed(inputs)()), want) is None


@pytest.mark.e2e
def test_plans_stand_beside_the_model_on_the_accelerator(
    model: nn.Module, stands_in: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = gst.place(model, X, devices=["cpu:0"], budget=0, settings=QUICK, seconds=None)
    assert result.result["accelerator"] == "cpu" and list(result.runs) == [PYTORCH, ONE_GRAPH]
    assert all(result.result["plans"][name]["median_ms"] > 0 for name in result.runs)
    compiled = {variant.name for variant in device_copy.VARIANTS if variant.compiles}
    assert set(result.result["left_out"]) == compiled
    assert "without a plan it runs on cpu:" in result.explain()
    plan, lost = result.module("plan"), weakref.ref(result.runs[ONE_GRAPH])
    won = replace(result, result=result.result | {"winner": ONE_GRAPH, "accelerator": "cpu:0"})
    torch.testing.assert_close(won.module()(OTHER), model(OTHER))
    won.save(tmp_path / "placed")
    count = len(stands_in.graphs)
    again = gst.load(tmp_path / "placed", model)
    torch.testing.assert_close(again.module()(OTHER), model(OTHER))
    assert again.winner == ONE_GRAPH and len(stands_in.graphs) == count + 1
    assert hasattr(again.runs[PYTORCH].run, "examples")  # as its time says
    del result, won, again
    gc.collect()
    assert lost() is None  # a plan holds no other variant
    torch.testing.assert_close(plan(OTHER), model(OTHER))
    eager = DeviceCopy.eager  # with which a file is compared when it is loaded
    monkeypatch.setattr(DeviceCopy, "eager", lambda *given: eager(*given) * 1.01)  # as its kernels round
    assert gst.load(tmp_path / "placed", model).winner == ONE_GRAPH


@pytest.mark.usefixtures("stands_in")
def test_variants_that_cannot_win_take_no_memory_beside_plans(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "MAY_WIN", 0.0)
    run, alive = DeviceCopy.run, weakref.WeakSet[Any]()

    def made(on_device: DeviceCopy, variant: Variant) -> Any:
        result = run(on_device, variant)
        if variant.kind == ONE_GRAPH:
            alive.add(result)
        return result

    def planned(*given: Any) -> Any:
        gc.collect()
        assert not alive
        raise ValueError("no plan, as asked")

    monkeypatch.setattr(DeviceCopy, "run", made)
    monkeypatch.setattr(placing, "_by_plans", planned)
    result = gst.place(model, X, devices=["cpu:0"], settings=QUICK, seconds=None)
    assert result.result["no_plan"] == "no plan, as asked" and "in first runs" in result.result["left_out"][ONE_GRAPH]


def test_without_a_plan_a_step_is_timed_there_too(stands_in: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "no_headroom", lambda *given: "no room, as asked")
    step = Step("sums", lambda x: x.cumsum(0), (X,))
    result = gst.place(step, devices=["cpu:0"], settings=QUICK, seconds=20.0)
    assert result.result["no_plan"] == "no room, as asked" and result.result["accelerator"] == "cpu"
    torch.testing.assert_close(result.module(ONE_GRAPH)(OTHER), OTHER.cumsum(0))


@pytest.mark.usefixtures("stands_in")
def test_where_it_does_not_run_there_plans_stand_beside_it_where_it_lies(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def short_of_memory(*given: object, **named: object) -> None:
        raise torch.OutOfMemoryError("out of memory: tried to allocate 2 GiB\nand more")

    def planned(*given: Any) -> Any:
        raise ValueError("no plan, as asked")

    monkeypatch.setattr(placing, "subject_on_accelerator", short_of_memory)
    monkeypatch.setattr(placing, "_by_plans", planned)
    result = gst.place(model, X, devices=["cpu:0"], budget=0, settings=QUICK, seconds=None)
    assert "accelerator" not in result.result and PYTORCH in result.runs and ONE_GRAPH not in result.runs
    assert "as a whole (out of memory: tried to allocate 2 GiB); plans are compared" in capfd.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator here")
def test_a_model_on_the_host_is_placed_on_a_gpu(model: nn.Module, tmp_path: Path) -> None:
    result = gst.place(model, X, devices=["cuda:0"], budget=2, settings=replace(QUICK, compile_step=True), seconds=120)
    assert result.result["accelerator"] == "cuda:0" and {PYTORCH, ONE_GRAPH, COMPILED} <= set(result.runs)
    for name in result.runs:
        got = result.module(name)(OTHER)
        assert got.device.type == "cuda"
        torch.testing.assert_close(got.cpu(), model(OTHER), rtol=1e-3, atol=1e-3)
    result.save(tmp_path / "placed")
    torch.testing.assert_close(
        gst.load(tmp_path / "placed", model).module()(OTHER).cpu(), model(OTHER), rtol=1e-3, atol=1e-3
    )
