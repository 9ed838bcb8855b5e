"""Optimizers as pure functions: parameters, gradients and what is remembered in, all of it renewed out."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("momentum",),
    "adam": ("mean", "mean_square"),
}
"""What each remembers of every parameter."""

DECAY = 0.9  # of momentum, and beta_1 of Adam
SQUARE_DECAY = 0.999  # beta_2
EPSILON = 1e-6  # as BERT's; with less, a gradient that is 0 but for rounding would move its parameter at random


def first_state(optimizer: str, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `optimizer` remembers before the first step: zeros `parameter/slot`, and Adam's number of steps.

    Raises:
        ValueError: there is no such optimizer.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"no optimizer {optimizer!r}; want one of {', '.join(OPTIMIZERS)}")
    slots = {
        f"{key}/{slot}": torch.zeros_like(value) for key, value in parameters.items() for slot in OPTIMIZERS[optimizer]
    }
    return slots | ({"steps": torch.zeros(())} if optimizer == "adam" else {})


def updated(
    optimizer: str, state: Mapping[str, Tensor], gradients: Mapping[str, Tensor], rate: float
) -> dict[str, Tensor]:
    """New parameters and new memories, by the keys they have in `state`."""
    new: dict[str, Tensor] = {}
    if optimizer == "adam":
        steps = new["steps"] = state["steps"] + 1
        corrections = [-torch.expm1(steps * math.log(decay)) for decay in (DECAY, SQUARE_DECAY)]  # 1 - decay**steps
    for key, gradient in gradients.items():
        if optimizer == "sgd":
            new[key] = state[key] - rate * gradient
        elif optimizer == "momentum":
            new[f"{key}/momentum"] = DECAY * state[f"{key}/momentum"] + gradient
            new[key] = state[key] - rate * new[f"{key}/momentum"]
        else:
            new |= _adam(key, state, gradient, rate / corrections[0], corrections[1])
    return new


def _adam(
    key: str, state: Mapping[str, Tensor], gradient: Tensor, rate: Tensor, square_correction: Tensor
) -> dict[str, Tensor]:
    """Kingma and Ba, 2015 (arXiv 1412.6980), Algorithm 1; `rate` is corrected for the bias of the mean already."""
    mean = DECAY * state[f"{key}/mean"] + (1 - DECAY) * gradient
    square = SQUARE_DECAY * state[f"{key}/mean_square"] + (1 - SQUARE_DECAY) * gradient * gradient
    value = state[key] - rate * mean / ((square / square_correction).sqrt() + EPSILON)
    return {key: value, f"{key}/mean": mean, f"{key}/mean_square": square}
