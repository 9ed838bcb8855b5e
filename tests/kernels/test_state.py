"""Steps whose state stays in place: losses beside those of the step as written, resumed, and with other batches."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gst
from gst.kernels import inductor
from gst.kernels.program import KernelProgram
from gst.kernels.run import Run
from gst.kernels.state import StepInPlace
from gst.placement.api.placed import Placed
from gst.placement.planning import Settings
from gst.programs import Step, TrainingStep, training_step


def batch(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 6, generator=generator)
    return x, (x.sum(1) > 0).long()


def network(optimizer: str = "adam", **settings: Any) -> TrainingStep:
    torch.manual_seed(0)
    # The gradient of a bias before BatchNorm is rounding alone, by which Adam would move it like any other.
    model = nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 2))
    loss = lambda model, x, y: nn.functional.cross_entropy(model(x), y)  # noqa: E731
    return training_step("net", model, loss, batch(8, 0), optimizer, **{"rate": 0.01, **settings})


@pytest.mark.parametrize("optimizer", ["momentum", pytest.param("adam", marks=pytest.mark.e2e)])
def test_losses_of_many_steps_are_those_of_the_step_as_written(optimizer: str) -> None:
    step = network(optimizer)
    placed, state = StepInPlace(step), step.inputs[0]
    assert not placed.reason
    addresses = {key: value.data_ptr() for key, value in placed.state.items()}
    for number in range(60):
        data = batch(8, number)
        loss, state = step.function(state, *data)
        torch.testing.assert_close(placed(*data), loss, rtol=1e-4, atol=1e-6)
    for key, value in placed.state_dict().items():
        torch.testing.assert_close(value, state[key], rtol=1e-3, atol=1e-5)
    assert addresses == {key: value.data_ptr() for key, value in placed.state.items()}


@pytest.mark.e2e
def test_steps_that_a_plan_takes_to_time_them_leave_no_trace() -> None:
    def timed(kernels: KernelProgram, given: Sequence[Tensor]) -> Run:
        run = Run(kernels, given=given)
        for _ in range(3):
            run()
        return run

    step = network("momentum")
    placed, state = StepInPlace(step, plan=timed), step.inputs[0]
    assert all(torch.equal(placed.state[key], state[key]) for key in state)
    loss, _ = step.function(state, *batch(8, 3))
    torch.testing.assert_close(placed(*batch(8, 3)), loss, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_no_call_copies_state() -> None:
    """The update is written by the kernels that compute it: the step has as many calls as one that returns it."""
    from gst.kernels.inductor import kernel_program
    from gst.programs import as_module, capture

    step = network("momentum")
    program = capture(step)
    returned = kernel_program(as_module(program), program.inputs)
    code = next(iter(StepInPlace(step)._code.values()))
    in_place = code._call.program  # type: ignore[attr-defined]
    assert in_place.num_kernels <= returned.num_kernels
    assert not [kernel.name for kernel in in_place.kernels if "copy" in kernel.name and kernel.kind == "operator"]


@pytest.mark.e2e
def test_a_learning_rate_that_is_a_tensor_is_part_of_the_state() -> None:
    step = network("sgd", rate=torch.tensor(0.1))
    placed = StepInPlace(step)
    placed.state["rate"].fill_(0.0)
    before = {key: value.clone() for key, value in placed.state.items()}
    placed(*batch(8, 1))
    trained = [key for key in before if "weight" in key]
    assert all(torch.equal(placed.state[key], before[key]) for key in trained)
    placed.load_state_dict({**placed.state, "rate": torch.tensor(0.5)})
    placed(*batch(8, 1))
    assert not all(torch.equal(placed.state[key], before[key]) for key in trained)


@pytest.mark.e2e
def test_adamw_with_clipping_and_a_schedule_is_the_ordinary_loop() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    ordinary = deepcopy(model)
    loss_of = lambda model, x, y: nn.functional.cross_entropy(model(x), y)  # noqa: E731
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.05, weight_decay=0.1) for each in (model, ordinary)]
    step = training_step("net", model, loss_of, batch(8, 0), optimizers[0], max_norm=0.1)
    placed = gst.place(step, devices="cpu:0", budget=0, settings=Settings(repetitions=1, compile_step=False))
    optimizers[0].param_groups[0]["lr"] = placed.step.state["rate"]
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(each, 4) for each in optimizers]
    for number in range(6):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # also that of a schedule whose optimizer takes no steps
            loss = placed.step(*batch(8, number))
            schedules[0].step()
        optimizers[1].zero_grad()
        want = loss_of(ordinary, *batch(8, number))
        want.backward()
        nn.utils.clip_grad_norm_(ordinary.parameters(), 0.1)
        optimizers[1].step()
        schedules[1].step()
        torch.testing.assert_close(loss, want.detach())
    for key, value in ordinary.named_parameters():
        torch.testing.assert_close(placed.step.state[key], value.detach(), rtol=1e-5, atol=1e-6)
    assert len(placed.step._code) == 1


@pytest.mark.e2e
def test_another_size_of_batch_trains_the_same_state_which_is_saved_and_resumed(tmp_path: Path) -> None:
    step = network("momentum")
    placed, resumed, state = StepInPlace(step), StepInPlace(step), step.inputs[0]
    for number, rows in enumerate([8, 5, 8, 5, 8]):
        data = batch(rows, number)
        placed._compile_s *= number < 3  # then its time is up
        loss, state = step.function(state, *data)
        torch.testing.assert_close(placed(*data), loss, rtol=1e-4, atol=1e-6)
        assert len(placed._code) == 1 + (number >= 3)
    torch.save(placed.state_dict(), tmp_path / "half.pt")
    resumed.load_state_dict(torch.load(tmp_path / "half.pt"))
    assert all(placed(*batch(8, number)) == resumed(*batch(8, number)) for number in range(4))


def test_states_that_change_places_are_read_before_they_are_written() -> None:
    def swap(state: dict[str, Tensor], x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        new = {"a": state["b"], "b": state["a"].t(), "c": state["c"], "d": state["a"] + state["d"]}
        return x + state["a"].sum(), new

    state = {key: torch.arange(9.0).view(3, 3) * factor for factor, key in enumerate("abcd", 1)}
    placed = StepInPlace(Step("swap", swap, (state, torch.ones(2))))
    for _ in range(3):
        want, state = swap(state, torch.ones(2))
        torch.testing.assert_close(placed(torch.ones(2)), want)
        assert all(torch.equal(placed.state[key], state[key]) for key in state)


def test_an_unknown_version_of_pytorch_runs_steps_compiled_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = inductor.unsupported("9.1.0")
    monkeypatch.setattr(inductor, "unsupported", lambda: reason)
    step = network("momentum")
    placed, state = StepInPlace(step), step.inputs[0]
    assert placed.reason == reason and "torch 9.1.0" in reason
    for number in range(3):
        loss, state = step.function(state, *batch(8, number))
        torch.testing.assert_close(placed(*batch(8, number)), loss, rtol=1e-4, atol=1e-6)


def test_each_size_of_batch_is_compiled_with_a_line_and_within_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    step = network("momentum")
    with pytest.warns(UserWarning, match="'net' runs as written; a batch of .* was not compiled within 0.01 s"):
        placed, state = StepInPlace(step, seconds=0.01), step.inputs[0]
    assert "gst: compiling step 'net' for a batch of (8, 6) and (8,)" in capsys.readouterr().err
    for number in range(3):
        loss, state = step.function(state, *batch(8, number))
        torch.testing.assert_close(placed(*batch(8, number)), loss, rtol=1e-4, atol=1e-6)
    assert "compiling" not in capsys.readouterr().err, "once for each size"


def test_a_smaller_last_batch_is_not_compiled_and_trains_the_same_state(capsys: pytest.CaptureFixture[str]) -> None:
    step = network("momentum")
    with pytest.warns(UserWarning, match="not compiled within"):
        placed, state = StepInPlace(step, seconds=0.01), step.inputs[0]
    placed._compile_s = 1e9
    addresses = {key: value.data_ptr() for key, value in placed.state.items()}
    capsys.readouterr()
    for number, rows in enumerate([8, 3, 8, 3, 2]):
        loss, state = step.function(state, *batch(rows, number))
        torch.testing.assert_close(placed(*batch(rows, number)), loss, rtol=1e-4, atol=1e-6)
    for key, value in placed.state.items():
        torch.testing.assert_close(value, state[key], rtol=1e-4, atol=1e-6)
        assert value.data_ptr() == addresses[key] and not value.requires_grad
    said = capsys.readouterr().err
    assert said.count("runs as written on a batch of (3, 6) and (3,)") == said.count("drop_last") == 1
    assert "compiling step" not in said
    with pytest.raises((RuntimeError, ValueError), match=r"dtype|float"):
        placed(batch(3, 0)[0].double(), batch(3, 0)[1])


def test_a_step_that_is_faster_as_written_runs_as_written() -> None:
    def slow(kernels: KernelProgram, given: Sequence[Tensor]) -> Any:
        run = Run(kernels, given=given)
        return lambda: (time.sleep(0.1), run())[1]

    step = network("momentum")
    placed, state = StepInPlace(step, plan=slow), step.inputs[0]
    assert placed.reason.startswith("as written it takes") and " ms, compiled 1" in placed.reason
    loss, state = step.function(state, *batch(8, 0))
    torch.testing.assert_close(placed(*batch(8, 0)), loss)
    assert all(torch.equal(placed.state[key], state[key]) for key in state)


def test_errors_say_what_is_wanted() -> None:
    with pytest.raises(ValueError, match="'double' has no state: its first input has to be a dictionary"):
        StepInPlace(Step("double", lambda x: x + x, (torch.ones(2),)))
    with pytest.raises(ValueError, match=r"'lost' renews no state.*training_step"):
        StepInPlace(Step("lost", lambda state, x: x + state["a"], ({"a": torch.ones(2)}, torch.ones(2))))
    placed = StepInPlace(network("momentum"))
    with pytest.raises(ValueError, match=r"differ in 1\.bias"):
        placed.load_state_dict({key: value for key, value in placed.state.items() if key != "1.bias"})
    with pytest.raises(ValueError, match=r"'1.bias' of the state to load has shape \(3,\); want \(16,\)"):
        placed.load_state_dict({**placed.state, "1.bias": torch.ones(3)})
    with pytest.raises(ValueError, match="a batch holds a str; want tensors"):
        placed("x", torch.ones(2))


def test_a_placed_step_is_called_with_batches_alone() -> None:
    step = network("momentum")
    placed = Placed(step, step.inputs, (), {}, {}, {})
    state = step.inputs[0]
    for number in range(3):
        loss, state = step.function(state, *batch(8, number))
        torch.testing.assert_close(placed.step(*batch(8, number)), loss, rtol=1e-4, atol=1e-6)
    assert placed.step is placed.step
    with pytest.raises(ValueError, match="a model was placed; want a step that renews its state"):
        _ = Placed(nn.ReLU(), (), (), {}, {}, {}).step
