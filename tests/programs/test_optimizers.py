"""Optimizers are PyTorch's."""

import pytest
import torch

from gst.programs import as_module, capture, training_step
from gst.programs.optimizers import OPTIMIZERS

REFERENCES = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.05, eps=1e-6),
}


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_five_steps_are_those_of_pytorch(optimizer: str) -> None:
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=generator))
    x, y = (torch.randn(6, size, generator=generator, dtype=torch.float64) for size in (3, 1))

    def loss_of(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (model(x) - y).square().mean()

    step = training_step("line", model, loss_of, (x, y), optimizer, rate=0.05)
    state = {name: value.clone() for name, value in step.inputs[0].items()}
    reference = REFERENCES[optimizer](model.parameters())
    for _ in range(5):
        loss, state = step.function(state, x, y)
        want = loss_of(model, x, y)
        assert loss.item() == pytest.approx(want.item(), rel=1e-6)
        reference.zero_grad()
        want.backward()
        reference.step()
    assert list(state) == list(step.inputs[0]), "the new state has the keys of the old one, in their order"
    for name, value in model.named_parameters():
        assert torch.allclose(state[name], value, rtol=1e-6, atol=1e-6), name


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_frozen_parameters_stay_as_they_are(optimizer: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    model[0].requires_grad_(False)
    model.register_parameter("table", torch.nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False))
    step = training_step("frozen", model, lambda m, x: m(x).square().mean(), (torch.ones(4, 2),), optimizer)
    before = step.inputs[0]
    assert list(before)[:5] == ["1.weight", "1.bias", "table", "0.weight", "0.bias"]
    assert not any(name.startswith(("0.", "table")) and "/" in name for name in before), "nothing to remember"
    _, after = step.function(*step.inputs)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {"1.weight", "1.bias"} <= changed and not changed & {"0.weight", "0.bias", "table"}
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="trains nothing"):
        training_step("frozen", model, lambda m, x: m(x).sum(), (torch.ones(4, 2),), optimizer)


def test_a_tied_weight_is_one_entry_and_an_unused_one_stays() -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2, bias=False), "b": torch.nn.Linear(2, 2, bias=False)})
    model["b"].weight = model["a"].weight
    model["unused"] = torch.nn.Linear(2, 2, bias=False)
    step = training_step("tied", model, lambda m, x: m["b"](m["a"](x)).sum(), (torch.ones(1, 2),))
    assert list(step.inputs[0]) == ["a.weight", "unused.weight"]
    _, state = step.function(*step.inputs)
    leaf = model["a"].weight
    (gradient,) = torch.autograd.grad((torch.ones(1, 2) @ leaf.T @ leaf.T).sum(), [leaf])
    assert torch.allclose(state["a.weight"], leaf - 0.1 * gradient)
    assert torch.equal(state["unused.weight"], model["unused"].weight)


TORCH = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.05, weight_decay=0.1, maximize=True),
    "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda groups: torch.optim.Adam(groups, lr=torch.tensor(0.05), weight_decay=0.1, amsgrad=True),
    "adamw": lambda groups: torch.optim.AdamW(
        groups, lr=0.05, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1, fused=True
    ),
}


@pytest.mark.parametrize("steps_before", [0, 2])
@pytest.mark.parametrize("name", TORCH)
def test_optimizers_of_torch_with_clipping_and_a_schedule_are_the_ordinary_loop(name: str, steps_before: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1), torch.nn.Linear(1, 1))
    model.register_parameter("unused", torch.nn.Parameter(torch.ones(2)))  # which the ordinary loop does not decay
    x, y = torch.randn(6, 3), 9 * torch.randn(6, 1)
    own = model[0].weight
    optimizer = TORCH[name]([{"params": [own], "lr": 0.01}, {"params": [*model[2].parameters(), model.unused]}])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)

    def loss_of(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (model[:3](x) - y).square().mean()

    def ordinary() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        trained = [value for group in optimizer.param_groups for value in group["params"]]
        assert torch.nn.utils.clip_grad_norm_(trained, 0.5) > 0.5
        optimizer.step()
        schedule.step()
        return loss.detach()

    for _ in range(steps_before):
        ordinary()
    step = training_step("line", model, loss_of, (x, y), optimizer, max_norm=0.5)
    module, state = as_module(program := capture(step)), dict(step.inputs[0])
    for _ in range(6):
        for number, group in enumerate(optimizer.param_groups):
            state[f"rate/{number}"] = torch.tensor(float(group["lr"]), dtype=torch.float64)
        loss, new = step.function(state, x, y)
        _, captured = program.unflatten(list(module(*state.values(), x, y)))
        torch.testing.assert_close(loss, ordinary())
        for key, value in model.named_parameters():
            torch.testing.assert_close(new[key], value.detach(), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(captured[key], value.detach(), rtol=1e-5, atol=1e-6)
        state = new
    assert torch.equal(state["0.bias"], model[0].bias) and torch.equal(state["unused"], torch.ones(2))


def test_an_optimizer_that_is_not_captured_is_refused() -> None:
    model, x = torch.nn.Linear(2, 1), (torch.ones(4, 2),)
    for optimizer, reason in (
        (torch.optim.RMSprop(model.parameters()), "RMSprop is not captured; want SGD, Adam or AdamW"),
        (torch.optim.SGD(torch.nn.Linear(2, 1).parameters()), "no parameter of the model, or a frozen one"),
        (torch.optim.SGD(model.parameters(), momentum=0.9, dampening=0.5), "no dampening; let it take one before"),
    ):
        with pytest.raises(ValueError, match=reason):
            training_step("line", model, lambda model, x: model(x).sum(), x, optimizer)
