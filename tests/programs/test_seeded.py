"""Dropout from a seed: a pure function, the same as written, captured, saved and on two cores, with the right mask."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from gst.execution.executor import executor
from gst.lowering.calls import eager
from gst.lowering.plan import Plan
from gst.machine.devices import discover
from gst.programs import Program, Step, TrainingStep, as_module, capture, drawn_from, outputs_differ, training_step
from gst.programs.step import unseeded
from gst.util.compiled import compiler

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
MANY = torch.ones(40_000)


@pytest.fixture(scope="module")
def step() -> TrainingStep:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.4, batch_first=True)  # attention with dropout as well
        model, x = nn.Sequential(layer, nn.Dropout(0.5), nn.Linear(8, 2)), torch.randn(3, 4, 8)
    return training_step("dropped", model, lambda m, x: m(x).square().mean(), [x], "momentum", seed=7)


@pytest.fixture(scope="module")
def program(step: TrainingStep) -> Program:
    return capture(step)


def drawn(function: Callable[[], Tensor], seed: int) -> Tensor:
    with drawn_from(torch.tensor(seed)):
        return function()


def test_the_captured_step_computes_what_the_step_as_written_does(step: TrainingStep, program: Program) -> None:
    before = torch.get_rng_state()
    want = pytree.tree_leaves(step.function(*step.inputs))
    assert torch.equal(torch.get_rng_state(), before), "the generator of the process is left alone"
    assert outputs_differ(eager(program), want) is None
    assert outputs_differ(eager(program), want) is None, "the same seed, the same numbers"
    draws = [each for each in program.operations if str(each.target).startswith("gst.")]
    assert [each.args[1] for each in draws] == list(range(5)), "attention, three of the layer, one more"


def test_the_next_step_has_another_seed_and_another_mask() -> None:
    frozen = training_step("still", _Dropped(), _sum, [MANY], rate=0.0, seed=3)
    loss, state = frozen.function(*frozen.inputs)
    other, later = frozen.function(state, MANY)
    assert (int(state["random/seed"]), int(later["random/seed"])) == (4, 5) and loss != other
    assert torch.equal(frozen.function(*frozen.inputs)[0], loss)


class _Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(self.weight * x, 0.3)


def _sum(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).sum()


def test_the_gradient_has_the_mask_of_the_forward_pass() -> None:
    x = MANY.clone().requires_grad_()
    y = drawn(lambda: functional.dropout(x, 0.3), 0)
    (slope,) = torch.autograd.grad(y.sum(), [x])
    torch.testing.assert_close(slope, y.detach())


class Block(nn.Module):
    """A layer with dropout, whose activations the backward pass computes again if `checkpointed`."""

    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.layer, self.checkpointed = nn.Linear(4, 4), checkpointed

    def _inner(self, x: Tensor) -> Tensor:
        return torch.dropout(self.layer(x).sin(), 0.5, True)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = x + (checkpoint(self._inner, x, use_reentrant=False) if self.checkpointed else self._inner(x))
        return x


def test_a_pass_that_is_computed_again_has_the_masks_and_the_weights_of_the_first() -> None:
    losses, before = [], torch.get_rng_state()
    for checkpointed in (False, True):
        torch.manual_seed(0)
        step = training_step("block", Block(checkpointed), _sum, [torch.randn(3, 4)], seed=0)
        torch.set_rng_state(before)
        flat, run = capture(step), step.function
        state, x = step.inputs
        losses.append([as_module(flat)(*flat.inputs)])
        for _ in range(3):  # with other weights than those of the model
            loss, state = run(state, x)
            losses[-1].append([loss, *state.values()])
    assert torch.equal(torch.get_rng_state(), before)
    for plain, again in zip(*losses, strict=True):
        assert outputs_differ(again, plain) is None


def test_draws_without_a_seeded_form_are_those_of_the_process() -> None:
    torch.manual_seed(5)
    want = [torch.randperm(9), torch.randperm(9)]
    torch.manual_seed(5)
    with drawn_from(torch.tensor(0)):
        first, mask = torch.randperm(9), torch.rand(3)
    assert torch.equal(first, want[0]) and torch.equal(torch.randperm(9), want[1])
    assert torch.equal(mask, drawn(lambda: torch.rand(3), 0))


@pytest.mark.parametrize(("draw", "mean", "std"), [
    (lambda: functional.dropout(MANY, 0.25), 1.0, (1 / 3) ** 0.5), (lambda: torch.rand(40_000), 0.5, 12**-0.5),
    (lambda: torch.randn(40_000), 0.0, 1.0), (lambda: torch.empty(40_000).uniform_(2, 4), 3.0, 2 * 12**-0.5),
    (lambda: torch.empty(40_000).normal_(5, 2), 5.0, 2.0), (lambda: torch.bernoulli(0.1 * MANY), 0.1, 0.3),
    (lambda: torch.rand_like(MANY.bfloat16()).float(), 0.5, 12**-0.5), (lambda: torch.randn_like(MANY), 0.0, 1.0),
    (lambda: torch.native_dropout(MANY, 0.25, True)[0], 1.0, (1 / 3) ** 0.5),
])  # fmt: skip
def test_numbers_have_the_distribution_they_should(draw: Callable[[], Tensor], mean: float, std: float) -> None:
    first, again, other = drawn(draw, 1), drawn(draw, 1), drawn(draw, 2)
    assert torch.equal(first, again) and not torch.equal(first, other)
    within = 5 * std / 40_000**0.5
    for each in (first, other):
        assert each.mean().item() == pytest.approx(mean, abs=within + 0.002)
        assert each.std().item() == pytest.approx(std, rel=0.03)
    pairs = torch.stack([first[:-1], first[1:], other[:-1]]).double()
    assert torch.corrcoef(pairs).fill_diagonal_(0).abs().max() < 0.03, "neighbours and seeds are independent"


def test_every_draw_is_philox_with_the_seed_and_its_number_as_key() -> None:
    def twice() -> Tensor:
        return torch.stack([torch.rand(5), torch.rand(5)])

    for number, row in enumerate(drawn(twice, -3)):
        key = np.array([2**64 - 3, number], np.uint64)
        twin = np.random.Generator(np.random.Philox(key=key)).random(5, np.float32)
        assert np.array_equal(row.numpy(), twin)


def test_half_precision_never_rounds_up_to_one() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        assert drawn(lambda dtype=dtype: torch.rand(40_000, dtype=dtype), 0).max() < 1  # type: ignore[misc]


@needs_compiler
def test_masks_are_the_same_on_two_devices_in_any_order_and_from_a_file(program: Program, tmp_path: Path) -> None:
    program.save(tmp_path / "program")
    again = Program.load(tmp_path / "program")
    devices = discover()[:2]
    spread = np.arange(program.num_groups)[program.colocation] % len(devices)
    plan = Plan(tuple(each.name for each in devices), spread.astype(np.int64))
    with executor(again, devices) as running:
        assert outputs_differ(running.run(plan, again.inputs), eager(program)) is None


@pytest.mark.slow
@needs_compiler
def test_compiled_it_draws_the_same_numbers() -> None:
    program = capture(training_step("still", _Dropped(), _sum, [MANY[:99]], seed=3))
    assert outputs_differ(torch.compile(as_module(program))(*program.inputs), eager(program)) is None


def test_other_draws_and_other_seeds_are_refused_in_one_line() -> None:
    def shuffled(seed: Tensor, x: Tensor) -> Tensor:
        with drawn_from(seed):
            return x[torch.randperm(3)]

    with pytest.raises(ValueError, match=r"draws random numbers \(aten.randperm") as error:
        capture(Step("shuffled", shuffled, (torch.tensor(0), torch.ones(3))))
    assert "\n" not in str(error.value)
    for seed in (torch.zeros(2, dtype=torch.int64), torch.tensor(0.5)):
        with pytest.raises(ValueError, match="want one whole number"):
            drawn_from(seed)


def test_without_a_seed_the_step_draws_as_its_user_wrote_it() -> None:
    with unseeded(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        got = drawn(lambda: torch.rand(3), 0)
        torch.manual_seed(0)
        assert torch.equal(got, torch.rand(3))


def test_no_compiler_records_a_draw() -> None:
    """The host reads the seed, for which it waits: no graph of an accelerator can hold that."""
    assert all(
        torch.Tag.cudagraph_unsafe in operator.default.tags
        for operator in (torch.ops.gst.uniform, torch.ops.gst.normal)
    )
