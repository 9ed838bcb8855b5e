"""Comparison of a placed model with the original: of each call with the example (`Guard`), and of outputs.

A guard compares shapes, dtypes, devices, gradients, expanded inputs, autocast, weights and all else that the model's
code reads. Expected values are kept as tuples, and the loops are those of C (`map`, `all`), so that a call costs
microseconds. Outputs are compared on the given inputs and on fresh ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gst.lowering.calls import is_expanded, unexpanded
from gst.programs import differ_beyond_rounding, outputs_differ
from gst.programs.operation import leaves, special_kind, tensors_of
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


DRAWS = 4  # of fresh inputs, until the model runs on one
MOST_CATEGORIES = 100  # whole numbers in a column of floating-point numbers


def fresh_inputs(inputs: Sequence[Any], seed: int, keeps_constants: bool = False) -> tuple[Any, ...]:
    """Draw other inputs of the same shapes, dtypes and strides.

    Columns (along the last axis) of whole numbers, such as categories, have their rows permuted together, as have
    masks. Other floating-point numbers are drawn with the same mean, deviation, limits and zeros; further values are
    permuted along the longest axis, unless they are sorted. Other kinds of tensors stay as they are.

    Args:
        keeps_constants: True if a column of one whole number is also a category, and keeps it.

    Examples:
        >>> fresh_inputs([torch.arange(4)], seed=0)[0].sort().values
        tensor([0, 1, 2, 3])
    """
    generator = torch.Generator().manual_seed(seed)

    def fresh(value: Tensor) -> Tensor:
        if special_kind(value) or is_traceable_wrapper_subclass(value) or not value.numel():
            return value
        if is_expanded(value):
            once = unexpanded(value.detach())
            return fresh(once).expand(value.shape).requires_grad_(value.requires_grad)
        new = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        old = value.detach()
        draw = _numbers(old, generator, keeps_constants) if value.is_floating_point() else _permuted(old, generator)
        return new.copy_(draw).requires_grad_(value.requires_grad)

    return tuple(pytree.tree_map_only(Tensor, fresh, list(inputs)))


def _numbers(value: Tensor, generator: torch.Generator, keeps_constants: bool) -> Tensor:
    columns = _columns(value.double())
    is_category = _is_category(columns, keeps_constants)
    is_drawn = columns.isfinite() & ((columns != 0) | (columns == 0).all()) & ~is_category
    new, own = columns, columns[is_drawn]
    if own.numel():
        low, reach = own.min(), own.max() - own.min()
        normal = torch.randn(columns.shape, generator=generator, dtype=torch.float64).to(columns.device)
        new = own.mean() + (own.std(correction=0) if reach else 1.0) * normal
        if reach:  # numbers beyond the limits are reflected
            new = low + reach - ((new - low) % (2 * reach) - reach).abs()
        new = torch.where(is_drawn, new, columns)
    order = _order(len(columns), generator).to(columns.device)
    return torch.where(is_category, columns[order], new).reshape(value.shape)


def _columns(value: Tensor) -> Tensor:
    return value.detach().reshape(-1, value.shape[-1] if value.dim() > 1 else 1)


def _is_category(columns: Tensor, keeps_constants: bool) -> Tensor:
    """Return for each column True if it holds few numbers, all of them whole: two at least, unless constants count."""
    is_whole = (columns.round() == columns).all(0)
    counts = [len(columns[:, number].unique()) if whole else 0 for number, whole in enumerate(is_whole.tolist())]
    few = is_whole & (torch.tensor(counts).to(columns.device) <= MOST_CATEGORIES)
    return few & ((columns != columns[:1]).any(0) | keeps_constants)


def _permuted(value: Tensor, generator: torch.Generator) -> Tensor:
    """Permute rows of a mask, or other values along the longest axis; sorted ones are offsets or a mask of padding."""
    if not value.dim():
        return value
    axis = value.shape.index(max(value.shape))
    if not value.is_complex():
        if bool(((value == 0) | (value == 1)).all()):
            axis = next((number for number, size in enumerate(value.shape[:-1]) if size > 1), axis)
        rows = value.movedim(axis, 0)
        if axis == value.dim() - 1 and (bool((rows[1:] >= rows[:-1]).all()) or bool((rows[1:] <= rows[:-1]).all())):
            return value
    return value.index_select(axis, _order(value.shape[axis], generator).to(value.device))


def _order(count: int, generator: torch.Generator) -> Tensor:
    """Return a random order other than the present one."""
    order = torch.randperm(count, generator=generator)
    return order.roll(1) if torch.equal(order, torch.arange(count)) else order


def difference(
    run: Callable[..., Any], model: Callable[..., Any], inputs: Sequence[Any], seed: int, draws: int = DRAWS
) -> str | None:
    """Describe the first difference between two functions on the given inputs, then on fresh ones; None if their
    outputs agree.

    Args:
        draws: fresh inputs that are drawn at most: a draw on which the model fails, or returns numbers that are not
            finite, is replaced by another.
    """
    want = leaves(model(*inputs))
    is_finite = _are_finite(want)
    reason = differ_beyond_rounding(leaves(run(*inputs)), want, partial(_moved, model, inputs), inputs)
    for number in range(draws if reason is None else 0):
        values = fresh_inputs(inputs, seed + number, keeps_constants=number % 2 == 1)
        try:
            want = leaves(model(*values))
        except Exception:  # any exception of the model, whose inputs have limits of their own
            continue
        if _are_finite(want) or not is_finite:
            got = leaves(run(*values))
            return differ_beyond_rounding(got, want, partial(_moved, model, values), values)
    return reason


def _moved(model: Callable[..., Any], inputs: Sequence[Any], moved: Sequence[Any]) -> Any:
    """Run a model on inputs that were rounded otherwise, apart from categories; on those given where it fails."""

    def as_given(new: Any, old: Any) -> Any:
        if not isinstance(old, Tensor) or new is old or not old.is_floating_point() or not old.numel():
            return new
        is_category = _is_category(_columns(old), keeps_constants=False)
        return torch.where(is_category if old.dim() > 1 else is_category.all(), old.detach(), new)

    try:
        return model(*pytree.tree_map(as_given, list(moved), list(inputs)))
    except Exception:  # any exception of the model, for numbers next to those that it takes
        return model(*inputs)


def _are_finite(values: Sequence[Any]) -> bool:
    return all(not isinstance(each, Tensor) or bool(each.detach().isfinite().all()) for each in values)


def repeats(model: nn.Module, inputs: Sequence[Any]) -> bool:
    """True if a model returns the same twice and changes neither its weights nor its inputs.

    Examples:
        >>> repeats(nn.Dropout(), (torch.ones(99),)), repeats(nn.Dropout().eval(), (torch.ones(99),))
        (False, True)

    Raises:
        ValueError: it does not run on these inputs.
    """
    tensors = [*model.parameters(), *model.buffers(), *tensors_of(inputs)]
    versions = [each for each in tensors if not each.is_inference()]  # others have no version
    before = [each._version for each in versions]
    with torch.no_grad():
        try:
            first, second = (leaves(model(*inputs)) for _ in range(2))
        except Exception as error:
            raise ValueError(f"the model refuses these inputs: {error}") from error
    return outputs_differ(first, second) is None and [each._version for each in versions] == before
