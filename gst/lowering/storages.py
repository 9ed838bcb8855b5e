"""Storages of a program: the pieces of memory that a run allocates, and which values lie in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from gst.lowering.calls import Values, bind
from gst.programs import Program


@dataclass(frozen=True, eq=False)
class Storages:
    """Pieces of memory that a run allocates; several values may lie in one (a view and its base).

    Args:
        num_bytes: of each storage.
        made_by: node that allocates it.
        held: pairs (storage, node): the value of the node keeps the storage alive.
    """

    num_bytes: Int64[np.ndarray, " storages"]
    made_by: Int64[np.ndarray, " storages"]
    held: Int64[np.ndarray, "2 holds"]


def storages(program: Program) -> Storages:
    """Which values of the program lie in the same memory, as fake tensors tell: nothing is computed or allocated.

    What operators declare of aliases is not enough: `_unsafe_view` and `contiguous` return their argument's memory.
    What fake tensors cannot compute is taken to lie in memory of its own: a group that is compiled, say.
    """
    fake = FakeTensorMode()
    values: Values = [None if each is None else fake.from_tensor(each) for each in fixed_values(program)]
    fixed = {storage for value in values for storage, _ in _memory(value)}
    number: dict[int, int] = {}
    num_bytes: list[int] = []
    made_by: list[int] = []
    held: list[tuple[int, int]] = []
    with torch.no_grad(), fake:
        for node, call in enumerate(bind(program, torch.device("cpu"))):
            if call is None:
                continue
            try:
                values[node] = call(values)
                lies_in = _memory(values[node])
            except Exception:
                lies_in = [(-node, int(program.output_bytes[node]))]
            for storage, size in lies_in:
                if storage in fixed:
                    continue
                if storage not in number:
                    number[storage] = len(num_bytes)
                    num_bytes.append(size)
                    made_by.append(node)
                held.append((number[storage], node))
    pairs = np.array(held, np.int64).reshape(-1, 2).T
    return Storages(np.array(num_bytes, np.int64), np.array(made_by, np.int64), pairs)


def fixed_values(program: Program) -> list[Any]:
    """Values of inputs and constants, None for operations."""
    return [*program.inputs, *(operation.constant for operation in program.operations[len(program.inputs) :])]


def _memory(value: Any) -> Sequence[tuple[int, int]]:
    """Identity and bytes of the storage of each tensor in a value."""
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        return [(storage._cdata, storage.nbytes())] if storage.nbytes() else []
    return [pair for each in value for pair in _memory(each)] if isinstance(value, list | tuple) else []
