"""Engines as variants: equal to the model, never stale, and left out with a reason where they would differ."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gst
from gst.placement.planning import Settings
from gst.whole_model.choosing import subject_on_cores, tried
from gst.whole_model.comparing import Guard, difference
from gst.whole_model.engines import ONNX_RUNTIME, OPENVINO, PACKAGES, Exported, missing
from gst.whole_model.variants import COMPILED, PYTORCH, Variant, variants, whole_run
from tests.choices import with_rest

for package in ("onnxruntime", "onnx", "onnxscript", "openvino"):
    pytest.importorskip(package, reason="needs engines: pip install .[engines]")


class Calls(nn.Module):
    """A model that is a function of its inputs, with some weights."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.layer, self.table = function, nn.Linear(3, 3), nn.Embedding(5, 3)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def inference(model: nn.Module) -> nn.Module:
    return model.eval().requires_grad_(False)


def convolutions() -> tuple[nn.Module, tuple[Any, ...]]:
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2)
    return nn.Sequential(*layers), (torch.randn(2, 3, 8, 8),)


def encoder() -> tuple[nn.Module, tuple[Any, ...]]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), (torch.randn(2, 5, 16),)


def perceptron() -> tuple[nn.Module, tuple[Any, ...]]:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 2)), (torch.randn(4, 6).t().t(),)


X = torch.linspace(-1, 1, 6).reshape(2, 3)
IDS = torch.tensor([[0, 4, 2]])


@pytest.mark.parametrize("make", with_rest([convolutions, encoder, perceptron], [convolutions, encoder]))
def test_an_engine_computes_what_the_model_does(make: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model, inputs = make()
    exported = Exported(inference(model), inputs)
    for kind in PACKAGES:
        run = whole_run(model, Variant(kind, 1), inputs, exported=exported)
        assert difference(run, model, inputs, seed=1) is None
        first = run(*inputs)
        before = first.clone()
        run(*(2 * each for each in inputs)).zero_()
        assert torch.equal(first, before), "memory of another call"
        torch.testing.assert_close(run(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


def test_nested_inputs_and_outputs_keep_their_form() -> None:
    def nested(self: Calls, x: Tensor, options: dict[str, Any]) -> dict[str, Any]:
        return {"given": x, "weight": self.layer.weight, "pair": (self.layer(options["y"]) * options["scale"], x.sum())}

    model = inference(Calls(nested))
    inputs = (X, {"y": 2 * X, "scale": 3.0, "none": None})
    exported = Exported(model, inputs)
    for kind in PACKAGES:
        run = exported.run(kind, 1)
        got = run(X.t().contiguous().t(), {"scale": 3.0, "none": None, "y": 2 * X})  # other strides, another order
        torch.testing.assert_close(got, model(*inputs))
        got["weight"].zero_()
        torch.testing.assert_close(run(*inputs), model(*inputs))


@pytest.mark.parametrize("change", [
    lambda model: model[0].weight.mul_(2),
    pytest.param(lambda model: model.load_state_dict(perceptron()[0].state_dict()), marks=pytest.mark.rest),
    lambda model: setattr(model[0].weight, "data", torch.ones(8, 6)),
])  # fmt: skip
def test_changed_weights_and_other_batches_run_the_model_as_written(change: Callable[[Any], Any]) -> None:
    model, inputs = perceptron()
    subject = subject_on_cores(inference(model), inputs, cores=1)
    runs = [subject.guarded(Variant(kind)) for kind in PACKAGES]
    change(model)
    for guarded in runs:
        with pytest.warns(UserWarning, match="weights changed, which are constants"):
            torch.testing.assert_close(guarded(*inputs), model(*inputs))
        assert guarded(torch.ones(9, 6)).shape == (9, 2)
        assert guarded.guard.reason((torch.ones(9, 6),)).startswith("input 0 is torch.float32 (9, 6)")
        assert subject.wrong(guarded.run), "the engine itself is stale"


def test_a_graph_module_that_an_export_traced_runs_by_the_engine(tmp_path: Path) -> None:
    model, inputs = perceptron()
    traced = torch.fx.symbolic_trace(inference(model))
    guarded = subject_on_cores(traced, inputs, cores=1).guarded(Variant(ONNX_RUNTIME))
    assert guarded.guard is not None and guarded.guard.reason(inputs) is None
    torch.onnx.export(traced, inputs, tmp_path / "model.onnx", dynamo=True, verbose=False)  # writes notes to it
    assert guarded.guard.reason(inputs) is None
    traced.graph.output_node().replace_input_with(traced.graph.output_node().args[0], next(iter(traced.graph.nodes)))
    traced.recompile()
    assert "changed or was replaced" in str(guarded.guard.reason(inputs))


def test_training_never_runs_an_engine() -> None:
    model, inputs = perceptron()
    for trained in (model.train().requires_grad_(False), model.eval().requires_grad_(True)):
        assert not {each.kind for each in variants(trained, 2)} & set(PACKAGES)
    guard = Guard(inference(model), inputs, weights=True)
    model.train()
    assert "between training and evaluation mode" in str(guard.reason(inputs))


@pytest.mark.parametrize(("call", "kinds", "words"), [
    (lambda self, x: (self.layer(x), None), PACKAGES, "an output is a NoneType"),
    (lambda self, x: self.layer(x.add_(0.0)), PACKAGES, "writes to its inputs or weights"),
    (lambda self, x: self.layer(x).bfloat16(), [ONNX_RUNTIME], "bfloat16"),
    (lambda self, x: torch.linalg.eigvals(x[:, :2]).real, PACKAGES, "it is not exported to ONNX: .*linalg_eig"),
    (lambda self, x: self.table((self.layer(x) * 0).long()), PACKAGES, "indices computed from inputs"),
    (lambda self, x: self.layer(x).double().sin(), [OPENVINO], "numbers of 64 bits"),
    (lambda self, x: ((x * 9).long() * 2**20).float(), [OPENVINO], "numbers of 64 bits"),
    (lambda self, x: self.layer(x) if x.sum() > 9 else x, [ONNX_RUNTIME], "data-dependent"),
])  # fmt: skip
def test_a_model_that_engines_do_not_take_is_left_out_with_a_reason(
    call: Callable[..., Any], kinds: Any, words: str
) -> None:
    exported = Exported(inference(Calls(call)), (X.clone(),))
    for kind in kinds:
        with pytest.raises(Exception, match=words):
            exported.run(kind, 1)


def test_indices_out_of_range_are_refused_as_by_the_model() -> None:
    def reads(self: Calls, ids: Tensor, x: Tensor) -> Tensor:
        position = ids.ne(1).long().cumsum(1) - 1  # in range for any numbers
        last = x[torch.arange(len(x)), ids.flip(1).argmax(-1)]
        return self.table(ids.view(-1)).sum(0) + self.table.weight[position].sum(1) + last

    model = inference(Calls(reads))
    exported = Exported(model, (IDS, X[:1]))
    for kind in PACKAGES:
        run = exported.run(kind, 1)
        torch.testing.assert_close(run(IDS - IDS % 2, X[:1]), model(IDS - IDS % 2, X[:1]))
        for wrong in (5, -1, 2**32 + 1):
            with pytest.raises(IndexError):
                run(torch.tensor([[0, 1, wrong]]), X[:1])


@pytest.mark.parametrize("read", [
    lambda self, ids: self.table(ids * 1),
    lambda self, ids: self.table((ids.float() * 1.0).long()),
    lambda self, ids: self.layer.weight.gather(0, ids.clamp(max=2) - 0),
    lambda self, ids: nn.functional.one_hot(ids + 0, 9).float(),
    lambda self, ids: self.table.weight[torch.zeros_like(ids).copy_(ids)],
])  # fmt: skip
def test_indices_that_are_computed_are_left_to_the_model(read: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="indices computed from inputs"):
        Exported(inference(Calls(read)), (IDS,)).run(ONNX_RUNTIME, 1)


def test_nan_and_large_numbers_are_those_of_the_model() -> None:
    model = inference(Calls(lambda self, x, numbers: (x.relu(), numbers.float(), x.amax(-1))))
    exported, nan = Exported(model, (X, torch.arange(3))), X.clone()
    nan[0, 1] = torch.nan
    for kind in PACKAGES:
        run = exported.run(kind, 1)
        for pair in ((X, torch.tensor([2**40, 1, 2])), (nan, torch.arange(3))):
            torch.testing.assert_close(run(*pair), model(*pair), equal_nan=True)


@pytest.mark.parametrize("package", sorted({name for names in PACKAGES.values() for name in names}))
def test_a_package_that_is_not_installed_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    kind = OPENVINO if package == OPENVINO else ONNX_RUNTIME
    model, inputs = perceptron()
    names = [each.name for each in variants(inference(model), torch.get_num_threads() + 1)]
    assert [name for name in names if name.startswith(kind)] == [kind]
    found = tried(subject_on_cores(model, inputs, cores=1), seconds=0.0)
    assert found.reasons[kind] == (
        f"left out: {package} is not installed; pip install 'graph-segment-training[engines]'"
    )
    with pytest.raises(ValueError, match=f"{package} is not installed"):
        whole_run(model, Variant(kind), inputs)
    assert not missing(COMPILED) and not missing(PYTORCH)


@pytest.mark.parametrize("kind", PACKAGES)
def test_signals_are_handled_after_engines_have_gone(kind: str) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        model, inputs = perceptron()
        exported = Exported(inference(model), inputs)
        runs = [exported.run(kind, 1) for _ in range(2)]
        while runs:  # the first one ends first
            del runs[0]
            gc.collect()
        os.kill(os.getpid(), signal.SIGUSR1)  # ends Python if its stack for handlers was freed
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [signal.SIGUSR1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", PACKAGES)
def test_a_saved_engine_is_made_anew_and_gives_equal_outputs(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = perceptron()
    inference(model)
    placed = gst.place(model, inputs, devices="cpu:0", settings=Settings(compile_step=False))
    placed.runs[kind] = subject_on_cores(model, inputs, cores=1).guarded(Variant(kind))  # type: ignore[index]
    placed.result["winner"] = kind
    want = placed.module()(*inputs)
    placed.save(tmp_path / "model.placed")
    loaded = gst.load(tmp_path / "model.placed", model)
    assert loaded.winner == kind and torch.equal(loaded.module()(*inputs), want)
    with pytest.raises(ValueError, match="frozen weights"):
        gst.load(tmp_path / "model.placed", model.requires_grad_(True))
    monkeypatch.setitem(sys.modules, PACKAGES[kind][0], None)
    with pytest.raises(ValueError, match=f"{kind} fails here .*{PACKAGES[kind][0]} is not installed"):
        gst.load(tmp_path / "model.placed", inference(model))
