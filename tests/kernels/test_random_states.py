"""Laws of steps in place: a value of the step before is read before it is written, whatever a compiler leaves out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from gst.kernels import state as module
from gst.kernels.state import StepInPlace
from gst.programs import Step
from tests.kernels.states import Dropping, source, step_of, wrong


@pytest.fixture
def drops_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(self: StepInPlace, graph: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[[], list[Any]]:
        return torch.no_grad()(lambda: list(Dropping(graph).run(*inputs)))

    monkeypatch.setattr(StepInPlace, "_call", call)


@pytest.mark.usefixtures("drops_copies")
@pytest.mark.parametrize("without", ["_difference", "late"])
def test_random_states_are_those_of_the_step_as_written(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of reads and writes is right without the comparison, and the comparison finds each wrong order."""
    if without == "late":
        monkeypatch.setattr(module, "late", lambda program, pairs: [])
    else:
        monkeypatch.setattr(StepInPlace, without, lambda *_: "")
    for seed in range(25):
        text = source(random.Random(seed).randrange)
        assert not (found := wrong(step_of(text))), f"{found}\n{text}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_compiled_random_states_are_those_of_the_step_as_written(seed: int) -> None:
    text = source(random.Random(seed).randrange)
    assert not (found := wrong(step_of(text))), f"{found}\n{text}"


@pytest.mark.usefixtures("drops_copies")
def test_only_states_whose_old_value_is_taken_over_are_written_after_the_step() -> None:
    from gst.programs import capture, training_step

    loss = lambda model, x: model(x).square().mean()  # noqa: E731
    for optimizer in ("sgd", "momentum", "adam"):
        step = training_step("line", torch.nn.Linear(2, 1), loss, (torch.ones(4, 2),), optimizer)
        program = capture(step)
        assert not module.late(program, module.state_pairs(step, program))
    step = Step("two", lambda state, x: (x.sum(), {"now": state["now"] - x, "old": state["now"]}), (
        {"now": torch.zeros(2), "old": torch.zeros(2)}, torch.ones(2)))  # fmt: skip
    program = capture(step)
    assert module.late(program, module.state_pairs(step, program)) == [(1, 0)]


@pytest.mark.usefixtures("drops_copies")
def test_a_step_that_no_code_computes_runs_as_written_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(self: StepInPlace, graph: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[[], list[Any]]:
        return torch.no_grad()(lambda: [each + 1 for each in graph(*inputs)])

    monkeypatch.setattr(StepInPlace, "_call", off)
    text = source(random.Random(3).randrange)
    with pytest.warns(UserWarning, match="step 'random' runs as written; compiled it gives other results: output 0"):
        assert not wrong(step_of(text))


@pytest.mark.parametrize(("key", "new", "words"), [
    ("n", lambda state: state["n"] + 0.5, r"'n' of its state in place: it is torch.int64 \(\) and becomes torch.fl"),
    ("n", lambda state: state["n"].expand(3), r"it is torch.int64 \(\) and becomes torch.int64 \(3,\); keep its shape"),
    ("n", lambda _: 3, "and becomes a int; keep"),
])  # fmt: skip
def test_a_state_that_changes_its_form_is_refused(key: str, new: Callable[..., Any], words: str) -> None:
    step = Step("grows", lambda state, x: (x.sum(), {key: new(state)}), ({key: torch.tensor(1)}, torch.ones(2)))
    with pytest.raises(ValueError, match=words):
        StepInPlace(step)


def test_a_state_of_dictionaries_is_refused() -> None:
    step = Step("nested", lambda state, x: (x.sum(), state), ({"w": {"a": torch.ones(2)}}, torch.ones(2)))
    with pytest.raises(ValueError, match="'nested' has no state: its first input has to be a dictionary of tensors"):
        StepInPlace(step)
