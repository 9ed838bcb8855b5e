"""Many tensors in one piece of memory, so that one copy brings all of them to a device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

HOST = torch.device("cpu")
ALIGNMENT = 64  # bytes, at a multiple of which each tensor begins
Kind = tuple[torch.dtype, tuple[int, ...]]  # dtype and shape of a tensor


@dataclass(frozen=True, eq=False)
class Packed:
    """Tensors in one buffer of bytes.

    Args:
        layout: dtype, shape and first byte of each.

    Examples:
        >>> packed = Packed.of({"one": torch.ones(2), "other": torch.arange(3)})
        >>> packed.tensors["other"], packed.buffer.shape
        (tensor([0, 1, 2]), torch.Size([128]))
    """

    buffer: Tensor
    layout: Mapping[str, tuple[torch.dtype, tuple[int, ...], int]]

    @staticmethod
    def empty(kinds: Mapping[str, Kind], device: torch.device = HOST) -> Packed:
        """Return memory of the host, not yet written, from which `device` fetches while the host continues."""
        layout, size = {}, 0
        for name, (dtype, shape) in kinds.items():
            layout[name] = dtype, shape, size
            size += -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        return Packed(torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda"), layout)

    @staticmethod
    def of(tensors: Mapping[str, Tensor], device: torch.device = HOST) -> Packed:
        """Copy tensors of the host into memory of the host, see `empty`."""
        packed = Packed.empty(kinds_of(tensors), device)
        for name, place in packed.tensors.items():
            place.copy_(tensors[name])
        return packed

    def to(self, device: torch.device) -> Packed:
        """Copy to a device, at once; the host does not wait."""
        return replace(self, buffer=self.buffer.to(device, non_blocking=True))

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors, as parts of the buffer."""
        return {
            name: self.buffer[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
            for name, (dtype, shape, start) in self.layout.items()
        }


def kinds_of(tensors: Mapping[str, Tensor]) -> dict[str, Kind]:
    return {name: (each.dtype, tuple(each.shape)) for name, each in tensors.items()}


def sent(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return tensors of the host on a device, brought there by one copy, for which the host does not wait.

    Examples:
        >>> sent({"one": torch.ones(2)}, torch.device("cpu"))
        {'one': tensor([1., 1.])}
    """
    return dict(tensors) if device.type == "cpu" else Packed.of(tensors, device).to(device).tensors
