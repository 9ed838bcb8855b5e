"""Updates of SGD, Adam and AdamW of `torch.optim` as pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

State = dict[str, Tensor]
Update = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], State]
"""Takes a state and gradients by the names of parameters; returns new parameters and new memories."""

EPSILON = 1e-6  # as BERT's; with less, a gradient that is 0 but for rounding would move its parameter at random
OPTIMIZERS: dict[str, dict[str, Any]] = {"sgd": {}, "momentum": {"momentum": 0.9}, "adam": {"eps": EPSILON}}
"""Options of the optimizers that have a name here."""

RATE = "rate"  # entry of a state
MOMENTUM = {"momentum": "momentum_buffer"}
MOMENTS = {"mean": "exp_avg", "mean_square": "exp_avg_sq"}
LARGEST = {"largest_mean_square": "max_exp_avg_sq"}
"""Entries of a state for each parameter, and their names in `torch.optim`."""


def named_optimizer(name: str, parameters: Iterable[Tensor], rate: float | Tensor) -> torch.optim.Optimizer:
    """Return an optimizer of `OPTIMIZERS`; ValueError if there is none of this name."""
    if name not in OPTIMIZERS:
        raise ValueError(f"no optimizer {name!r}; want one of {', '.join(OPTIMIZERS)}, or one of torch.optim")
    kind: Any = torch.optim.Adam if name == "adam" else torch.optim.SGD
    return kind(parameters, rate, **OPTIMIZERS[name])


def same_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], others: Mapping[str, Tensor]
) -> torch.optim.Optimizer:
    """Return a new optimizer of the same options for other tensors of the same names, fused unless it is `foreach`."""
    names = {id(value): name for name, value in parameters.items()}
    kind: Any = type(optimizer)
    options = [{**group, "lr": float(group["lr"]), "fused": not group["foreach"]} for group in optimizer.param_groups]
    return kind([{**each, "params": [others[names[id(value)]] for value in each["params"]]} for each in options])


def pure_update(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], has_rates: bool = True
) -> tuple[State, Update]:
    """Return the memory of an optimizer and its update, which leaves the optimizer as it is.

    The memory is `parameter/momentum`, `parameter/mean` and so on, Adam's number of `steps`, and the learning rate:
    `rate`, or `rate/0`, `rate/1`, ... of several groups.

    Args:
        optimizer: SGD, Adam or AdamW, new or after steps.
        parameters: that it may train, by name.
        has_rates: False if learning rates are constants.

    Raises:
        ValueError: it is another optimizer, it trains other tensors, parameters took different numbers of steps, or
            the first step of SGD would have no dampening.

    Examples:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> memory, update = pure_update(torch.optim.SGD([weight], lr=0.5, weight_decay=1.0), {"weight": weight})
        >>> update({"weight": torch.ones(2), **memory}, {"weight": torch.ones(2)})
        {'weight': tensor([0., 0.])}
    """
    kind = type(optimizer)
    if kind not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        raise ValueError(f"{kind.__name__} is not captured; want SGD, Adam or AdamW of torch.optim")
    names = {id(value): name for name, value in parameters.items()}
    memory: State = {}
    rates: State = {}
    steps: set[float] = set()
    groups: list[tuple[dict[str, Any], str, list[str]]] = []
    for number, group in enumerate(optimizer.param_groups):
        if any(id(value) not in names for value in group["params"]):
            raise ValueError(f"{kind.__name__} trains a tensor that is no parameter of the model, or a frozen one")
        name, rate = RATE if len(optimizer.param_groups) == 1 else f"{RATE}/{number}", group["lr"]
        rates[name] = rate.detach().clone() if torch.is_tensor(rate) else torch.tensor(rate, dtype=torch.float64)
        slots = MOMENTS if "betas" in group else MOMENTUM if group["momentum"] else {}
        slots = slots | (LARGEST if group.get("amsgrad") else {})
        for value in group["params"]:
            now = optimizer.state.get(value, {})
            if "momentum" in slots and group["dampening"] and not now:
                raise ValueError("the first step of SGD with momentum has no dampening; let it take one before")
            for slot, theirs in slots.items():
                first = now[theirs] if theirs in now else torch.zeros_like(value)
                memory[f"{names[id(value)]}/{slot}"] = first.detach().clone()
            steps |= {float(now["step"])} if "step" in now else set()
        options = {key: value for key, value in group.items() if key not in ("params", "lr")} | {"slots": list(slots)}
        groups.append((options, name, [names[id(value)] for value in group["params"]]))
    if len(steps) > 1:
        raise ValueError(f"parameters of {kind.__name__} took different numbers of steps")
    memory |= {} if kind is torch.optim.SGD else {"steps": torch.tensor(max(steps, default=0.0))}
    constants = {} if has_rates else {name: float(rate) for name, rate in rates.items()}

    def update(state: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> State:
        new: State = {"steps": state["steps"] + 1} if "steps" in memory else {}
        for options, name, keys in groups:
            renewed, rate = _adam if "betas" in options else _sgd, constants[name] if constants else state[name]
            if "betas" in options:  # 1 - beta**steps
                corrections = [-torch.expm1(new["steps"] * math.log(each)) for each in options["betas"]]
                options = {**options, "corrections": corrections}
            for key in (each for each in keys if each in gradients):
                gradient = -gradients[key] if options["maximize"] else gradients[key]
                slots = {slot: state[f"{key}/{slot}"] for slot in options["slots"]}
                new[key] = renewed(state[key], gradient, slots, rate, options)
                new |= {f"{key}/{slot}": value for slot, value in slots.items()}
        return new

    return memory | (rates if has_rates else {}), update


def _sgd(value: Tensor, step: Tensor, slots: State, rate: float | Tensor, options: Mapping[str, Any]) -> Tensor:
    """Return the new value of a parameter, and renew its slots."""
    step = step + options["weight_decay"] * value if options["weight_decay"] else step
    if momentum := options["momentum"]:
        taken = step if not options["dampening"] else (1 - options["dampening"]) * step
        slots["momentum"] = momentum * slots["momentum"] + taken
        step = step + momentum * slots["momentum"] if options["nesterov"] else slots["momentum"]
    return value - rate * step


def _adam(value: Tensor, step: Tensor, slots: State, rate: float | Tensor, options: Mapping[str, Any]) -> Tensor:
    """Renew by Algorithm 1 of Kingma and Ba, 2015 (arXiv 1412.6980), or 2 of Loshchilov and Hutter (1711.05101)."""
    (decay, square_decay), weight_decay, corrections = options["betas"], options["weight_decay"], options["corrections"]
    if weight_decay and options["decoupled_weight_decay"]:
        value = value * (1 - rate * weight_decay)
    elif weight_decay:
        step = step + weight_decay * value
    corrected = rate / corrections[0]
    slots["mean"] = decay * slots["mean"] + (1 - decay) * step
    square = slots["mean_square"] = square_decay * slots["mean_square"] + (1 - square_decay) * step * step
    if options["amsgrad"]:
        square = slots["largest_mean_square"] = torch.maximum(slots["largest_mean_square"], square)
    return value - corrected * slots["mean"] / ((square / corrections[1]).sqrt() + options["eps"])
