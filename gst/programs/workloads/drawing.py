"""Weights and data of a bundled workload, drawn from one generator."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int64
from torch import Tensor, nn


def drawn(build: Callable[[], nn.Module], generator: torch.Generator) -> nn.Module:
    """A model with weights from `generator`, uniform within +-1/sqrt(fan in), and biases 0.

    PyTorch draws while it builds: the global generator is put back.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = build()
        for name, value in model.named_parameters():
            if value.ndim > 1:
                bound = value[0].numel() ** -0.5
                value.uniform_(-bound, bound, generator=generator)
            elif not name.endswith("weight"):
                value.zero_()
    return model


def tokens(
    steps: int, batch: int, vocabulary: int, generator: torch.Generator
) -> tuple[Int64[Tensor, "steps batch"], Int64[Tensor, "steps batch"]]:
    """Random tokens, and random targets for them: numbers 0 .. vocabulary - 1."""
    first, second = (torch.randint(vocabulary, (steps, batch), generator=generator) for _ in range(2))
    return first, second


def divided(width: int, parts: int, what: str) -> int:
    """`width / parts`.

    Raises:
        ValueError: there is a remainder.
    """
    if width % parts:
        raise ValueError(f"width {width} cannot be divided among {parts} {what}; take a multiple of {parts}")
    return width // parts
