"""TF32 without a GPU: convolutions on the CPU whose operands are rounded as cuDNN does where it is allowed to."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

OPERANDS = {torch.ops.aten.convolution.default: 2, torch.ops.aten.convolution_backward.default: 3}
"""How many first arguments of each operator are multiplied."""


def to_tf32(value: Any) -> Any:
    """Numbers of 32 bits rounded to the nearest of 19 bits; ties to even.

    Examples:
        >>> to_tf32(torch.tensor([1 + 2**-10, 1 + 2**-13])).tolist()
        [1.0009765625, 1.0]
    """
    if not isinstance(value, Tensor) or value.dtype != torch.float32:
        return value
    bits = value.contiguous().view(torch.int32)
    bits = (bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF
    return bits.view(torch.float32).reshape(value.shape)


class RoundedConvolutions(TorchDispatchMode):
    """Convolutions within it multiply as a GPU does, by TF32 if `torch.backends.cudnn.allow_tf32`."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        count = OPERANDS.get(function, 0) if torch.backends.cudnn.allow_tf32 else 0
        with _disable_current_modes():
            return function(*(to_tf32(each) for each in args[:count]), *args[count:], **(kwargs or {}))


def on_the_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with exact convolutions also within `RoundedConvolutions`."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return run
