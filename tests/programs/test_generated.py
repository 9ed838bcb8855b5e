"""Random programs do under gst what they do under PyTorch, or are refused in one line. A failure shows its program;
hypothesis would take minutes to make it smaller."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject
from torch import nn

from gst.machine.devices import usable_cores
from tests.programs.generator import CALLS, RUNNERS, Trial, difference, is_valid, source

needs_two_cores = pytest.mark.skipif(len(usable_cores()) < 2, reason="plans use two cores, this machine has one")


def check(trial: Trial, name: str) -> None:
    """Compare a program under one of the runners with PyTorch; a refusal has one line."""
    gradients = trial.training and name == "backend"
    if not is_valid(trial, gradients):
        return
    try:
        found = difference(trial, RUNNERS[name], gradients)
    except ValueError as error:
        assert "\n" not in str(error) and str(error), trial.text
        return
    assert not found, f"{found}\n{trial.layout}, training: {trial.training}\n{trial.text}"


@pytest.mark.parametrize("name", ["place", "placed"])
@settings(max_examples=7, phases=(Phase.generate,))
@given(data=st.data())
def test_placed_programs_and_functions_are_those_as_written(name: str, data: DataObject) -> None:
    check(source(lambda count: data.draw(st.integers(0, count - 1))), name)


PLANNED = [pytest.param("plan", seed, marks=needs_two_cores) for seed in range(4)]


@pytest.mark.e2e
@pytest.mark.parametrize(("name", "seed"), [*(("backend", seed) for seed in range(8)), *PLANNED])
def test_compiled_and_planned_programs_are_those_as_written(name: str, seed: int) -> None:
    check(source(random.Random(seed).randrange), name)


def test_a_wrong_result_is_found() -> None:
    trial = source(random.Random(1).randrange)
    count = iter(range(CALLS))

    def wrong_once(model: nn.Module, _: object) -> Callable[..., Any]:
        return lambda x, *others: model(x + (next(count) == 3), *others)

    assert is_valid(trial, False) and difference(trial, wrong_once, False).startswith("call 3, outputs")
