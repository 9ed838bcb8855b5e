"""Guard of a placed model: shapes, dtypes, devices, gradients, expanded inputs, autocast, training mode and weights.

Expected values are kept as tuples, and the loops are those of C (`map`, `all`), so that a call costs microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.lowering.calls import is_expanded
from gst.programs.structures import special_kind

_training, _version = attrgetter("training"), attrgetter("_version")
_requires_grad = attrgetter("requires_grad")
_values: Callable[[Any], Iterable[Any]] = dict.values


class Guard:
    """Compares a call with the one for which a model was placed.

    Args:
        model: a module, or None for a step, which has no state.
        inputs: of the call for which it was placed.
        weights: True if weights are constants, so that a new value of one counts as a change.
        any_device: True if inputs may be on any device.

    Examples:
        >>> guard = Guard(nn.Linear(2, 2).eval(), (torch.ones(1, 2),), weights=True)
        >>> guard.reason((torch.zeros(3, 2),))
        'input 0 is torch.float32 (3, 2) on cpu, not torch.float32 (1, 2) on cpu'
    """

    def __init__(self, model: nn.Module | None, inputs: Sequence[Any], weights: bool, any_device: bool = False) -> None:
        self._described = partial(_description, with_device=not any_device)
        self._autocast = _autocast()
        leaves, self._spec = pytree.tree_flatten(tuple(inputs))
        self._is_flat = all(isinstance(each, Tensor) for each in inputs)
        self._wanted = tuple(map(self._described, leaves))
        expanded = [number for number, each in enumerate(leaves) if _is_expanded(each)]
        self._expanded = tuple((number, leaves[number].stride()) for number in expanded)
        self._modules = () if model is None else tuple(model.modules())
        self._modes = tuple(map(_training, self._modules))
        tables = [each for of in self._modules for each in (of._modules, of._parameters, of._buffers) if each]
        self._tables, self._sizes = tuple(tables), tuple(map(len, tables))
        self._members = tuple(chain.from_iterable(map(_values, self._tables)))
        self._parameters = () if model is None else tuple(model.parameters())
        self._gradients = tuple(map(_requires_grad, self._parameters))
        self._constants = () if model is None or not weights else (*self._parameters, *model.buffers())
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
        if tuple(map(_training, self._modules)) != self._modes:
            return "a module changed between training and evaluation mode"
        members = chain.from_iterable(map(_values, self._tables))
        if tuple(map(len, self._tables)) != self._sizes or not all(map(is_, members, self._members)):
            return "a module, a parameter or a buffer was replaced"
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
