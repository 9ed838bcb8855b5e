"""Operations in place become operations out of place; what cannot be planned is refused in one line."""

import pytest
import torch
from torch.nn import functional

from gst.lowering.calls import eager
from gst.programs import Step, TrainingStep, capture, outputs_differ, tracing, training_step


def _in_place(w: torch.Tensor) -> list:
    y = w.clone()
    y += 1
    functional.relu(y, inplace=True)
    rows = torch.zeros(3, 3)
    rows[0] += w
    rows[:, 1].mul_(2).add_(5)
    before = rows.sum()
    rows.view(-1)[4:].fill_(7)
    return [y, rows, before, rows.T @ y]


def _optimizer_in_place(p: dict) -> tuple:
    w = p["w"].detach().requires_grad_()
    loss = (w * w).sum()
    (gradient,) = torch.autograd.grad(loss, [w])
    p["w"].sub_(0.1 * gradient)
    return loss.detach(), p


def _outputs_share_memory(w: torch.Tensor) -> tuple:
    y = w * 2
    part = y[1:]
    part.zero_()
    return y, part, y


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (_in_place, torch.tensor([-3.0, 1.0, 2.0])),
        (_optimizer_in_place, {"w": torch.tensor([1.0, 2.0])}),
        (_outputs_share_memory, torch.ones(3)),
        (lambda w: torch.cat([w, w.new_ones(2).cumsum_(0)]), torch.ones(3)),
        (lambda w: torch.tensor([1.0, 2.0]).add_(1) * w, torch.ones(2)),
    ],
)
def test_operations_in_place_are_captured(function: object, value: object) -> None:
    def copied() -> tuple:
        return ({"w": value["w"].clone()} if isinstance(value, dict) else value.clone(),)  # type: ignore[attr-defined]

    program = capture(Step("in place", function, copied()))  # type: ignore[arg-type]
    want = torch.utils._pytree.tree_leaves(function(*copied()))  # type: ignore[operator]
    assert outputs_differ(eager(program), want) is None
    assert all(not tracing._mutates(operation.target) for operation in program.operations)
    assert outputs_differ(eager(program), want) is None, "running it changed its inputs"


def test_running_statistics_of_batch_norm_are_state() -> None:
    """As PyTorch computes them: twice the step, with the statistics of the first going into the second."""
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    x = torch.randn(6, 3, generator=generator)
    step = training_step("norm", model, lambda model, x: model(x).square().mean(), (x,), rate=0.0)
    program = capture(step)
    state = list(program.inputs)
    for _ in range(2):
        _, *new = eager(program, state)
        state = [*new, x]
        model(x)
    _, got = program.unflatten([None, *new])
    assert torch.equal(got["1.num_batches_tracked"], torch.tensor(2))
    for name in ("1.running_mean", "1.running_var"):
        assert torch.allclose(got[name], dict(model.named_buffers())[name])


class _NoFormula(torch.autograd.Function):
    @staticmethod
    def forward(context: object, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def _custom_without_formula(p: dict) -> tuple:
    w = p["w"].detach().requires_grad_()
    return torch.autograd.grad(_NoFormula.apply(w).sum(), [w])[0], {}


STATISTICS = torch.zeros(3)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda p: (p["w"] * 2 if p["w"].sum() > 0 else p["w"], {}), "cannot be captured.*do not depend on the values"),
        (lambda p: (p["w"][p["w"] > 0].sum(), {}), "aten.index.Tensor .*depends on the values"),
        (lambda p: (p["w"].sum().item(), {}), "depends on the values.*return tensors, not numbers"),
        (_custom_without_formula, "cannot be captured.*backward"),
        (lambda p: (functional.dropout(p["w"]), {}), r"draws random numbers \(aten\..*model.eval\(\)"),
        (lambda p: (p["w"] + torch.rand(3), {}), r"draws random numbers \(aten.rand.default"),
        (lambda p: (torch.bernoulli(p["w"]), {}), r"draws random numbers \(aten.bernoulli"),
        (lambda p: (p["w"].clone().normal_(), {}), r"draws random numbers \(aten.normal"),
        (lambda p: (p["w"].add_(1).sum(), {}), r"changes its input \[0\]\['w'\] in place; return the new value"),
        (lambda p: (STATISTICS.add_(p["w"]), {}), "writes into a tensor that it captured"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(function: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        capture(TrainingStep("bad", function, ({"w": torch.ones(3)},)))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_inputs_that_are_changed_and_share_memory_or_are_no_tensors_are_refused() -> None:
    both = torch.ones(3)
    with pytest.raises(ValueError, match="shares memory with another input"):
        capture(Step("bad", lambda a, b: (a.add_(1), b * 2), (both, both)))
    with pytest.raises(ValueError, match="flat input 1 is a int"):
        capture(Step("bad", lambda a, n: a * n, (both, 3)))


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context: object, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3


def test_a_custom_function_is_captured_with_its_formula() -> None:
    def step(p: dict) -> tuple:
        w = p["w"].detach().requires_grad_()
        loss = _Doubled.apply(w).sum()
        return loss.detach(), dict(zip(p, torch.autograd.grad(loss, [w]), strict=True))

    loss, gradient = eager(capture(TrainingStep("custom", step, ({"w": torch.ones(2)},))))
    assert loss == 4 and gradient.tolist() == [3, 3]
