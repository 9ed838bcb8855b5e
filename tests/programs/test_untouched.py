"""What a run of the user's code changes is undone, bit for bit, and named; also after an exception and Ctrl-C."""

from __future__ import annotations

import copy
import functools
import random
from collections import OrderedDict, deque
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from gst.programs import Step, capture, capture_module, training_step
from gst.programs.untouched import untouched

COUNT, CACHE = 0, {}


@functools.lru_cache
def _table(size: int) -> torch.Tensor:
    return torch.ones(size)


class Busy(nn.Module):
    """A module that changes everything that it reaches."""

    total, shared = 0, []

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.calls = nn.Linear(2, 2), nn.BatchNorm1d(2), 0
        self.nested, self.last = {"a": {"b": [1]}}, deque([1], maxlen=1)
        self.ordered, self.names = OrderedDict(a=1, b=2), {"x"}
        self.array, self.generator, self.draws = np.zeros(3), torch.Generator(), np.random.default_rng(0)
        self.register_buffer("state", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global COUNT  # as a user's counter
        COUNT += 1
        CACHE["x"] = x
        self.calls += 1
        Busy.total += 1
        self.shared.append(x)
        self.nested["a"]["b"].append(x)
        self.last.append(2)
        self.ordered.move_to_end("a")
        self.names.add("y")
        self.array += 1
        self.state = self.state + 1
        self.train(not self.training)
        torch.rand(2, generator=self.generator), torch.rand(2), random.random(), self.draws.random(), _table(3)
        self.linear.weight.data.mul_(2)
        self.linear.bias.data = torch.ones(2)
        self.linear.register_forward_hook(print)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        x.add_(1)
        return self.norm(x)


@pytest.mark.parametrize("failure", [None, RuntimeError, KeyboardInterrupt])
def test_all_that_a_run_changes_is_as_before(failure: type[BaseException] | None) -> None:
    model, x = Busy(), torch.ones(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    gradient = model.linear.weight.grad = torch.ones(2, 2)
    before, addresses = copy.deepcopy(model.state_dict()), [each.data_ptr() for each in model.parameters()]
    version, seed, draws = model.linear.weight._version, torch.get_rng_state(), model.draws.bit_generator.state

    def step() -> None:
        model(x)
        with torch.enable_grad():
            model.linear.weight.sum().backward()
            optimizer.step()
            model.linear.weight.grad = None
        if failure is not None:
            raise failure

    for _ in range(2):
        try:
            with untouched(step, inputs=x) as state:
                step()
        except (RuntimeError, KeyboardInterrupt) as error:
            assert type(error) is failure
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert [each.data_ptr() for each in model.parameters()] == addresses
        assert (COUNT, CACHE, Busy.total, Busy.shared, model.calls) == (0, {}, 0, [], 0)
        assert (model.nested, list(model.last), list(model.ordered)) == ({"a": {"b": [1]}}, [1], ["a", "b"])
        assert model.names == {"x"} and not model.array.any() and not optimizer.state and x.eq(1).all()
        assert model.linear.weight.grad is gradient and gradient.eq(1).all() and not model.linear._forward_hooks
        assert model.training and model.linear.training and torch.is_grad_enabled()
        assert torch.get_default_dtype() is torch.float32 and model.linear.weight._version == version
        assert torch.equal(torch.get_rng_state(), seed) and model.draws.bit_generator.state == draws
        assert _table.cache_info().currsize == 0
        names = {change.name for change in state.changes}
        assert {"model.calls", "model.state", "model.nested['a']['b'][1]", "COUNT", "CACHE['x']"} <= names
        assert {"model.linear.weight", "the gradient of model.linear.weight", "Busy.total"} <= names


class Stateful(nn.Module):
    """A model that keeps something between its calls."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.hidden, self.cache, self.count = name, torch.zeros(3), {}, 0
        self.register_buffer("buffer", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "cache" in self.name:
            return x + self.cache.setdefault("cpu", x * 2)
        setattr(self, self.name, getattr(self, self.name) + 1)
        return x + getattr(self, self.name)


@pytest.mark.parametrize("name", ["hidden", r"cache\['cpu'\]", "buffer", "count"])
def test_a_capture_names_the_state_that_a_model_keeps_and_leaves_it(name: str) -> None:
    model = Stateful(name)
    with pytest.raises(ValueError, match=name) as caught:
        capture_module(model, (torch.ones(3),))
    assert "\n" not in str(caught.value)
    assert model.hidden.eq(0).all() and not model.cache and model.count == 0 and model.buffer.eq(0).all()


def test_a_buffer_that_a_training_step_replaces_is_in_the_new_state() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count = self.count + 1
            return self.weight * x

    step = training_step("counting", Counting(), lambda model, x: model(x).sum(), [torch.ones(2)])
    assert step.function(*step.inputs)[1]["count"] == 1


def _depends(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x
    return -x


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (_depends, "if x.sum() > 0:"),
        (lambda x: x[x.nonzero()[:, 0]].view(-1, 2) * 1, "x.nonzero"),
        (lambda x: x + int(x.sum()), "int(x.sum())"),
        (lambda x: x * x.max().item(), "x.max().item()"),
        (lambda x: torch.unique(x), "torch.unique(x)"),
        (lambda x: x.reshape(7, 7), "x.reshape(7, 7)"),
    ],
)
def test_a_failed_capture_names_the_line_of_the_user(function: Callable[..., object], line: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be captured.*line \d+ of test_untouched.py") as caught:
        capture(Step("mine", function, (torch.ones(4),)))
    message = str(caught.value)
    assert line in message and "GuardOnDataDependent" not in message and "u0" not in message and "\n" not in message


def test_a_snapshot_within_another_copies_only_what_changed_meanwhile() -> None:
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    with untouched(model) as outer:
        with torch.no_grad():
            model.bias.add_(1)
        with untouched(model) as inner:
            copies = [{each[0]: each[-1] for each in snapshot._contents.values()} for snapshot in (outer, inner)]
            assert copies[0]["weight"] is copies[1]["weight"] and copies[0]["bias"] is not copies[1]["bias"]
            with torch.no_grad():
                model.weight.zero_()
        assert [each.name for each in inner.changes] == ["weight"] and torch.equal(model.weight, before)
    assert [each.name for each in outer.changes] == ["bias"]


def test_a_cache_of_an_installed_package_is_cleared_and_not_named() -> None:
    from importlib.util import find_spec  # any function of a package will do

    remembering = functools.lru_cache(find_spec)
    model = nn.Linear(2, 2)
    model.register_forward_hook(lambda *_: remembering("json") and None)
    with untouched(model) as state:
        model(torch.ones(1, 2))
    assert state.changes == [] and remembering.cache_info().currsize == 0
