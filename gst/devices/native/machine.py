"""The threads of the interpreter for given devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gst.devices.discover import Device

SPIN_US = 500


def machine(devices: Sequence[Device]) -> Any:
    """A started `torch.classes.gst.Machine`. Cores are numbered 0, 1, ... for the interpreter; a device free to use
    any core has a number of its own."""
    made = torch.classes.gst.Machine(SPIN_US)
    number = {core: index for index, core in enumerate(sorted({core for each in devices for core in each.cores}))}
    leaders: dict[int, list[Device]] = {}
    bits: list[list[int]] = []
    for device in devices:
        bits.append([number[core] for core in device.cores] or [len(number) + len(leaders)])
        leaders.setdefault(bits[-1][0], []).append(device)
    worker: dict[int, int] = {}
    for leader, led in leaders.items():
        widest = max(led, key=lambda device: device.threads)
        worker[leader] = made.worker(list(widest.cores[:1]), list(widest.cores), widest.threads, leader)
    for device, cores in zip(devices, bits, strict=True):
        made.device(cores, device.threads, worker[cores[0]])
    made.start()
    return made
