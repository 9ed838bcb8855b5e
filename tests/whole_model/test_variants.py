"""A model run whole: as written, compiled, frozen; never other outputs, never a stale assumption, simplest first."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gst.execution.measure import Measurement
from gst.util.compiled import compiler
from gst.whole_model import choosing
from gst.whole_model.choosing import Candidates, GuardedRun, confirmed, subject_on_cores, tried
from gst.whole_model.comparing import Guard, difference, fresh_inputs, repeats
from gst.whole_model.variants import AHEAD, COMPILED, FROZEN, PYTORCH, Variant, may_freeze, variants, whole_run

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")


class Small(nn.Module):
    """A convolution with batch normalisation and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.norm(self.convolution(x)).relu()).mean((2, 3))


@pytest.fixture
def model() -> Small:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Small().eval().requires_grad_(False)


IMAGE = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


def guarded(model: nn.Module, weights: bool = True) -> tuple[GuardedRun, list[tuple[Any, ...]]]:
    """A run that notes the calls which it takes."""
    calls: list[tuple[Any, ...]] = []

    def run(*inputs: Any) -> Any:
        calls.append(inputs)
        with torch.no_grad():
            return model(*inputs)

    return GuardedRun(model, Guard(model, (IMAGE,), weights), run), calls


def test_a_call_like_the_example_is_not_warned_of(model: Small) -> None:
    run, calls = guarded(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(run(IMAGE + 1), model(IMAGE + 1))
    assert len(calls) == 1


def halve(model: Small) -> None:
    model.convolution.weight.mul_(0.5)


@pytest.mark.parametrize(("change", "words"), [
    (lambda model: model.dropout.train(), "between training and evaluation mode"),
    (halve, "weights changed"),
    (lambda model: setattr(model.convolution.weight, "data", torch.ones(4, 3, 3, 3)), "weights changed"),
    (lambda model: setattr(model, "norm", nn.Identity()), "was replaced"),
    (lambda model: setattr(model.convolution, "bias", nn.Parameter(torch.ones(4), False)), "was replaced"),
    (lambda model: model.convolution.requires_grad_(True), "require other gradients"),
])  # fmt: skip
def test_a_model_that_changed_runs_as_written_and_says_so_once(
    model: Small, change: Callable[[Small], None], words: str
) -> None:
    run, calls = guarded(model)
    change(model)
    with pytest.warns(UserWarning, match=words):
        run(IMAGE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(IMAGE)
    assert not calls


@pytest.mark.parametrize(("call", "words"), [
    ((IMAGE[:1],), r"\(1, 3, 8, 8\)"), ((IMAGE.double(),), "float64"), ((IMAGE.clone().requires_grad_(),), "gradient"),
    ((IMAGE, IMAGE), "2 inputs, not 1"), ((2.5,), "2.5"),
])  # fmt: skip
def test_another_kind_of_call_goes_to_the_model_as_written(model: Small, call: tuple[Any, ...], words: str) -> None:
    calls: list[Any] = []
    written: list[Any] = []
    run = GuardedRun(lambda *inputs: written.append(inputs), Guard(model, (IMAGE,), False), calls.append)
    with pytest.warns(UserWarning, match=words):
        run(*call)
    assert len(written) == 1 and not calls


def test_weights_that_are_no_constants_may_change_and_an_input_that_requires_a_gradient_gets_one(model: Small) -> None:
    run, calls = guarded(model, weights=False)
    halve(model)
    run(IMAGE)
    assert len(calls) == 1
    x = IMAGE.clone().requires_grad_()
    with pytest.warns(UserWarning, match="gradient"):
        run(x).sum().backward()
    assert x.grad is not None and len(calls) == 1


def test_only_inference_that_nothing_learns_from_is_frozen(model: Small) -> None:
    assert may_freeze(model)
    model.norm.train()
    assert not may_freeze(model)
    model.eval().convolution.requires_grad_(True)
    assert not may_freeze(model)
    assert not any(variant.kind == FROZEN for variant in variants(model, 2))


def test_variants_are_the_simplest_first_on_all_cores_and_on_one(model: Small) -> None:
    threads = torch.get_num_threads()
    names = [variant.name for variant in variants(model, threads + 1)]
    assert names[:4] == [PYTORCH, COMPILED, FROZEN, AHEAD]
    assert all(Variant.named(name).name == name for name in names)
    assert Variant(AHEAD).holds_weights and Variant(FROZEN).holds_weights and not Variant(COMPILED).holds_weights
    assert f"pytorch, {threads + 1} threads" in names
    assert len(set(names)) == len(names)


def test_threads_are_as_before_after_a_call_that_fails() -> None:
    threads = torch.get_num_threads()

    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert torch.get_num_threads() == threads + 1
            raise KeyError("no such thing")

    with pytest.raises(KeyError):
        whole_run(Fails(), Variant(PYTORCH, threads + 1), (IMAGE,))(IMAGE)
    assert torch.get_num_threads() == threads


def test_fresh_inputs_lie_in_memory_as_the_examples_do() -> None:
    wide = torch.arange(12.0).reshape(3, 4)
    examples = (wide[:, :3], wide.t(), wide[:1].expand(5, 4), wide[:, ::2])
    for given, example in zip(fresh_inputs(examples, 0), examples, strict=True):
        assert (given.shape, given.stride()) == (example.shape, example.stride()) and not torch.equal(given, example)


def test_an_expanded_input_is_not_taken_for_another_one() -> None:
    row, square = torch.arange(3.0).expand(3, 3), torch.arange(9.0).reshape(3, 3)
    guard = Guard(None, (row,), weights=False)
    assert guard.reason((torch.ones(1, 3).expand(3, 3),)) is None
    assert "not those of an expanded one" in str(guard.reason((square,)))
    assert Guard(None, (square,), weights=False).reason((square.t(),)) is None, "it is copied"


def test_numbers_of_another_type_are_other_numbers() -> None:
    guard = Guard(None, (2,), weights=False)
    assert guard.reason((2,)) is None and guard.reason((2.0,)) == "input 0 is 2.0, not 2"
    assert Guard(None, (1,), weights=False).reason((True,)) == "input 0 is True, not 1"


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("kind", [pytest.param(AHEAD, marks=pytest.mark.e2e), COMPILED])
def test_compiled_code_computes_the_same_on_inputs_of_other_strides(kind: str) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU()).requires_grad_(False).eval()
    x = torch.linspace(-1, 1, 36).reshape(6, 6)
    run = whole_run(model, Variant(kind), (x,))
    for given in (x.t(), torch.cat([x, x], 1)[:, ::2]):
        torch.testing.assert_close(run(given), model(given))


def test_a_variant_with_other_outputs_and_one_that_fails_are_left_out_with_their_reasons(
    model: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(model: nn.Module, variant: Variant, *_: Any) -> Callable[..., Any]:
        if variant.kind == COMPILED:
            raise RuntimeError("no compiler\nand more")
        return model if variant.kind == PYTORCH else lambda x: model(x) * 1.01

    monkeypatch.setattr(choosing, "whole_run", made)
    found = tried(subject_on_cores(model, (IMAGE,), cores=1))
    assert set(found.runs) <= {PYTORCH, "pytorch, 1 thread"}
    assert found.reasons[COMPILED] == "RuntimeError: no compiler"
    assert "gives other outputs: output 0 is off by" in found.reasons[FROZEN]


def test_an_interrupt_keeps_what_was_found(model: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(model: nn.Module, variant: Variant, *_: Any) -> Callable[..., Any]:
        if variant.kind != PYTORCH:
            raise KeyboardInterrupt
        return model

    monkeypatch.setattr(choosing, "whole_run", made)
    found = tried(subject_on_cores(model, (IMAGE,), cores=1))
    assert PYTORCH in found.runs and found.reasons[FROZEN] == "left out: stopped before it"


def test_no_way_is_begun_when_the_time_is_up(model: Small) -> None:
    found = tried(subject_on_cores(model, (IMAGE,), cores=1), seconds=0.0)
    assert found.reasons[COMPILED] == "left out: no time to compile it"


def test_tensors_of_inference_mode_have_no_versions_to_compare() -> None:
    with torch.inference_mode():
        model, x = nn.Linear(2, 2).eval(), torch.ones(1, 2)
    assert repeats(model, (x,))
    with pytest.raises(ValueError, match="the model refuses these inputs: mat1 and mat2"):
        repeats(nn.Linear(4, 4), (torch.randn(2, 5),))


def test_the_simplest_wins_a_tie_and_the_fastest_a_race(model: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = guarded(model)

    def found(*times: float) -> Candidates:
        names = [PYTORCH, COMPILED, FROZEN][: len(times)]
        first_ms = dict(zip(names, times, strict=True))

        def measured(calls: dict[str, Any], repetitions: int, *_: Any, **__: Any) -> dict[str, Measurement]:
            noise = np.random.default_rng(0).normal(0.0, 0.1, repetitions)
            return {
                name: Measurement(name, None, tuple(first_ms[name] + noise), first_ms[name], 0.0, 0.0) for name in calls
            }

        monkeypatch.setattr(choosing, "measure", measured)
        return Candidates(dict.fromkeys(names, run), {}, first_ms)

    assert confirmed(found(4, 4), (IMAGE,), 0.0)["winner"] == PYTORCH
    result = confirmed(found(30, 20, 4), (IMAGE,), 0.0)
    assert result["winner"] == FROZEN and result["winner_ms"] < result["compiled_ms"] < result["pytorch_ms"]
    slow = found(4, 20, 40).serious()
    assert list(slow[0]) == [PYTORCH, COMPILED] and slow[1] == {FROZEN: "left out: 40.00 ms in first runs"}


def test_noise_that_hides_the_faster_way_is_answered_with_more_runs(
    model: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []

    def measured(calls: dict[str, Any], repetitions: int, *_: Any, **__: Any) -> dict[str, Measurement]:
        rounds.append(repetitions)
        written, frozen = np.full(repetitions, 10.0), np.full(repetitions, 8.0)
        frozen[1 :: 2 if len(rounds) <= 2 else repetitions] = 30.0  # three of seven runs were disturbed, then one
        return {
            name: Measurement(name, None, tuple(each), float(np.median(each)), 0.0, 0.0)
            for name, each in zip(calls, (written, frozen), strict=True)
        }

    monkeypatch.setattr(choosing, "measure", measured)
    run, _ = guarded(model)
    found = Candidates({PYTORCH: run, FROZEN: run}, {}, {PYTORCH: 10.0, FROZEN: 8.0})
    assert confirmed(found, (IMAGE,), 0.0)["winner"] == FROZEN
    assert rounds == [7, 7, 14, 14]


@pytest.mark.e2e
@pytest.mark.slow
@needs_compiler
def test_a_frozen_model_computes_what_the_model_does(model: Small) -> None:
    chosen = (Variant(FROZEN), Variant(COMPILED), Variant(AHEAD))
    runs = {variant: whole_run(model, variant, (IMAGE,)) for variant in chosen}
    assert all(difference(run, model, (IMAGE,), seed=1) is None for run in runs.values())
    stale = runs[Variant(FROZEN)](IMAGE)
    halve(model)
    for frozen in (Variant(FROZEN), Variant(AHEAD)):
        torch.testing.assert_close(runs[frozen](IMAGE), stale)  # weights are constants: why they are guarded
    torch.testing.assert_close(runs[Variant(COMPILED)](IMAGE), model(IMAGE))


def test_a_guard_reads_nested_inputs_in_the_order_of_those_that_were_placed() -> None:
    def inputs(*order: str) -> tuple[Any, ...]:
        numbers = {"a": 1.0, "b": 2.0, "c": 3.0}
        state = {
            name: {"step": torch.tensor(numbers[name]), "moment": torch.full((2,), numbers[name])} for name in order
        }
        return state, [torch.ones(3), (torch.zeros(1), None)], torch.arange(2)

    guard, placed = Guard(None, inputs("a", "b", "c"), weights=False), inputs("a", "b", "c")
    want = torch.utils._pytree.tree_leaves(placed)
    for given in (placed, inputs("c", "a", "b")):
        got = guard.leaves(given)
        assert len(got) == len(want) == 10 and guard.reason(given) is None
        assert all(one is two or bool((one == two).all()) for one, two in zip(got, want, strict=True))
    for other in (inputs("a", "b"), (*placed, 1), inputs("a", "b", "c")[::-1], ()):
        assert "structure" in str(guard.reason(other))
    placed[0]["b"]["moment"] = torch.ones(3)
    assert "not torch.float32 (2,)" in str(guard.reason(placed))


@pytest.mark.e2e
@needs_compiler
def test_dynamo_keeps_nothing_of_a_compiled_model_that_is_deleted() -> None:
    entries = torch._dynamo.eval_frame._debug_get_cache_entry_list

    class Wave(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.weight).sin()

    def released() -> list[weakref.ref[Any]]:
        model, x = Wave().eval().requires_grad_(False), torch.ones(2, 3)
        run = whole_run(model, Variant(COMPILED), (x,))
        torch.testing.assert_close(run(x), model(x))
        return [weakref.ref(model), weakref.ref(model.weight)]

    references = [each for _ in range(3) for each in released()]
    gc.collect()
    assert [each() for each in references] == [None] * 6
    assert not entries(Wave.forward.__code__), "code of deleted models"
