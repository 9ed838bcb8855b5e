"""A value passes from one device to another: as it is within a memory, as a copy between memories."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gst.devices.discover import Device


def departure(device: Device) -> torch.cuda.Event | None:
    """What to wait for before reading a value just made on `device`: an event of its stream, or None."""
    if device.kind == "cpu":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device.torch_device))
    return event


def receive(value: Any, event: torch.cuda.Event | None, source: Device, destination: Device) -> tuple[Any, int]:
    """Make `value` readable on the thread (and stream) of `destination`, which is the caller's.

    Returns:
        The value, or its copy, and the bytes that were copied.
    """
    if event is not None:
        if destination.kind == "cuda":
            torch.cuda.current_stream(destination.torch_device).wait_event(event)
        else:
            event.synchronize()
    if source.memory == destination.memory:
        if destination.kind == "cuda":
            for tensor in _tensors(value):
                tensor.record_stream(torch.cuda.current_stream(destination.torch_device))
        return value, 0
    copied = _copy(value, source, destination)
    return copied, sum(tensor.numel() * tensor.element_size() for tensor in _tensors(copied))


def _copy(value: Any, source: Device, destination: Device) -> Any:
    if isinstance(value, list | tuple):
        return [_copy(each, source, destination) for each in value]
    if not isinstance(value, Tensor):
        return value
    if destination.kind == "cpu" and value.device.type == "cpu":
        return value.clone()
    copied = value.to(destination.torch_device)
    if source.kind == "cuda":  # the allocator may reuse the source only after this copy, made on this thread's stream
        value.record_stream(torch.cuda.current_stream(value.device))
    return copied


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for each in value for tensor in _tensors(each)] if isinstance(value, list | tuple) else []
