"""Kernel programs: the kernel calls of a compiled step in order, with the bytes that each reads and writes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.utils import _pytree as pytree

ALIGNMENT = 16  # bytes, of the inputs of compiled code


class Region(NamedTuple):
    """Bytes `start` to `stop` of a storage."""

    storage: int
    start: int
    stop: int

    def meets(self, other: Region) -> bool:
        """True if both have a byte in common.

        Examples:
            >>> Region(0, 0, 8).meets(Region(0, 4, 12)), Region(0, 0, 8).meets(Region(0, 8, 12))
            (True, False)
        """
        return self.storage == other.storage and self.start < other.stop and other.start < self.stop


class View(NamedTuple):
    """Placeholder of a tensor in a template of arguments: a view of a storage.

    Args:
        offset: of the first element, in elements.
    """

    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @staticmethod
    def of(tensor: Tensor, storage: int) -> View:
        """Describe a tensor that lies in a storage."""
        return View(storage, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    @property
    def region(self) -> Region:
        """The bytes between its first element and its last.

        Examples:
            >>> View.of(torch.zeros(4, 4)[:, 1:3], 7).region
            Region(storage=7, start=4, stop=60)
        """
        size = self.dtype.itemsize
        if 0 in self.shape:
            return Region(self.storage, self.offset * size, self.offset * size)
        last = sum((length - 1) * stride for length, stride in zip(self.shape, self.stride, strict=True))
        return Region(self.storage, self.offset * size, (self.offset + last + 1) * size)

    def is_like(self, tensor: Tensor) -> bool:
        """True if a tensor has its dtype, shape and strides, at an address that compiled code takes."""
        is_alike = (self.dtype, self.shape, self.stride) == (tensor.dtype, tuple(tensor.shape), tensor.stride())
        return is_alike and tensor.data_ptr() % ALIGNMENT == 0

    def on(self, storage: torch.UntypedStorage, device: torch.device, start: int = 0) -> Tensor:
        """Return the tensor, where its storage begins at byte `start` of `storage`."""
        offset = start // self.dtype.itemsize + self.offset
        return torch.empty(0, dtype=self.dtype, device=device).set_(storage, offset, self.shape, self.stride)

    def of_storage_of(self, tensor: Tensor) -> Tensor:
        """Return the tensor in the storage of another."""
        if tensor.dtype == self.dtype:
            return tensor.as_strided(self.shape, self.stride, self.offset)
        return self.on(tensor.untyped_storage(), tensor.device)


GENERATOR = -1
"""Storage of the state of random numbers: each call that draws some reads and writes it, so that they keep their
order."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """One call of a compiled step.

    Args:
        name: of the kernel or operator; the same for calls of the same code.
        kind: 'generated' (Triton, C++) or 'operator' (ATen, cuBLAS, cuDNN, oneDNN).
        call: runs it.
        args, kwargs: of the call, with a `View` for each tensor.
        reads, writes: what it reads and writes. What it adds to is among both.
        makes: storages of the tensors that it returns, in their order; the call allocates them itself.
    """

    name: str
    kind: Literal["generated", "operator"]
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    makes: tuple[int, ...] = ()

    @property
    def signature(self) -> tuple[Any, ...]:
        """Equal for calls that take as long: the same kernel for the same shapes."""
        views = [(each.dtype, each.shape, each.stride) for each in views_in((self.args, self.kwargs))]
        return self.name, tuple(views), tuple(each for each in self.args if isinstance(each, int | float))


@dataclass(frozen=True, eq=False)
class KernelProgram:
    """Kernel calls of a step, in the order of the compiler.

    Args:
        name: of the step.
        kernels: the calls.
        storage_bytes: of each storage.
        given: tensors of the storages that are there before the first call: inputs, and constants.
        inputs: views of the flat inputs.
        outputs: a view for each tensor that the step returns, and other values as they are.
        device: of all tensors.
        key: 16 digits, equal for equal code.
    """

    name: str
    kernels: tuple[Kernel, ...]
    storage_bytes: Int64[np.ndarray, " storages"]
    given: dict[int, torch.UntypedStorage]
    inputs: tuple[View, ...]
    outputs: tuple[Any, ...]
    device: torch.device
    key: str

    def without_inputs(self) -> KernelProgram:
        """Return the program without the memory of its recorded inputs: a run has to be given other."""
        inputs = {view.storage for view in self.inputs}
        return replace(self, given={each: value for each, value in self.given.items() if each not in inputs})

    @property
    def num_kernels(self) -> int:
        return len(self.kernels)

    @cached_property
    def made_by_calls(self) -> frozenset[int]:
        """Storages that calls allocate themselves."""
        return frozenset(storage for kernel in self.kernels for storage in kernel.makes)

    @cached_property
    def placed(self) -> Int64[np.ndarray, " placed"]:
        """Storages for which a run has to find memory."""
        return np.array(sorted((self.users.keys() | self.results) - self.beforehand - self.made_by_calls), np.int64)

    @cached_property
    def beforehand(self) -> frozenset[int]:
        """Storages that are there before the first call: inputs and constants."""
        return frozenset(self.given.keys() | {view.storage for view in self.inputs})

    @cached_property
    def users(self) -> dict[int, list[int]]:
        """The calls that read or write each storage, in order."""
        users: dict[int, list[int]] = {}
        for call, kernel in enumerate(self.kernels):
            for storage in dict.fromkeys(region.storage for region in (*kernel.reads, *kernel.writes)):
                if storage != GENERATOR:
                    users.setdefault(storage, []).append(call)
        return users

    @cached_property
    def results(self) -> frozenset[int]:
        """Storages of the outputs."""
        return frozenset(view.storage for view in views_in(self.outputs))

    @cached_property
    def returns(self) -> Bool[np.ndarray, " kernels"]:
        """True for calls that write to a storage of the outputs."""
        written = [{region.storage for region in kernel.writes} for kernel in self.kernels]
        return np.array([not each.isdisjoint(self.results) for each in written], bool)

    @cached_property
    def dependencies(self) -> Int64[np.ndarray, "2 edges"]:
        """Pairs (call, later call that has to wait for it): both meet in a byte, and one of them writes it. Pairs that
        follow from others may be left out."""
        pairs: set[tuple[int, int]] = set()
        live: dict[int, list[tuple[Region, int, bool]]] = {}
        for number, kernel in enumerate(self.kernels):
            accesses = [(region, False) for region in kernel.reads] + [(region, True) for region in kernel.writes]
            for region, is_write in accesses:
                for other, earlier, wrote in live.get(region.storage, ()):
                    if earlier != number and (is_write or wrote) and region.meets(other):
                        pairs.add((earlier, number))
            for region, is_write in accesses:
                before = live.setdefault(region.storage, [])
                if is_write:  # all that it covers is done before it, and whoever waits for it waits for that
                    before[:] = [each for each in before if each[1] == number or not _covers(region, each[0])]
                before.append((region, number, is_write))
        return np.array(sorted(pairs), np.int64).reshape(-1, 2).T

    @cached_property
    def written_bytes(self) -> Int64[np.ndarray, " kernels"]:
        """Bytes that each call writes."""
        return np.array([sum(stop - start for _, start, stop in kernel.writes) for kernel in self.kernels], np.int64)

    @cached_property
    def read_bytes(self) -> Int64[np.ndarray, " kernels"]:
        """Bytes that each call reads."""
        return np.array([sum(stop - start for _, start, stop in kernel.reads) for kernel in self.kernels], np.int64)


def _covers(region: Region, other: Region) -> bool:
    return region.start <= other.start and other.stop <= region.stop


def _is_view(value: Any) -> bool:
    return isinstance(value, View)


def views_in(template: Any) -> list[View]:
    """Return the views in a template, in order."""
    return list(filter(_is_view, pytree.tree_leaves(template, is_leaf=_is_view)))


def filled(template: Any, tensor_of: Callable[[View], Any]) -> Any:
    """Return a template with a tensor, or whatever the function returns, in place of each view."""
    return pytree.tree_map_only(View, tensor_of, template, is_leaf=_is_view)


def key_of(source: str, inputs: Sequence[View]) -> str:
    """Return the key of a compiled step: of its source without comments, and its inputs.

    Examples:
        >>> key_of("# 1\\nf()", []) == key_of("# 2\\nf()", [])
        True
    """
    source = "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("#"))
    return hashlib.sha256(repr((source, list(map(tuple, inputs)))).encode()).hexdigest()[:16]
