"""Measures the rates of devices, and of the links between them, by small programs and copies.

A copy takes latency + bytes / bandwidth, fitted to copies of several sizes, from and to pageable memory and pinned
memory. Copies are those of `Lane`, as plans make them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations_with_replacement
from time import perf_counter

import numpy as np
import torch
from jaxtyping import Float64
from scipy.optimize import nnls
from torch import Tensor

from gst.execution.costs import profile
from gst.execution.executor import executor
from gst.execution.lanes import Lane, is_here, synchronise
from gst.machine.devices import Device, this_machine
from gst.machine.load import LoadMeter
from gst.machine.rates import CopyRates, Link, OperationRates, Rates
from gst.programs import Operation, Step
from gst.programs.tracing import capture
from gst.util.progress import Progress, no_progress

SIZES = (4, 1 << 12, 1 << 16, 1 << 20, 1 << 23)
"""Bytes of copies that are timed where no others are asked for."""

MOST_GB_PER_S = 1e6  # where larger copies take no longer, by chance: JSON knows no infinite speed
LEAST_US = 1e-3  # latency of a copy whose time is all bandwidth: none is free


def fitted(num_bytes: Sequence[float], times_us: Sequence[float]) -> tuple[float, float]:
    """Fit latency and bandwidth to times of copies: least squares of relative errors, neither negative.

    Args:
        num_bytes: of each copy; at least two sizes.
        times_us: of each, all above 0.

    Returns:
        latency_us; gb_per_s, at most `MOST_GB_PER_S`.

    Raises:
        ValueError: there are fewer than two sizes, a size or time is impossible, or their numbers differ.

    Examples:
        >>> latency_us, gb_per_s = fitted([0, 1_000_000, 10_000_000], [20.0, 120.0, 1020.0])
        >>> round(latency_us, 3), round(gb_per_s, 3)
        (20.0, 10.0)
    """
    size, time = np.asarray(num_bytes, np.float64), np.asarray(times_us, np.float64)
    if size.shape != time.shape or len(np.unique(size)) < 2:
        raise ValueError(f"a link is fitted to times of at least two sizes, got {len(size)} sizes, {len(time)} times")
    if not (np.isfinite(time).all() and (time > 0).all() and np.isfinite(size).all() and (size >= 0).all()):
        raise ValueError("a link is fitted to times above 0 of sizes that are not negative")
    largest = size.max()
    (latency, slope), _ = nnls(np.stack([1 / time, size / largest / time], axis=1), np.ones(len(time)))
    gb_per_s = largest / slope / 1e3 if slope > 0 else MOST_GB_PER_S
    return max(float(latency), LEAST_US), min(float(gb_per_s), MOST_GB_PER_S)


def copy_rates(
    source: torch.device, destination: torch.device, sizes: Sequence[int] = SIZES, repetitions: int = 5
) -> CopyRates | None:
    """Measure copies from one device to another; None within an accelerator, where plans make none.

    Args:
        source, destination: the CPU, or accelerators of this process.
        sizes: bytes of each copy.
        repetitions: of each, of which the median counts.
    """
    if source == destination and source.type != "cpu":
        return None
    rates = fitted(sizes, [_copy_us(each, source, destination, repetitions) for each in sizes])
    if source.type == destination.type or not (is_here(source) or is_here(destination)):
        return CopyRates(*rates, None, None)
    times = [_copy_us(each, source, destination, repetitions, is_pinned=True) for each in sizes]
    return CopyRates(*rates, *fitted(sizes, times))


def _copy_us(
    size: int, source: torch.device, destination: torch.device, repetitions: int, is_pinned: bool = False
) -> float:
    """Return median microseconds of a copy of `size` bytes.

    A value arrives in a pageable tensor that exists, as PyTorch returns pinned ones.
    """
    lane = Lane(source, 0)
    value = torch.zeros(size, dtype=torch.uint8, device=source)
    buffer = torch.zeros(size, dtype=torch.uint8, device=destination)
    if is_pinned:
        value, buffer = (each.pin_memory() if each.device.type == "cpu" else each for each in (value, buffer))
    times = []
    for _ in range(repetitions + 1):
        synchronise([source, destination])
        start = perf_counter()
        with lane.stream or nullcontext():
            if is_pinned or source.type != destination.type == "cpu":
                lane.refill(buffer, value)
            else:
                lane.copy(value, destination)
        synchronise([source, destination])
        times.append((perf_counter() - start) * 1e6)
    return float(np.median(times[1:]))


def measured_links(
    devices: Sequence[Device],
) -> tuple[Float64[np.ndarray, "devices devices"], Float64[np.ndarray, "devices devices"]]:
    """Return latency in microseconds and bytes per microsecond from each device (row) to each (column); 0 and infinite
    within a memory. Links to a host are those to pinned memory."""
    count = len(devices)
    latency_us, bytes_per_us = np.zeros((count, count)), np.full((count, count), np.inf)
    known: dict[tuple[torch.device, torch.device], CopyRates | None] = {}
    for a, source in enumerate(devices):
        for b, destination in enumerate(devices):
            if source.memory == destination.memory:
                continue
            way = source.torch_device, destination.torch_device
            if way not in known:
                known[way] = copy_rates(*way)
            if (rates := known[way]) is None:
                continue
            latency_us[a, b], bytes_per_us[a, b] = rates.latency_us, rates.gb_per_s * 1e3
            if way[1].type == "cpu" and rates.pinned_latency_us is not None and rates.pinned_gb_per_s is not None:
                latency_us[a, b], bytes_per_us[a, b] = rates.pinned_latency_us, rates.pinned_gb_per_s * 1e3
    return latency_us, bytes_per_us


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
        return 2 * self.width**3

    @property
    def convolution_flops(self) -> int:
        """FLOPs of the convolution; kernel positions on padding count too."""
        return 2 * self.images * self.pixels**2 * 9 * self.channels**2


PROBES = {
    "cpu": Probe(768, 8, 64, 28, 1 << 22, 1 << 24),
    "accelerator": Probe(8192, 128, 256, 28, 1 << 26, 1 << 28),
}
"""For each class of devices, sizes at which an operation is bound by arithmetic or by memory."""


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
    )  # fmt: skip


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
        progress: called with the current work, its number, and the count.
    """
    meter, rates, links = LoadMeter(), [], []
    kinds = list({(each.name if each.is_accelerator else each.threads): each for each in devices[::-1]}.values())[::-1]
    for number, device in enumerate(kinds):
        progress("operations", number, len(kinds))
        rates.append(operation_rates(device, probes[_class(device)], repetitions))
    both = list(combinations_with_replacement(pairs, 2))
    both += [(b, a) for a, b in both if a.torch_device != b.torch_device]  # cores are alike in both directions
    copies: dict[tuple[torch.device, torch.device], CopyRates | None] = {}
    for number, (source, destination) in enumerate(both):
        progress("links", number, len(both))
        way = source.torch_device, destination.torch_device
        if way not in copies:
            largest = min(probes[_class(each)].copied_bytes for each in (source, destination))
            sizes = [size for size in SIZES if size < largest] + [largest]
            copies[way] = copy_rates(*way, sizes, repetitions)
        links.append(Link(source.name, destination.name, copies[way]))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Rates(this_machine(), tuple(rates), tuple(links), round(meter.share(), 4), now)
