"""Measures the rates of devices, and of the links between them, by small programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations_with_replacement

import numpy as np
import torch
from torch import Tensor

from gst.execution.costs import profile
from gst.execution.executor import executor
from gst.execution.interpreter import compiler
from gst.execution.native import NativeExecutor
from gst.execution.spans import launch_us
from gst.execution.transfers import SIZES, copy_rates
from gst.lowering.plan import Plan, Timeline
from gst.machine.devices import Device, supports, this_machine
from gst.machine.load import LoadMeter
from gst.machine.rates import CopyRates, Link, OperationRates, Rates
from gst.programs import Operation, Program, Step, capture
from gst.util.progress import Progress, no_progress

CHAIN = 64  # operations of the ping-pong


@dataclass(frozen=True)
class Probe:
    """Sizes of the operations that are timed: matrices, images of a convolution with 3 x 3 kernels, long vectors."""

    width: int
    images: int
    channels: int
    pixels: int
    elements: int
    copied_bytes: int

    @property
    def matrix_flops(self) -> int:
        """A multiplication and an addition for each product."""
        return 2 * self.width**3

    @property
    def convolution_flops(self) -> int:
        """Likewise; kernel positions on padding count too."""
        return 2 * self.images * self.pixels**2 * 9 * self.channels**2


PROBES = {
    "cpu": Probe(768, 8, 64, 28, 1 << 22, 1 << 24),
    "accelerator": Probe(8192, 128, 256, 28, 1 << 26, 1 << 28),
}
"""For devices of each class, sizes at which an operation is bound by arithmetic or by memory, not by its call."""


def operation_rates(device: Device, probe: Probe, repetitions: int) -> OperationRates:
    """Run one operation of each class on the device, alone, as plans do."""
    program = capture(Step("probe", _classes, _inputs(probe)))
    with executor(program, [device]) as running:
        times = profile(program, running, device.name, repetitions)
    seconds = {
        name: float(np.median([times[node] for node, each in enumerate(program.operations) if _packet(each) == name]))
        / 1e6
        for name in ("mm", "convolution", "mul", "sum", "add")
    }
    vector = 4 * probe.elements
    return OperationRates(
        device.name, device.kind, device.threads, probe.matrix_flops / seconds["mm"] / 1e9,
        probe.convolution_flops / seconds["convolution"] / 1e9, 2 * vector / seconds["mul"] / 1e9,
        vector / seconds["sum"] / 1e9, seconds["add"] * 1e6,
        launch_us(device.torch_device, repetitions),
    )  # fmt: skip


def ping_pong() -> Program:
    """A chain of operations of which each reads what the one before it made."""
    return capture(Step("chain", _chain, (torch.zeros(8),)))


def hand_over_us(chain: Program, source: Device, destination: Device) -> float | None:
    """Median time between the operations of a chain that goes back and forth between two devices of one memory."""
    devices = [source] if source == destination else [source, destination]
    if not supports(devices) or compiler() is None:
        return None
    names = tuple(device.name for device in devices)
    plan = Plan(names, np.arange(chain.num_nodes) % len(names))
    with NativeExecutor(chain, devices) as running:
        running.run(plan)  # wakes the threads
        running.run(plan)
        return gap_us(running.last_timeline, chain)


def gap_us(timeline: Timeline, chain: Program) -> float:
    """Median time from the end of an operation to the beginning of the next, of a program that is one chain."""
    nodes = [node for node, each in enumerate(chain.operations) if each.kind == "operation"]
    return float(np.median(timeline.begin_us[nodes[1:]] - timeline.end_us[nodes[:-1]]))


def _classes(
    left: Tensor, right: Tensor, images: Tensor, kernels: Tensor, vector: Tensor, small: Tensor
) -> tuple[Tensor, ...]:
    for _ in range(16):
        small = small + 1
    return left @ right, torch.conv2d(images, kernels, padding=1), vector * vector, vector.sum(), small


def _inputs(probe: Probe) -> tuple[Tensor, ...]:
    matrix = torch.full((probe.width, probe.width), 0.5)
    images = torch.full((probe.images, probe.channels, probe.pixels, probe.pixels), 0.5)
    kernels = torch.full((probe.channels, probe.channels, 3, 3), 0.5)
    return matrix, matrix.clone(), images, kernels, torch.full((probe.elements,), 0.5), torch.zeros(8)


def _chain(value: Tensor) -> Tensor:
    for _ in range(CHAIN):
        value = value + 1
    return value


def _packet(operation: Operation) -> str:
    return getattr(getattr(operation.target, "overloadpacket", None), "__name__", "")


def _class(device: Device) -> str:
    return "accelerator" if device.is_accelerator else "cpu"


def measure_rates(
    devices: Sequence[Device],
    pairs: Sequence[Device],
    repetitions: int = 10,
    probes: Mapping[str, Probe] = PROBES,
    progress: Progress = no_progress,
) -> Rates:
    """Time one small program on each kind of device, and the links of every two of `pairs`.

    Args:
        devices: one of each number of threads is measured, and every GPU.
        pairs: devices whose links are measured, each also with itself.
        repetitions: to take medians of.
        probes: sizes of the operations for CPUs and for accelerators.
        progress: told what was done, how much of it, of how much.
    """
    meter, rates, links = LoadMeter(), [], []
    kinds = list({(each.name if each.is_accelerator else each.threads): each for each in devices[::-1]}.values())[::-1]
    for number, device in enumerate(kinds):
        progress("operations", number, len(kinds))
        rates.append(operation_rates(device, probes[_class(device)], repetitions))
    both = list(combinations_with_replacement(pairs, 2))
    both += [(b, a) for a, b in both if a.torch_device != b.torch_device]  # cores are alike in both directions
    chain = ping_pong()
    copies: dict[tuple[torch.device, torch.device], CopyRates | None] = {}
    for number, (source, destination) in enumerate(both):
        progress("links", number, len(both))
        way = source.torch_device, destination.torch_device
        if way not in copies:
            largest = min(probes[_class(each)].copied_bytes for each in (source, destination))
            sizes = [size for size in SIZES if size < largest] + [largest]
            copies[way] = copy_rates(*way, sizes, repetitions)
        links.append(Link(source.name, destination.name, hand_over_us(chain, source, destination), copies[way]))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Rates(this_machine(), tuple(rates), tuple(links), round(meter.share(), 4), now)
