"""Somebody's own model placed in five lines: it computes what it computed, also with other weights and inputs."""

from __future__ import annotations

import copy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import gst
from gst.execution.executor import GraphExecutor
from gst.execution.measure import Log
from gst.machine.devices import discover, usable_cores
from gst.placement.api import placed as placed_module
from gst.placement.api.placed import Placed
from gst.placement.planning import Settings
from gst.programs import Step, training_step
from gst.reporting.headline import conditions, headline
from gst.util.compiled import compiler
from tests.execution.recorded import Recorder

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
EXAMPLE, OTHER = torch.linspace(-1, 1, 64).reshape(4, 16), torch.linspace(0, 2, 64).reshape(4, 16)
QUICK = Settings(evaluations=100, methods=("annealing",), repetitions=5, patience_s=0.0, compile_step=False)


class Branches(nn.Module):
    """Three towers whose results are added."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([tower(x) for tower in self.towers]).sum(0)


@pytest.fixture
def model() -> Branches:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Branches().eval()


@pytest.fixture(scope="module")
def branches() -> tuple[Branches, Placed]:
    """A model and its placement, with one plan measured in the search."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Branches().eval()
    return model, gst.place(model, EXAMPLE, devices=["cpu:0"], budget=1, settings=QUICK, seconds=None)


@pytest.mark.slow
@needs_compiler
def test_a_placed_model_computes_what_it_computed(branches: tuple[Branches, Placed]) -> None:
    (model, placed), other = branches, OTHER
    module = placed.module("plan")
    torch.testing.assert_close(module(other), model(other))
    with torch.no_grad():
        model.towers[0][0].weight.mul_(2)  # trained on meanwhile
    torch.testing.assert_close(module(other), model(other))
    with pytest.warns(UserWarning, match=r"input 0 is torch.float32 \(5, 16\) on cpu, not"):
        torch.testing.assert_close(module(torch.zeros(5, 16)), model(torch.zeros(5, 16)))
    module.close()
    words = placed.explain()
    assert "cpu:0" in words and "ms" in words and "relu" in words
    assert placed.result["plans"]["pytorch"]["median_ms"] > 0


@needs_compiler
def test_a_plan_that_runs_by_graphs_sees_new_inputs_and_weights(
    branches: tuple[Branches, Placed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory of the CPU stands for that of an accelerator."""
    (model, placed), example, other = branches, EXAMPLE, OTHER
    monkeypatch.setattr(
        placed_module, "executor", lambda program, devices: GraphExecutor(program, devices, {0}, Recorder())
    )
    module = placed.module("plan")
    first = module(example)
    for _ in range(2):
        torch.testing.assert_close(module(other), model(other))
        with torch.no_grad():
            model.towers[1][0].weight.mul_(2)
    assert not torch.equal(first, model(example)), "weights changed, and what was returned before did not"
    module.close()


@needs_compiler
def test_what_was_measured_to_be_fastest_is_what_runs(branches: tuple[Branches, Placed]) -> None:
    (model, placed), other = branches, OTHER
    assert placed.result["plans"]["compiled"]["reason"] == "left out, as asked"
    assert placed.result["winner_ms"] <= placed.result["pytorch_ms"], "never slower than what the user had"
    with pytest.raises(ValueError, match="no variant 'compiled'"):
        placed.module("compiled")
    for winner, run in (("pytorch", "pytorch"), (placed.result["best"], "plan")):
        chosen = replace(placed, result=placed.result | {"winner": winner})
        module = chosen.module()
        torch.testing.assert_close(module(other), model(other))
        assert chosen.winner == module.run == run and not module(other).requires_grad
        with pytest.warns(UserWarning, match="such calls run the model as written"):
            torch.testing.assert_close(module(torch.zeros(5, 16)), model(torch.zeros(5, 16)))


@pytest.mark.slow
@needs_compiler
def test_a_training_step_is_placed_too(model: Branches) -> None:
    data = torch.linspace(-1, 1, 64).reshape(4, 16)
    step = training_step("branches", model, lambda m, x: m(x).square().mean(), [data])
    placed = gst.place(step, devices=["cpu:0"], budget=0, settings=QUICK)
    loss, state = placed.module()(*step.inputs)
    want_loss, want_state = step.function(*step.inputs)
    torch.testing.assert_close(loss, want_loss)
    torch.testing.assert_close(state, want_state)


def test_a_step_is_compared_with_its_ordinary_loop_which_leaves_the_model(model: Branches) -> None:
    loss_of = lambda model, x: model(x).square().mean()  # noqa: E731
    before = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
    step = training_step("branches", model, loss_of, [EXAMPLE], optimizer, max_norm=0.1)
    state, loop = step.inputs[0], step.ordinary(torch.device("cpu"))  # type: ignore[misc]
    for _ in range(4):
        loss, state = step.function(state, EXAMPLE)
        torch.testing.assert_close(loop(EXAMPLE), loss)
    placed = gst.place(step, devices="cpu:0", budget=0, settings=QUICK, seconds=5)
    assert placed.result["plans"]["ordinary loop"]["again_median_ms"] > 0
    assert "ordinary loop: " in placed.explain() and "ordinary loop" not in placed.runs
    assert all(torch.equal(one, other) for one, other in zip(before.parameters(), model.parameters(), strict=True))
    assert not optimizer.state and all(value.grad is None for value in model.parameters())

    add = Step("add", lambda state: (state["a"].sum(), {"a": state["a"] + 1}), ({"a": EXAMPLE},))
    pure = gst.place(add, devices="cpu:0", budget=0, settings=QUICK, seconds=5)
    assert pure.result["plans"]["ordinary loop"]["reason"].startswith("left out: the step is a function")
    assert headline(pure.result).startswith("No plan beat the step")
    assert "the step as written" in conditions(pure.result)


@pytest.mark.e2e
@pytest.mark.slow
@needs_compiler
def test_a_training_step_runs_compiled_and_from_a_file(model: Branches, tmp_path: Path) -> None:
    data = torch.linspace(-1, 1, 64).reshape(4, 16)
    step = training_step("branches", model, lambda m, x: m(x).square().mean(), [data], optimizer="adam")
    placed = gst.place(step, devices=["cpu:0"], budget=0, settings=replace(QUICK, compile_step=True))
    placed = replace(placed, result=placed.result | {"winner": "compiled"})
    _, state = step.function(*step.inputs)
    placed.save(tmp_path / "step.placed")
    for each in (placed, gst.load(tmp_path / "step.placed", step)):
        module = each.module()
        assert module.run == "compiled"
        torch.testing.assert_close(module(state, data + 1), step.function(state, data + 1))
        with pytest.warns(UserWarning, match="such calls run the model as written"):
            module(state, data[:2])


@needs_compiler
def test_inputs_are_known_by_name_and_laid_out_as_captured() -> None:
    class Named(nn.Module):
        def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
            return given["a"].flatten() - 2 * given["b"].flatten()

    model, threads = Named(), torch.get_num_threads()
    a, b = torch.arange(12.0).reshape(3, 4), torch.ones(3, 4)
    placed = gst.place(model, ({"a": a, "b": b},), devices=["cpu:0"], budget=0, settings=QUICK, seconds=None)
    module = placed.module("plan")
    torch.testing.assert_close(module({"b": b, "a": a}), model({"a": a, "b": b}))
    assert torch.get_num_threads() == threads, "what else the caller computes"
    columns = a.T.contiguous().T  # the same numbers, column by column
    torch.testing.assert_close(module({"a": columns, "b": b}), model({"a": columns, "b": b}))
    with pytest.warns(UserWarning, match="another structure"), pytest.raises(KeyError):
        module({"a": a, "c": b})
    with ThreadPoolExecutor(4) as several:  # callers take turns
        results = list(several.map(lambda factor: module({"a": factor * a, "b": b}), range(40)))
    for factor, result in enumerate(results):
        torch.testing.assert_close(result, model({"a": factor * a, "b": b}))
    module.close()
    assert torch.get_num_threads() == threads


def test_where_no_plan_can_win_none_is_made(model: Branches) -> None:
    example = torch.linspace(-1, 1, 64).reshape(4, 16)
    placed = gst.place(model, example, devices=["cpu:0"], settings=QUICK)
    assert placed.plan is None and placed.winner in placed.runs
    module = placed.module()
    torch.testing.assert_close(module(example + 1), model(example + 1))
    words = placed.explain()
    assert "no plan was made" in words and "compiled: left out, as asked" in words
    with pytest.raises(ValueError, match=r"there is no plan of it: .*place it with seconds=None"):
        placed.module("plan")
    with pytest.raises(ValueError, match="there is no variant 'fastest' of it; there are pytorch"):
        placed.module("fastest")


def test_ctrl_c_while_plans_are_measured_keeps_the_model(model: Branches, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gst.placement.api.place.place_measured", stopped)
    placed = gst.place(model, torch.zeros(4, 16), devices=["cpu:0"], settings=QUICK, seconds=None)
    assert placed.winner in placed.runs and "stopped before" in placed.explain()
    step = training_step("branches", model, lambda m, x: m(x).mean(), [torch.zeros(4, 16)])
    placed = gst.place(step, devices=["cpu:0"], settings=QUICK, seconds=None)
    assert placed.winner in placed.runs and "stopped before" in placed.explain()


def test_plans_for_single_cores_are_judged_by_all_of_them(model: Branches, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def no_headroom(found: object, devices: object, cores: int, *_: object) -> str:
        asked.append(cores)
        return "no plan is wanted"

    monkeypatch.setattr("gst.placement.api.place.no_headroom", no_headroom)
    for names, cores in ((["cpu:0"], 1), (["cpu:0", "cpu:1"], 2), (["cpu:0", "cpu:1", "cpu:0-1"], 2)):
        if set(names) <= {device.name for device in discover()}:
            gst.place(model, torch.zeros(4, 16), devices=names, settings=QUICK)
            assert asked.pop() == cores


@pytest.mark.e2e
@pytest.mark.slow
@needs_compiler
@pytest.mark.skipif(len(usable_cores()) < 2, reason="this machine has one core")
def test_the_same_call_goes_on_with_what_was_found_in_other_seconds(
    model: Branches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gst.placement.api.place.no_headroom", lambda *_: "")
    many = replace(QUICK, evaluations=10**6, methods=("annealing",))
    for seconds in (8.0, 16.0):  # more seconds would be more evaluations, and another search
        gst.place(model, torch.zeros(4, 16), "cpu:0,cpu:1", 1, tmp_path, settings=many, seconds=seconds)
    (search,) = Log(tmp_path / "searches.jsonl").read()
    assert search["evaluations"] < 10**5


def test_a_plan_that_cannot_be_made_costs_no_way_that_was(model: Branches, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ValueError("there is no operator mine.relu; import the module that registers it")

    monkeypatch.setattr("gst.placement.api.place.place_measured", fails)
    monkeypatch.setattr("gst.placement.api.place.no_headroom", lambda *_: "")
    placed = gst.place(model, torch.zeros(4, 16), devices=["cpu:0"], settings=QUICK)
    assert placed.winner in placed.runs and "no plan was made: there is no operator mine.relu" in placed.explain()
    with pytest.raises(ValueError, match="there is no operator"):  # a limit that nothing but a plan keeps
        gst.place(model, torch.zeros(4, 16), devices=["cpu:0"], settings=QUICK, memory_limit=2**30)


def test_a_model_that_cannot_be_captured_runs_whole_if_it_is_a_pure_function() -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.sum() > 0 else x - 1

    placed = gst.place(Branching(), torch.ones(3), devices=["cpu:0"], settings=QUICK, seconds=None)
    torch.testing.assert_close(placed.module()(-torch.ones(3)), -2 * torch.ones(3))
    assert "cannot be captured" in placed.explain()
    with pytest.raises(ValueError, match="draws random numbers"):
        gst.place(nn.Dropout(), torch.ones(99), devices=["cpu:0"])


def test_a_time_that_is_none_is_refused(model: Branches) -> None:
    with pytest.raises(ValueError, match="seconds is 0; want more than 0, or None"):
        gst.place(model, torch.zeros(4, 16), devices=["cpu:0"], seconds=0)


def test_what_is_no_model_or_no_device_is_refused(model: Branches) -> None:
    with pytest.raises(ValueError, match=r"got a str to place; want a torch\.nn\.Module"):
        gst.place("rnnlm", devices=["cpu:0"])
    with pytest.raises(ValueError, match=r"no device 'tpu:0' here; .* sets of cores"):
        gst.place(model, torch.zeros(4, 16), devices="cpu:0,tpu:0")


RUNNING = """
import torch, gst
from torch import nn
from gst.placement.planning import Settings
from gst.util.progress import no_progress

model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval().requires_grad_(False)
x, quick = torch.ones(8, 16), Settings(compile_step=False, patience_s=0.0, evaluations=0)
placed = gst.place(model, x, "cpu:0", 0, settings=quick, progress=no_progress, seconds=None)
run = placed.module("plan")
kept = [run, placed, run(x)]
"""


@pytest.mark.e2e
def test_python_ends_quietly_while_a_plan_has_threads() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", RUNNING], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and not done.stderr, done.stderr
