"""The threads of the interpreter for given devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gst.devices.discover import Device, core_numbers

SPIN_US = 500


def machine(devices: Sequence[Device]) -> Any:
    """A started `torch.classes.gst.Machine` with a thread for each first core of a device."""
    made = torch.classes.gst.Machine(SPIN_US)
    numbers = core_numbers(devices)
    leaders: dict[int, list[Device]] = {}
    for device, cores in zip(devices, numbers, strict=True):
        leaders.setdefault(cores[0], []).append(device)
    worker: dict[int, int] = {}
    for leader, led in leaders.items():
        widest = max(led, key=lambda device: device.threads)
        worker[leader] = made.worker(list(widest.cores[:1]), list(widest.cores), widest.threads, leader)
    for device, cores in zip(devices, numbers, strict=True):
        made.device(cores, device.threads, worker[cores[0]])
    made.start()
    return made
