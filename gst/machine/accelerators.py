"""Accelerators of this process, whatever their kind: asked of `torch.accelerator` and of the module of their kind."""

from __future__ import annotations

from typing import Any

import torch


def accelerator_names() -> dict[str, str]:
    """Name of each accelerator here (`xpu:0`), and what its maker calls it; empty without one.

    Examples:
        >>> all(name.endswith(f":{number}") for number, name in enumerate(accelerator_names()))
        True
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return {}
    described = getattr(_module(accelerator), "get_device_name", lambda number: accelerator.type)
    return {
        f"{accelerator.type}:{number}": str(described(number)) for number in range(torch.accelerator.device_count())
    }


def synchronise_accelerators() -> None:
    """Wait for all work on the accelerators that this process uses; one that it does not use yet is left alone."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or not _module(accelerator).is_initialized():
        return
    is_used = getattr(torch._C, f"_{accelerator.type}_hasPrimaryContext", lambda number: True)
    for number in range(torch.accelerator.device_count()):
        if is_used(number):
            torch.accelerator.synchronize(number)


def limit_memory(device: torch.device, limit: int | None) -> None:
    """Let this process take no more than `limit` bytes of the memory of an accelerator, from now on; None = all."""
    share = 1.0 if limit is None else min(1.0, limit / torch.accelerator.get_memory_info(device)[1])
    _module(device).set_per_process_memory_fraction(share, device)


def _module(device: torch.device) -> Any:
    """What PyTorch has for one kind of device, such as `torch.xpu`: some of it has no neutral name."""
    return torch.get_device_module(device)
