"""Kinds of devices, by the names that PyTorch gives them."""

from __future__ import annotations

from collections.abc import Iterable

ACCELERATOR = "cuda"
"""For which steps are captured on a machine that has none; simulated GPUs are of this kind too."""

KINDS = ("cpu", ACCELERATOR)
"""Of devices for which steps are captured."""


def kind_for(kinds: Iterable[str]) -> str:
    """The kind to capture a step for, so that devices of all these kinds can run the program.

    Examples:
        >>> kind_for(["cpu", "cpu"]), kind_for(["cpu", "cuda"])
        ('cpu', 'cuda')
    """
    return KINDS[any(kind != KINDS[0] for kind in kinds)]
