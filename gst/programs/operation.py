"""Operations of a captured program, ATen calls with references to other nodes, their form as JSON; and its outputs."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

import gst.programs.step  # noqa: F401  # registers operators that programs from files name

ACCELERATOR = "cuda"
"""Kind of device for which steps are captured on a machine that has none; simulated GPUs are of this kind too."""

KINDS = ("cpu", ACCELERATOR)
"""Kinds of devices for which steps are captured."""


def kind_for(kinds: Iterable[str]) -> str:
    """Return the kind to capture a step for, so that devices of all these kinds can run the program.

    Examples:
        >>> kind_for(["cpu", "cpu"]), kind_for(["cpu", "cuda"])
        ('cpu', 'cuda')
    """
    return KINDS[any(kind != KINDS[0] for kind in kinds)]


GETITEM = "getitem"
TORCH_VALUES = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


@dataclass(frozen=True)
class Reference:
    """Placeholder of the value of node `node` in a template of arguments."""

    node: int


@dataclass(frozen=True, eq=False)
class Operation:
    """One node of a program.

    Args:
        name: unique within the program, for messages.
        kind: 'input' (a tensor given to the step), 'constant' (a tensor captured with it) or 'operation'.
        target: the operator; None for inputs and constants.
        args, kwargs: arguments, with `Reference` for another node's value (also inside lists).
        shapes, dtypes: of each tensor it makes (several for an operation with several results).
        constant: the tensor, of a constant only.
        is_view: True if its value shares memory with its first argument or is an item of it; nothing is computed.
    """

    name: str
    kind: Literal["input", "constant", "operation"]
    target: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    constant: Tensor | None = None
    is_view: bool = False

    @property
    def producers(self) -> tuple[int, ...]:
        """Nodes it reads, each once, in the order of its arguments."""
        return tuple(dict.fromkeys(references(self.args, tuple(self.kwargs.values()))))

    @property
    def elements(self) -> int:
        """Elements of all tensors it makes."""
        return sum(map(math.prod, self.shapes))

    @property
    def output_bytes(self) -> int:
        """Bytes of all tensors it makes."""
        pairs = zip(self.shapes, self.dtypes, strict=True)
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in pairs)


def references(*templates: Any) -> Iterator[int]:
    """Yield the nodes named in templates of arguments, in order, with repeats."""
    for template in templates:
        if isinstance(template, Reference):
            yield template.node
        elif isinstance(template, list | tuple):
            yield from references(*template)


def form_of_target(target: Callable[..., Any] | None) -> str:
    """Return the qualified name of a registered operator: 'aten::add.Tensor', 'getitem'; else raise ValueError."""
    if target is operator.getitem:
        return GETITEM
    if not isinstance(target, torch._ops.OpOverload):
        raise ValueError(f"{target} is no registered operator, so a program with it has no form in a file")
    name, _, _ = target.name().partition(".")
    return f"{name}.{target._overloadname}"


def target_of_form(form: str) -> Callable[..., Any]:
    """Return the registered operator of that name; else raise ValueError."""
    if form == GETITEM:
        return operator.getitem
    namespace, _, rest = form.partition("::")
    name, _, overload = rest.partition(".")
    try:
        target = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except (AttributeError, RuntimeError):
        target = None
    if not isinstance(target, torch._ops.OpOverload):
        raise ValueError(f"there is no operator {form!r} here; import the module that registers it, or trace again")
    return target


def form_of(value: Any) -> Any:
    """Return a template of arguments as JSON: a value that JSON lacks is a dictionary with its kind as the only key."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Reference):
        return {"node": value.node}
    if isinstance(value, list):
        return [form_of(each) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [form_of(each) for each in value]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, complex):
        return {"complex": str(value)}
    for kind, cls in TORCH_VALUES.items():
        if isinstance(value, cls):
            return {kind: str(value).removeprefix("torch.")}
    raise ValueError(f"an argument is a {type(value).__name__}, which has no form in a file")


def value_of(form: Any) -> Any:
    """Return the template of a form of `form_of`; of anything else raise ValueError."""
    if isinstance(form, list):
        return [value_of(each) for each in form]
    if not isinstance(form, dict):
        return form
    if len(form) != 1:
        raise ValueError(f"{sorted(form)} is no kind of argument")
    ((kind, content),) = form.items()
    if kind == "node":
        return Reference(int(content))
    if kind == "tuple":
        return tuple(value_of(each) for each in content)
    simple: dict[str, Callable[[Any], Any]] = {"float": float, "complex": complex, "device": torch.device}
    if kind in simple:
        return simple[kind](content)
    value = getattr(torch, content, None)
    if kind in TORCH_VALUES and isinstance(value, TORCH_VALUES[kind]):
        return value
    raise ValueError(f"{kind!r} {content!r} is no kind of argument")


TENSORS = (Tensor, nn.Parameter, nn.Buffer, FakeTensor, FunctionalTensor)  # of tensors that hold numbers alone
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


def tensors_of(values: Any) -> list[Tensor]:
    """Return the tensors of nested values, in order."""
    return [each for each in pytree.tree_leaves(values) if isinstance(each, Tensor)]


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
    if type(value) not in TENSORS:
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
