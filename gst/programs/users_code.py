"""Lines of the user's code, for messages about what cannot be captured."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

PACKAGES = Path(torch.__file__).parents[1]
OTHERS = (
    *(str(PACKAGES / name) for name in ("torch", "jaxtyping", "typeguard")),  # the last two check shapes in tests
    *(str(Path(__file__).with_name(f"{name}.py")) for name in ("users_code", "tracing", "step")),
)


def users_line(frames: Iterable[traceback.FrameSummary]) -> str:
    """Return the last line that belongs neither to PyTorch nor to capture, in brackets; empty if there is none."""
    users = [each for each in frames if each.line and not each.filename.startswith(OTHERS)]
    return f" (line {users[-1].lineno} of {Path(users[-1].filename).name}: `{users[-1].line}`)" if users else ""


class FirstOfValues(TorchFunctionMode):
    """Finds the line of the user that first makes a number, or a shape, that depends on values of tensors."""

    line = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.line and is_symbolic(result):
            self.line = users_line(traceback.extract_stack())
        return result


def is_symbolic(value: Any) -> bool:
    """True for a number that depends on values of tensors, or a tensor of such a shape."""
    if isinstance(value, list | tuple):
        return any(map(is_symbolic, value))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) or (
        isinstance(value, Tensor) and not value.is_nested and any(map(is_symbolic, value.shape))
    )
