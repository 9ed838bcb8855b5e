"""Updates of optimizers as pure functions: of three named ones, and of those of `torch.optim`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

State = dict[str, Tensor]
Update = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], State]
"""Takes a state and gradients by the names of parameters; returns new parameters and new memories."""

OPTIMIZERS: dict[str, tuple[str, ...]] = {"sgd": (), "momentum": ("momentum",), "adam": ("mean", "mean_square")}
"""State of each optimizer for every parameter."""

RATE = "rate"  # entry of a state

DECAY = 0.9  # of momentum, and beta_1 of Adam
SQUARE_DECAY = 0.999  # beta_2
EPSILON = 1e-6  # as BERT's; with less, a gradient that is 0 but for rounding would move its parameter at random


def torch_update(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> tuple[State, Update]:
    """Return the memory of SGD, Adam or AdamW of `torch.optim`, and its update, which leaves the optimizer as it is.

    The memory is the learning rate, `rate` (`rate/0`, `rate/1`, ... of several groups), and `parameter/slot`.

    Args:
        optimizer: new, or after steps.
        parameters: that it may train, by name.

    Raises:
        ValueError: it is another optimizer, it trains other tensors, or the first step of SGD would have no dampening.

    Examples:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> memory, update = torch_update(torch.optim.SGD([weight], lr=0.5, weight_decay=1.0), {"weight": weight})
        >>> update({"weight": weight, **memory}, {"weight": torch.ones(2)})["weight"]
        tensor([0., 0.])
    """
    kind = type(optimizer)
    if kind not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        raise ValueError(f"{kind.__name__} is not captured; want SGD, Adam or AdamW of torch.optim")
    names = {id(value): name for name, value in parameters.items()}
    memory: State = {}
    groups: list[tuple[str, list[str], tuple[str, ...], Callable[..., None]]] = []
    for number, group in enumerate(optimizer.param_groups):
        if any(id(value) not in names for value in group["params"]):
            raise ValueError(f"{kind.__name__} trains a tensor that is no parameter of the model, or a frozen one")
        rate = RATE if len(optimizer.param_groups) == 1 else f"{RATE}/{number}"
        memory[rate] = torch.tensor(float(group["lr"]), dtype=torch.float64)
        slots, function = _functional(group)
        groups.append((rate, [names[id(value)] for value in group["params"]], slots, function))
        for value in group["params"]:
            now = optimizer.state.get(value, {})
            if group.get("dampening") and group["momentum"] and not now:
                raise ValueError("the first step of SGD with momentum has no dampening; let it take one before")
            for slot in slots:
                first = torch.zeros((), dtype=torch.float64) if slot == "step" else torch.zeros_like(value)
                memory[f"{names[id(value)]}/{slot}"] = now.get(slot, first).detach().clone().to(first.dtype)

    def update(state: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> State:
        new: State = {}
        for rate, all_keys, slots, function in groups:
            keys = [key for key in all_keys if key in gradients]
            new |= {key: state[key].detach().clone() for key in keys}
            new |= {f"{key}/{slot}": state[f"{key}/{slot}"].clone() for key in keys for slot in slots}
            lists = {SLOTS[slot]: [new[f"{key}/{slot}"] for key in keys] for slot in slots}
            with torch.no_grad():  # SGD reads the value of a rate that requires no gradient
                lr = state[rate].detach().clone().requires_grad_()
                function([new[key] for key in keys], [gradients[key] for key in keys], **lists, lr=lr)
        return new

    return memory, update


SLOTS = {
    "momentum_buffer": "momentum_buffer_list", "exp_avg": "exp_avgs", "exp_avg_sq": "exp_avg_sqs",
    "max_exp_avg_sq": "max_exp_avg_sqs", "step": "state_steps",
}  # fmt: skip
"""Arguments of the functions of `torch.optim`, by entries of the state of an optimizer."""


def _functional(group: Mapping[str, Any]) -> tuple[tuple[str, ...], Callable[..., None]]:
    """Return the slots of a group of options, and its update of lists of tensors in place, by single operations."""
    options = {key: group[key] for key in ("weight_decay", "maximize")} | {"foreach": False, "fused": False}
    if "momentum" in group:
        options |= {key: group[key] for key in ("momentum", "dampening", "nesterov")}
        if group["momentum"]:
            return ("momentum_buffer",), partial(sgd, **options)
        return (), lambda values, gradients, lr: sgd(values, gradients, [None] * len(values), lr=lr, **options)
    options |= {key: group[key] for key in ("amsgrad", "eps", "decoupled_weight_decay")}
    options |= dict(zip(("beta1", "beta2"), group["betas"], strict=True)) | {"differentiable": True}
    if group["amsgrad"]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"), partial(adam, **options)
    return ("exp_avg", "exp_avg_sq", "step"), partial(adam, max_exp_avg_sqs=[], **options)


def named_update(optimizer: str, parameters: Mapping[str, Tensor], rate: float | Tensor) -> tuple[State, Update]:
    """Return the memory of an optimizer of `OPTIMIZERS`, zeros `parameter/slot` and Adam's number of steps, and its
    update. A learning rate that is a tensor is part of the memory."""
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"no optimizer {optimizer!r}; want one of {', '.join(OPTIMIZERS)}, or one of torch.optim")
    memory = {
        f"{key}/{slot}": torch.zeros_like(value) for key, value in parameters.items() for slot in OPTIMIZERS[optimizer]
    }
    memory |= {"steps": torch.zeros(())} if optimizer == "adam" else {}
    rates = {RATE: rate} if isinstance(rate, Tensor) else {}

    def update(state: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> State:
        return updated(optimizer, state, gradients, state[RATE] if rates else rate)

    return memory | rates, update


def updated(
    optimizer: str, state: Mapping[str, Tensor], gradients: Mapping[str, Tensor], rate: float | Tensor
) -> State:
    """Return new parameters and new memories, by their keys in `state`."""
    new: State = {}
    if optimizer == "adam":
        steps = new["steps"] = state["steps"] + 1
        corrections = [-torch.expm1(steps * math.log(decay)) for decay in (DECAY, SQUARE_DECAY)]  # 1 - decay**steps
    for key, gradient in gradients.items():
        if optimizer == "sgd":
            new[key] = state[key] - rate * gradient
        elif optimizer == "momentum":
            new[f"{key}/momentum"] = DECAY * state[f"{key}/momentum"] + gradient
            new[key] = state[key] - rate * new[f"{key}/momentum"]
        else:  # Kingma and Ba, 2015 (arXiv 1412.6980), Algorithm 1
            corrected = rate / corrections[0]
            mean = new[f"{key}/mean"] = DECAY * state[f"{key}/mean"] + (1 - DECAY) * gradient
            square = SQUARE_DECAY * state[f"{key}/mean_square"] + (1 - SQUARE_DECAY) * gradient * gradient
            new[f"{key}/mean_square"] = square
            new[key] = state[key] - corrected * mean / ((square / corrections[1]).sqrt() + EPSILON)
    return new
