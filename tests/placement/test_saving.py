"""A placed model in a file: it runs again with the user's model, and never for another one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gst
from gst.placement.api.placed import Placed
from gst.placement.planning import Settings
from gst.programs import training_step
from gst.util.compiled import compiler

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
QUICK = Settings(evaluations=50, methods=("annealing",), repetitions=5, patience_s=0.0, compile_step=False)
X = torch.linspace(-1, 1, 24).reshape(4, 6)


class Scaled(nn.Module):
    """Takes a structure of inputs: tensors by name and a number."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(6, width)

    def forward(self, given: dict[str, Any], factor: float) -> Tensor:
        return factor * self.layer(given["x"])


def model(width: int = 3) -> Scaled:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(width)
        return Scaled(width).eval().requires_grad_(False)


def placed_as(winner: str, mine: nn.Module, inputs: Any) -> Placed:
    placed = gst.place(mine, inputs, devices=["cpu:0"], settings=QUICK)
    plans = {**placed.result["plans"], winner: placed.result["plans"]["pytorch"]}
    runs = {**placed.runs, winner: placed.runs["pytorch"]}  # of what won, the file holds the name alone
    return replace(placed, result=placed.result | {"winner": winner, "plans": plans}, runs=runs)


@pytest.mark.parametrize("winner", ["pytorch", "pytorch, 1 thread"])
def test_what_won_runs_again_for_the_same_model_with_other_weights(winner: str, tmp_path: Path) -> None:
    placed_as(winner, model(), ({"x": X}, 2.0)).save(tmp_path / "it")
    other = model()
    other.layer.weight.mul_(3)
    placed = gst.load(tmp_path / "it", other)
    assert placed.winner == winner and f"the fastest is {winner}" in placed.explain()
    torch.testing.assert_close(placed.module()({"x": X + 1}, 2.0), other({"x": X + 1}, 2.0))
    with pytest.warns(UserWarning, match="such calls run the model as written"):
        torch.testing.assert_close(placed.module()({"x": X[:2]}, 2.0), other({"x": X[:2]}, 2.0))
    assert list(other.state_dict()) == ["layer.weight", "layer.bias"], "the user's, as it was"


@pytest.mark.slow
@needs_compiler
def test_a_plan_runs_again(tmp_path: Path) -> None:
    mine = nn.Sequential(nn.Linear(6, 4), nn.ReLU()).eval()
    placed = gst.place(mine, X, devices=["cpu:0"], budget=0, settings=QUICK, seconds=None)
    replace(placed, result=placed.result | {"winner": placed.result["best"]}).save(tmp_path / "plan")
    again = gst.load(tmp_path / "plan", mine)
    assert again.winner == "plan" and again.plan is not None and again.plan.key == placed.plan.key  # type: ignore[union-attr]
    assert "was read from a file" in again.explain()
    module = again.module()
    torch.testing.assert_close(module(2 * X), mine(2 * X))
    module.close()
    other = nn.Sequential(nn.Linear(6, 4), nn.Tanh()).eval()
    with pytest.raises(ValueError, match="is of a model with other operations; place this one"):
        gst.load(tmp_path / "plan", other)


@needs_compiler
def test_a_step_brings_its_own_inputs(tmp_path: Path) -> None:
    step = training_step("one", nn.Linear(6, 2), lambda m, x: m(x).square().mean(), [X])
    placed = gst.place(step, devices=["cpu:0"], budget=0, settings=QUICK)
    placed.save(tmp_path / "step")
    module = gst.load(tmp_path / "step", step).module()
    torch.testing.assert_close(module(*step.inputs), step.function(*step.inputs))
    module.close()
    with pytest.raises(ValueError, match="of another model"):
        gst.load(tmp_path / "step", training_step("one", nn.Linear(6, 3), lambda m, x: m(x).mean(), [X]))


def changed(path: Path, **entries: Any) -> Path:
    content = torch.load(path, weights_only=True)
    torch.save(content | {"placed": json.dumps(json.loads(content["placed"]) | entries)}, path)
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    placed_as("pytorch", model(), ({"x": X}, 2.0)).save(tmp_path / "it")
    return tmp_path / "it"


@pytest.mark.parametrize(("entries", "words"), [
    ({"schema": 0}, r"has schema 0, this is 1; place the model anew"),
    ({"torch": "1.0"}, r"has torch '1\.0', this is .*; place the model anew"),
    ({"run": "fastest"}, r"there is no variant 'fastest' of a model; place the model anew"),
    ({"run": "pytorch, 9999 threads"}, r"it won on 9999 threads, here are \d+ cores"),
    ({"run": "plan", "plan": {}}, "plan has schema None"),
    ({"inputs": []}, "place the model anew"), ({"result": 3}, "place the model anew"),
    ({"model": 7}, "of another model: it does not say of which"),
])  # fmt: skip
def test_another_version_and_damage_are_one_line(saved: Path, entries: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        gst.load(changed(saved, **entries), model())
    assert "\n" not in str(error.value) and str(saved) in str(error.value)


@pytest.mark.parametrize(("make", "words"), [
    (lambda: model(5), r"layer\.weight was \['torch\.float32', 3, 6\], now it is \['torch\.float32', 5, 6\]"),
    (lambda: model().train(), r"training was \[\], now it is \['', 'layer'\]"),
    (lambda: nn.ReLU(), "class was 'Scaled', now it is 'ReLU'"),
    (lambda: model().double(), "torch.float64"),
])  # fmt: skip
def test_another_model_is_refused(saved: Path, make: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(ValueError, match=f"of another model: .*{words}"):
        gst.load(saved, make())


def test_what_computes_something_else_here_is_refused(saved: Path) -> None:
    class Counts(Scaled):
        """Returns something else from call to call."""

        calls = 0

        def forward(self, given: dict[str, Any], factor: float) -> Tensor:
            self.calls += 1
            return super().forward(given, factor) + self.calls

    Counts.__qualname__ = "Scaled"
    with pytest.raises(ValueError, match="pytorch gives other outputs here: output 0 is off by"):
        gst.load(saved, Counts().eval().requires_grad_(False))


def test_other_files_and_inputs_without_a_form_are_refused(tmp_path: Path) -> None:
    torch.save({"weight": X}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"weights\.pt is no placed model"):
        gst.load(tmp_path / "weights.pt", model())
    with pytest.raises(ValueError, match="there is no such file"):
        gst.load(tmp_path / "none", model())

    class Typed(nn.Module):
        def forward(self, x: Tensor, dtype: torch.dtype) -> Tensor:
            return x.to(dtype)

    with pytest.raises(ValueError, match="an input is a dtype, which has no form in a file"):
        placed_as("pytorch", Typed(), (X, torch.float64)).save(tmp_path / "typed")
    assert not (tmp_path / "typed").exists()


@pytest.mark.e2e
@pytest.mark.slow
@needs_compiler
def test_frozen_weights_are_those_of_the_model_that_is_given(tmp_path: Path) -> None:
    mine = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval().requires_grad_(False)
    image = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
    placed_as("frozen, 1 thread", mine, image).save(tmp_path / "frozen")
    mine[0].weight.mul_(2)
    torch.testing.assert_close(gst.load(tmp_path / "frozen", mine).module()(image), mine(image))
    with pytest.raises(ValueError, match=r"call model\.eval\(\)\.requires_grad_\(False\) before you load it"):
        gst.load(tmp_path / "frozen", mine.requires_grad_(True))
