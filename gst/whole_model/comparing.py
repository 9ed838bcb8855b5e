"""Comparison of a variant's outputs with those of the model, on fresh random inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.lowering.calls import is_expanded, unexpanded
from gst.programs import differ_beyond_rounding, outputs_differ
from gst.programs.structures import leaves, special_kind


def fresh_inputs(inputs: Sequence[Any], seed: int) -> tuple[Any, ...]:
    """Draw other inputs of the same shapes, dtypes and strides: floating-point numbers with the same mean and
    deviation, where finite; other values are permuted.

    Examples:
        >>> fresh_inputs([torch.arange(4)], seed=0)[0].sort().values
        tensor([0, 1, 2, 3])
    """
    generator = torch.Generator().manual_seed(seed)

    def fresh(value: Tensor) -> Tensor:
        if special_kind(value):
            return value
        if is_expanded(value):
            once = unexpanded(value.detach())
            return fresh(once).expand(value.shape).requires_grad_(value.requires_grad)
        new = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        if value.is_floating_point():
            numbers = value.detach().double()
            finite = numbers[numbers.isfinite()]
            spread = float(finite.std()) if finite.numel() > 1 else 0.0
            normal = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            if finite.numel():
                fresh_numbers = float(finite.mean()) + (spread or 1.0) * normal
                new.copy_(torch.where(numbers.isfinite(), fresh_numbers.to(numbers.device), numbers))
            else:
                new.copy_(value.detach())
            return new.requires_grad_(value.requires_grad)
        order = torch.randperm(value.numel(), generator=generator)
        return new.copy_(value.flatten()[order].reshape(value.shape))

    return tuple(pytree.tree_map_only(Tensor, fresh, list(inputs)))


def difference(run: Callable[..., Any], model: Callable[..., Any], inputs: Sequence[Any], seed: int) -> str | None:
    """Describe the first difference between two functions on fresh random inputs; None if their outputs agree."""
    values = fresh_inputs(inputs, seed)
    with torch.no_grad():
        want = leaves(model(*values))
        return differ_beyond_rounding(leaves(run(*values)), want, lambda moved: model(*moved), values)


def repeats(model: nn.Module, inputs: Sequence[Any]) -> bool:
    """True if a model returns the same twice and changes neither its weights nor its inputs.

    Examples:
        >>> repeats(nn.Dropout(), (torch.ones(99),)), repeats(nn.Dropout().eval(), (torch.ones(99),))
        (False, True)

    Raises:
        ValueError: it does not run on these inputs.
    """
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [each for each in pytree.tree_leaves(list(inputs)) if isinstance(each, Tensor)]
    versions = [each for each in tensors if not each.is_inference()]  # others have no version
    before = [each._version for each in versions]
    with torch.no_grad():
        try:
            first, second = (leaves(model(*inputs)) for _ in range(2))
        except Exception as error:
            raise ValueError(f"the model refuses these inputs: {error}") from error
    return outputs_differ(first, second) is None and [each._version for each in versions] == before
