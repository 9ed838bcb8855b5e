"""Guard of a placed model: shapes, dtypes, devices, gradients, expanded inputs, autocast, weights and all else that the
model's code reads.

Expected values are kept as tuples, and the loops are those of C (`map`, `all`), so that a call costs microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.lowering.calls import is_expanded
from gst.programs.structures import special_kind
from gst.programs.watcher import Watcher

_version, _requires_grad = attrgetter("_version"), attrgetter("requires_grad")
_kind = attrgetter("dtype", "device")


class Guard:
    """Compares a call with the one for which a model was placed.

    Args:
        model: a module, or the function of a step; None if it runs as written.
        inputs: of the call for which it was placed.
        weights: True if weights are constants, so that a new value of one counts as a change.
        any_device: True if inputs may be on any device.

    Examples:
        >>> guard = Guard(nn.Linear(2, 2).eval(), (torch.ones(1, 2),), weights=True)
        >>> guard.reason((torch.zeros(3, 2),))
        'input 0 is torch.float32 (3, 2) on cpu, not torch.float32 (1, 2) on cpu'
    """

    def __init__(
        self, model: Callable[..., Any] | None, inputs: Sequence[Any], weights: bool, any_device: bool = False
    ) -> None:
        self._described = partial(_description, with_device=not any_device)
        self._autocast = _autocast()
        leaves, self._spec = pytree.tree_flatten(tuple(inputs))
        self._is_flat = all(isinstance(each, Tensor) for each in inputs)
        self._wanted = tuple(map(self._described, leaves))
        expanded = [number for number, each in enumerate(leaves) if _is_expanded(each)]
        self._expanded = tuple((number, leaves[number].stride()) for number in expanded)
        self._watcher = None if model is None else Watcher(model)
        module = model if isinstance(model, nn.Module) else nn.Module()
        self._parameters = tuple(module.parameters())
        self._gradients = tuple(map(_requires_grad, self._parameters))
        self._ends = (*self._parameters[:1], *self._parameters[-1:])  # `model.to(...)` converts all
        self._kinds = tuple(map(_kind, self._ends))
        self._constants = (*self._parameters, *module.buffers()) if weights else ()
        self._versions = tuple(map(_version, self._constants))
        self._addresses = tuple(map(Tensor.data_ptr, self._constants))

    def reason(self, inputs: tuple[Any, ...]) -> str | None:
        """Say how the call differs from the one for which the model was placed; None if it does not."""
        try:
            leaves = self.leaves(inputs)
        except ValueError as error:
            return str(error)
        for number, (value, wanted) in enumerate(zip(leaves, self._wanted, strict=True)):
            described = self._described(value)
            if described != wanted:
                return f"input {number} is {_words(described)}, not {_words(wanted)}"
        for number, stride in self._expanded:
            if leaves[number].stride() != stride:
                return f"input {number} has strides {leaves[number].stride()}, not those of an expanded one, {stride}"
        if (autocast := _autocast()) != self._autocast:
            return f"it is called {_autocast_words(autocast)}, and was placed {_autocast_words(self._autocast)}"
        return self.change()

    def change(self) -> str | None:
        """Say how the model was changed since, apart from values of weights that are no constants; None if not."""
        if self._watcher is not None and (change := self._watcher.change()):
            is_mode = change.split()[0].endswith("training")
            return f"{change}: a module changed between training and evaluation mode" if is_mode else change
        if tuple(map(_kind, self._ends)) != self._kinds:
            return "weights have another dtype or device"
        if torch.is_grad_enabled() and tuple(map(_requires_grad, self._parameters)) != self._gradients:
            return "parameters require other gradients"
        if self._constants and (
            tuple(map(_version, self._constants)) != self._versions
            or tuple(map(Tensor.data_ptr, self._constants)) != self._addresses
        ):
            return "weights changed, which are constants of the compiled code"
        return None

    def leaves(self, inputs: tuple[Any, ...]) -> Sequence[Any]:
        """Flatten the inputs of a call in the order of the example inputs.

        Raises:
            ValueError: they have another structure.
        """
        if self._is_flat:
            if len(inputs) != len(self._wanted):
                raise ValueError(f"{len(inputs)} inputs, not {len(self._wanted)}")
            return inputs
        try:
            return self._spec.flatten_up_to(inputs)
        except ValueError as error:
            raise ValueError(f"inputs have another structure: {error}") from error


def _is_expanded(value: Any) -> bool:
    return isinstance(value, Tensor) and special_kind(value) is None and is_expanded(value)


def _description(value: Any, with_device: bool = True) -> Any:
    if kind := special_kind(value):
        return kind, (tuple(value.shape) if not value.is_nested else value.size(0))
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.device if with_device else None, value.requires_grad
    return type(value), value


def _words(description: Any) -> str:
    if len(description) == 2:
        kind, value = description
        return f"a {kind}, {value}" if isinstance(kind, str) else repr(value)[:80]
    shape, dtype, device, gradient = description
    place = "" if device is None else f" on {device}"
    return f"{dtype} {tuple(shape)}{place}" + " with a gradient" * gradient


def _autocast() -> tuple[tuple[str, torch.dtype], ...]:
    """Return the kinds of devices with autocast and its dtype there: recorded and captured casts do not change."""
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in _kinds() if torch.is_autocast_enabled(kind))


@lru_cache(maxsize=1)
def _kinds() -> tuple[str, ...]:
    """Return the kinds of devices on which this build of PyTorch computes."""
    accelerator = torch.accelerator.current_accelerator()
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)


def _autocast_words(autocast: Sequence[tuple[str, torch.dtype]]) -> str:
    kinds = ", ".join(f"{kind} to {dtype}" for kind, dtype in autocast)
    return f"under autocast of {kinds}" if kinds else "without autocast"
