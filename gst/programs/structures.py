"""Structures of a user's outputs that PyTorch's pytrees do not open, and tensors that are no plain array of numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

KINDS = (Tensor, nn.Parameter, nn.Buffer, FakeTensor, FunctionalTensor)  # of tensors that hold numbers alone
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class _Fields:
    """Form in which pytrees open a dataclass: they rebuild the object itself."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _rebuilt(children: Any, context: tuple[type, tuple[str, ...]]) -> Any:
    kind, names = context
    value: Any = object.__new__(kind)
    for name, each in zip(names, children, strict=True):
        object.__setattr__(value, name, each)
    return value


def _children(fields: _Fields) -> tuple[list[Any], tuple[type, tuple[str, ...]]]:
    names = tuple(each.name for each in dataclasses.fields(fields.value))
    return [opened(getattr(fields.value, name)) for name in names], (type(fields.value), names)


def _keyed(fields: _Fields) -> Any:
    children, (kind, names) = _children(fields)
    return [(pytree.GetAttrKey(name), each) for name, each in zip(names, children, strict=True)], (kind, names)


pytree.register_pytree_node(_Fields, _children, _rebuilt, flatten_with_keys_fn=_keyed)


def opened(value: Any) -> Any:
    """Return a value whose dataclasses are opened by pytrees, at any depth. Mapped, it has dataclasses again.

    Examples:
        >>> @dataclasses.dataclass
        ... class Output:
        ...     score: int
        >>> pytree.tree_map(lambda each: each + 1, opened([Output(1), 2]))
        [Output(score=2), 3]
    """
    return pytree.tree_map(lambda each: _Fields(each) if _is_dataclass(each) else each, value)


def leaves(value: Any) -> list[Any]:
    """Return the flat outputs of a call for comparison: also those in dataclasses and in attributes of other objects;
    of sparse, nested and quantized tensors their numbers."""
    result: list[Any] = []
    for each in pytree.tree_leaves(opened(value)):
        if isinstance(each, Tensor):
            result += [each] if special_kind(each) is None else _dense(each)
        elif isinstance(each, (*PLAIN, type)) or not hasattr(each, "__dict__"):
            result.append(each)
        else:
            result += [type(each), *leaves(vars(each))]
    return result


def special_kind(value: Any) -> str | None:
    """Return the kind of a tensor that is captured by no program and compiled by no compiler; None for all others.

    Examples:
        >>> special_kind(torch.eye(2).to_sparse()), special_kind(torch.eye(2))
        ('sparse COO tensor', None)
    """
    if not isinstance(value, Tensor):
        return None
    if nn.parameter.is_lazy(value):
        return "parameter without a shape (call the model once before)"
    if value.is_nested:
        return "nested tensor"
    if value.is_quantized:
        return "quantized tensor"
    if type(value) not in KINDS:
        return f"tensor of type {type(value).__name__}"
    if value.layout != torch.strided:
        name = str(value.layout).removeprefix("torch.")
        return f"sparse {name.removeprefix('sparse_').upper()} tensor" if "sparse" in name else "MKL-DNN tensor"
    return None


def _is_dataclass(value: Any) -> bool:
    """True for a dataclass object that its fields describe in full."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    return set(getattr(value, "__dict__", ())) <= {each.name for each in dataclasses.fields(value)}


def _dense(value: Tensor) -> list[Any]:
    if value.is_nested:
        return list(value.unbind())
    if value.is_quantized:
        return [value.dequantize()]
    return [value.as_subclass(Tensor) if value.layout == torch.strided else value.to_dense()]
