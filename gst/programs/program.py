"""A captured training step: a graph for whoever plans, and a list of calls for whoever runs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils import _pytree as pytree

from gst.graphs.graph import Graph

# Error allowed relative to the largest magnitude: sums in another order differ less, wrong operations more.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 3e-2, torch.float16: 1e-2}

ROUNDING = 16  # units of the last place


@dataclass(frozen=True)
class Reference:
    """Stands in a template of arguments for the value of node `node`."""

    node: int


@dataclass(frozen=True, eq=False)
class Operation:
    """One node of a program.

    Args:
        name: unique within the program, for messages.
        kind: 'input' (a tensor given to the step), 'constant' (a tensor captured with it) or 'operation'.
        target: what is called; None for inputs and constants.
        args: positional arguments, with `Reference` where another node's value belongs (also inside lists).
        kwargs: keyword arguments, likewise.
        shapes: of each tensor it makes (several for an operation with several results).
        dtypes: of each tensor it makes.
        constant: the tensor, of a constant only.
        is_view: its value shares memory with its first argument or is an item of it; nothing is computed.
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
        """The nodes it reads, each once, in the order of its arguments."""
        return tuple(dict.fromkeys(references(self.args, tuple(self.kwargs.values()))))

    @property
    def output_bytes(self) -> int:
        """Bytes of all tensors it makes."""
        pairs = zip(self.shapes, self.dtypes, strict=True)
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in pairs)


@dataclass(frozen=True, eq=False)
class Program:
    """A captured step. Node i of `graph` is `operations[i]`, and every node comes after those it reads.

    Args:
        name: of the step.
        graph: features, opcodes and edges producer -> consumer (each pair once).
        operations: what each node calls.
        inputs: example values of the 'input' nodes, which are nodes 0 .. len(inputs) - 1.
        outputs: for each flat output a `Reference` to the node that makes it, or a plain value.
        output_spec: how flat outputs become what the step returned (`program.unflatten`).
        colocation: number of the group of each node, 0 .. groups - 1; a group is best placed as one.
        parameter_home: for each node the input node of the parameter that it is, views or renews; -1 for none.
    """

    name: str
    graph: Graph
    operations: tuple[Operation, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Any, ...]
    output_spec: pytree.TreeSpec
    colocation: Int64[np.ndarray, " nodes"]
    parameter_home: Int64[np.ndarray, " nodes"] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.parameter_home is None:
            object.__setattr__(self, "parameter_home", np.full(len(self.operations), -1, np.int64))

    @property
    def num_nodes(self) -> int:
        return len(self.operations)

    @property
    def num_groups(self) -> int:
        return int(self.colocation.max()) + 1

    @cached_property
    def output_bytes(self) -> Int64[np.ndarray, " nodes"]:
        """Bytes each node hands to another memory: a view counts what it shows."""
        return np.array([operation.output_bytes for operation in self.operations], np.int64)

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits, the same wherever operations, arguments, shapes, dtypes, constants and outputs are
        the same; names and the values of inputs do not count. A plan made for one such program fits the other.

        Raises:
            ValueError: an argument of an operation has no form in a file.
        """
        from gst.programs.saving import content_key

        return content_key(self)

    def save(self, directory: Path) -> None:
        """Write the new directory `directory`, at once or not at all; nothing in it is pickled Python code.

        Raises:
            ValueError: it is there already, or an operation or argument has no form in a file.
        """
        from gst.programs.saving import save

        save(self, directory)

    @staticmethod
    def load(directory: Path) -> Program:
        """Read what `save` wrote; the program has the same key and computes the same.

        Raises:
            ValueError: it is no saved program, one of another version, a file of it is missing or damaged, or it
                needs an operator that is not registered here.
        """
        from gst.programs.saving import load

        return load(directory)

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """Give flat outputs the structure in which the step returned them."""
        return pytree.tree_unflatten(list(outputs), self.output_spec)

    def check_inputs(self, inputs: Sequence[Tensor] | None) -> Sequence[Tensor]:
        """`inputs`, or the examples if None.

        Raises:
            ValueError: their number, a shape or a dtype is not that of the examples.
        """
        if inputs is None:
            return self.inputs
        if len(inputs) != len(self.inputs):
            raise ValueError(f"program {self.name!r} takes {len(self.inputs)} flat inputs, got {len(inputs)}")
        for got, want, operation in zip(inputs, self.inputs, self.operations, strict=False):
            if got.shape != want.shape or got.dtype != want.dtype:
                raise ValueError(
                    f"input {operation.name!r} of program {self.name!r} is {got.dtype} {tuple(got.shape)}, "
                    f"captured with {want.dtype} {tuple(want.shape)}; capture again for other shapes"
                )
        return inputs


def references(*templates: Any) -> Iterator[int]:
    """Nodes named in templates of arguments, in order, with repeats."""
    for template in templates:
        if isinstance(template, Reference):
            yield template.node
        elif isinstance(template, list | tuple):
            yield from references(*template)


def outputs_differ(got: Sequence[Any], want: Sequence[Any]) -> str | None:
    """What differs first between two lists of flat outputs; None if they agree within their `TOLERANCE`.

    An output near zero may be a difference of numbers as large as the other outputs (the gradient of a bias before a
    normalisation, say), so no output need agree better than `ROUNDING` units of the last place of the largest one.
    """
    if len(got) != len(want):
        return f"{len(got)} outputs instead of {len(want)}"
    numbers = [_real(each) for each in want if isinstance(each, Tensor)]
    largest = max([_scale(each) for each in numbers if each.is_floating_point()], default=0.0)
    for position, (a, b) in enumerate(zip(got, want, strict=True)):
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            if a is not b and a != b:
                return f"output {position} is {a!r} instead of {b!r}"
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {position} is {a.dtype} {tuple(a.shape)} instead of {b.dtype} {tuple(b.shape)}"
        a, b = _real(a), _real(b)
        if a.dtype in TOLERANCE and a.numel():
            scale = _scale(b)
            rounding = min(ROUNDING * torch.finfo(a.dtype).eps, TOLERANCE[a.dtype] / 100) * largest
            limit = max(TOLERANCE[a.dtype] * scale, rounding)
            if not torch.allclose(a.double(), b.double(), rtol=0.0, atol=limit, equal_nan=True):
                error = (a.double() - b.double()).abs().max().item()
                return f"output {position} is off by {error:.3g}, allowed {limit:.3g}"
        elif not torch.equal(a, b):
            return f"output {position} ({a.dtype}) is not equal"
    return None


def _real(value: Tensor) -> Tensor:
    """On the CPU; complex numbers as pairs of real ones."""
    value = value.detach().cpu()
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _scale(value: Tensor) -> float:
    """The largest finite magnitude; 1e-6 if there is none above."""
    finite = torch.nan_to_num(value.detach().cpu().double(), nan=0.0, posinf=0.0, neginf=0.0)
    return max(finite.abs().max().item() if value.numel() else 0.0, 1e-6)
