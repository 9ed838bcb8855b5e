"""A placed model stays a model: later changes of what its code reads are noticed, and weights and copies are kept."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import random
import time
import uuid
import warnings
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils import _pytree as pytree

import gst
from gst.placement import Settings
from gst.placement.api.placed import PlacedModule
from gst.programs import Step, as_module, capture, capture_module, training_step
from gst.whole_model.choosing import GuardedRun
from gst.whole_model.comparing import Guard

SCALE = 1.0
X = torch.linspace(-1, 1, 32).reshape(4, 8)
GENERATOR = np.random.default_rng(0)


class Read(nn.Module):
    """A model that reads state of every kind."""

    shift = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.dropout = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.5)
        self.temperature, self.table, self.scales = 1.0, torch.zeros(8), [1.0]
        self.options = {"gain": 1.0}

    def forward(self, x: Tensor) -> Tensor:
        x = (self.a(x + self.table) + self.b(x)) / self.temperature * self.scales[0]
        return self.dropout(x) * SCALE * self.options["gain"] + self.shift


@pytest.fixture
def model() -> Read:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Read().eval().requires_grad_(False)


def doubled(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return 2 * output


@pytest.mark.parametrize(("change", "name"), [
    (lambda model, patch: setattr(model, "temperature", 0.5), "temperature"),
    (lambda model, patch: model.table.fill_(1.0), "table was written to"),
    (lambda model, patch: setattr(model, "table", torch.ones(8)), "table"),
    (lambda model, patch: setattr(model.table, "data", torch.ones(8)), "table was written to"),
    (lambda model, patch: model.scales.__setitem__(0, 2.0), r"scales\[0\]"),
    (lambda model, patch: model.options.update(gain=3.0), r"options\['gain'\]"),
    (lambda model, patch: model.a.register_forward_hook(doubled), "a._forward_hooks"),
    (lambda model, patch: model.b.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,)), "b._forward_pre"),
    (lambda model, patch: setattr(model.b, "forward", lambda x: 3 * x), "b.forward"),
    (lambda model, patch: patch.setattr(Read, "shift", 1.0), "Read.shift"),
    (lambda model, patch: patch.setattr(Read, "forward", lambda self, x: x), "Read.forward"),
    (lambda model, patch: patch.setitem(globals(), "SCALE", 2.0), "SCALE"),
    (lambda model, patch: setattr(model.dropout, "p", 0.1), "dropout.p"),
    (lambda model, patch: model.double(), "another dtype"),
])  # fmt: skip
def test_a_change_of_what_the_code_reads_is_named_once(
    model: Read, change: Callable[[Read, pytest.MonkeyPatch], object], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = GuardedRun(model, Guard(model, (X,), weights=False), lambda x: x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert run(X) is X
            model(X)  # as written, it changes nothing
        model.train().eval()
        assert run(X) is X
    change(model, monkeypatch)
    x = X.to(model.a.weight.dtype)
    guard = run.guard
    assert guard is not None
    with pytest.warns(UserWarning, match=name):
        got = run(X) if x is X else model(x) if guard.change() is None else (run.warn(str(guard.change())), model(x))[1]
    assert torch.equal(got, model(x))


def test_a_step_notices_the_attributes_of_its_model(model: Read) -> None:
    step = training_step("read", model.requires_grad_(True), lambda model, x: model(x).square().mean(), (X,))
    guard = Guard(step.function, step.inputs, weights=False)
    with torch.no_grad():
        model.a.weight.zero_()  # the step has weights of its own
    step.function(*step.inputs)
    assert guard.change() is None
    model.temperature = 3.0
    assert "model.temperature" in str(guard.change())


@pytest.fixture
def placed(model: Read) -> PlacedModule:
    found = gst.place(model, X, devices="cpu:0", budget=0, seconds=5, settings=Settings(compile_step=False))
    return found.module()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])  # noqa: S301
@pytest.mark.filterwarnings("ignore:gst. it is a copy")
def test_a_placed_module_is_a_module(model: Read, placed: PlacedModule, copied: Callable[..., PlacedModule]) -> None:
    assert [f"model.{key}" for key in model.state_dict()] == list(placed.state_dict())
    assert set(placed.parameters()) == set(model.parameters())
    other = copied(placed)
    assert torch.equal(other(X), model(X)) and other.model is not model and not other.training
    with torch.no_grad():
        other.model.a.bias.add_(1)
    assert torch.equal(other(X), other.model(X)) and not torch.equal(other(X), model(X))
    zeros = {key: torch.zeros_like(value) for key, value in placed.state_dict().items()}
    assert not torch.func.functional_call(placed, zeros, (X,)).any()
    assert torch.equal(AveragedModel(placed)(X), model(X))
    placed.train()
    assert model.dropout.training and not torch.equal(placed(X), placed(X))
    placed.eval()
    assert torch.equal(placed(X), placed(X))


@pytest.mark.filterwarnings("ignore:gst")
def test_weights_of_a_model_placed_in_training_mode_get_gradients() -> None:
    module = gst.place(nn.Linear(8, 1), X, devices="cpu:0", budget=0, seconds=5, settings=Settings(compile_step=False))
    module.module()(X).sum().backward()
    assert module.model.weight.grad is not None  # type: ignore[union-attr]


@gst.placed(devices="cpu:0", seconds=5, settings=Settings(compile_step=False))
def halves(x: Tensor) -> Tensor:
    return x / 2


def test_a_decorated_function_is_copied_and_pickled_as_a_function() -> None:
    assert copy.deepcopy({"step": halves})["step"] is halves and pickle.loads(pickle.dumps(halves)) is halves  # noqa: S301
    other = gst.placed(nn.Linear(2, 2).forward)
    assert copy.deepcopy(other) is not other


# Clocks, files and random numbers outside of PyTorch -----------------------------------------------------------------

perf_counter = time.perf_counter


def _iterated(values: Any = itertools.count()) -> float:  # noqa: B008  (state that calls share)
    return float(next(values))


READS: dict[str, Callable[[], Any]] = {
    "random.random": random.random,
    "random.uniform": lambda: random.uniform(0, 1),
    "random numbers of NumPy": np.random.rand,
    "random numbers of GENERATOR": lambda: GENERATOR.random(),
    "random numbers of draw": random.Random(0).random,
    "os.urandom": lambda: os.urandom(1)[0],
    "os.urandom [(]": lambda: np.random.default_rng().random(),
    "random.Random.seed": lambda: random.Random().random(),
    "time.perf_counter_ns": lambda: time.perf_counter_ns() % 7,
    "time.perf_counter": lambda: perf_counter(),
    "time.time": partial(lambda: time.time()),
    "datetime.now": lambda: datetime.now().microsecond,
    "os.urandom [(]line": lambda: uuid.uuid4().int % 7,
    "os.environ": lambda: len(os.environ.get("HOME", "")),
    "open": lambda: len(Path(__file__).read_text()),
    "values of the iterator": _iterated,
}


@pytest.mark.parametrize("name", READS)
def test_a_step_that_reads_what_is_no_input_is_refused_by_name(name: str) -> None:
    draw, states = READS[name], (GENERATOR.bit_generator.state, os.urandom, open)
    with pytest.raises(ValueError, match=rf"reads .*({name}).*give it as an input"):
        capture(Step("noisy", lambda x: x * 2 if draw() < 0 else x, (X,)))
    assert (GENERATOR.bit_generator.state, os.urandom, open) == states


def test_numbers_that_are_the_same_in_each_run_are_no_reads_from_outside() -> None:
    def fixed(x: Tensor) -> Tensor:
        warnings.warn("reads lines of files", stacklevel=1)
        return x * random.Random(0).random() * float(np.random.default_rng(0).random())

    with pytest.warns(UserWarning, match="lines"):
        assert capture(Step("fixed", fixed, (X,))).num_nodes


def test_a_rare_draw_is_made_at_each_call_of_a_placed_function(monkeypatch: pytest.MonkeyPatch) -> None:
    @gst.placed(devices="cpu:0", budget=0, seconds=5)
    def noisy(x: Tensor) -> Tensor:
        return x * (2.0 if random.random() < 0.02 else 1.0)

    assert len({float(noisy(X).sum().abs() + noisy(X).abs().sum()) for _ in range(300)}) > 1
    assert noisy.placed is not None and noisy.placed.winner == "pytorch"


# Modules of PyTorch that keep books of their own ---------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, of: type[nn.RNNBase]) -> None:
        super().__init__()
        self.recurrent, self.last = of(8, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.recurrent(x[:, None].expand(-1, 3, -1))[0][:, -1])


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
@pytest.mark.parametrize("make", [
    partial(Recurrent, nn.LSTM), partial(Recurrent, nn.GRU), partial(Recurrent, nn.RNN),
    lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 1))), lambda: nn.utils.spectral_norm(nn.Linear(8, 1)),
    lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 1)),
], ids=["LSTM", "GRU", "RNN", "weight norm", "spectral norm", "parametrized"])  # fmt: skip
def test_what_pytorch_computes_from_weights_is_no_change_of_the_user(make: Callable[[], nn.Module]) -> None:
    model, y = make().train(), torch.ones(4, 1)
    step = training_step("step", model, lambda model, x, y: (model(x) - y).square().mean(), (X, y))
    program, before = capture(step), Guard(step.function, step.inputs, weights=False)
    flat = pytree.tree_leaves(step.inputs)
    torch.testing.assert_close(as_module(program)(*flat)[0], step.function(*step.inputs)[0])
    state = step.inputs[0]
    for _ in range(3):
        _, state = step.function(state, X, y)
    assert before.change() is None
    model.eval().requires_grad_(False)
    assert capture_module(model, (X,)).num_nodes


def test_advice_names_nothing_that_the_user_did() -> None:
    class Counting(nn.Linear):
        count = 0

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return super().forward(x)

    step = training_step("counting", Counting(8, 1), lambda model, x: model(x).sum(), (X,))
    with pytest.raises(ValueError, match="count") as caught:
        capture(step)
    assert "training_step" not in str(caught.value)
