"""How long copies between memories take: latency + bytes / bandwidth, fitted to copies of several sizes.

Each direction is measured alone, and while the other one copies too; between a host and an accelerator from and to
pageable memory, and from and to pinned memory. Copies are those of lanes (`gst.execution.lanes.Lane`), on their
streams, as plans make them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch
from jaxtyping import Float64
from scipy.optimize import nnls

from gst.execution.lanes import Lane, is_here, synchronise
from gst.machine.devices import Device
from gst.machine.rates import CopyRates

SIZES = (4, 1 << 12, 1 << 16, 1 << 20, 1 << 23)
"""Bytes of copies that are timed where no others are asked for."""

MOST_GB_PER_S = 1e6  # where larger copies take no longer, by chance: JSON knows no infinite speed
LEAST_US = 1e-3  # latency of a copy whose time is all bandwidth: none is free


def fitted(num_bytes: Sequence[float], times_us: Sequence[float]) -> tuple[float, float]:
    """Latency and bandwidth whose sum of squared relative errors is least, neither of them negative.

    Args:
        num_bytes: of each copy; at least two sizes.
        times_us: of each, all above 0.

    Returns:
        latency_us; gb_per_s, at most `MOST_GB_PER_S`.

    Raises:
        ValueError: there are fewer than two sizes, or as many times are not given, or one is no time.

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
    way = source, destination
    latency, speed = fitted(sizes, [_copy_us(each, (way,), repetitions) for each in sizes])
    _, both = fitted(sizes, [_copy_us(each, (way, way[::-1]), repetitions) for each in sizes])
    rates = CopyRates(latency, speed, both, None, None, None)
    if source.type == destination.type or not (is_here(source) or is_here(destination)):
        return rates
    latency, speed = fitted(sizes, [_copy_us(each, (way,), repetitions, is_pinned=True) for each in sizes])
    _, both = fitted(sizes, [_copy_us(each, (way, way[::-1]), repetitions, is_pinned=True) for each in sizes])
    return replace(rates, pinned_latency_us=latency, pinned_gb_per_s=speed, pinned_both_gb_per_s=both)


def _copy_us(
    size: int, ways: Sequence[tuple[torch.device, torch.device]], repetitions: int, is_pinned: bool = False
) -> float:
    """Median microseconds until copies of `size` bytes, one on each way, issued at once, are all there.

    What leaves an accelerator is issued first: a copy from pageable memory keeps the thread until it is read. What
    arrives in pageable memory is written to a tensor that is there: PyTorch makes those that it returns pinned.
    """
    ways = sorted(ways, key=lambda way: way[0].type == "cpu")
    lanes = [Lane(source, 0) for source, _ in ways]
    ends = [torch.zeros(size, dtype=torch.uint8, device=source) for source, _ in ways]
    buffers = [torch.zeros(size, dtype=torch.uint8, device=destination) for _, destination in ways]
    if is_pinned:
        ends, buffers = ([each.pin_memory() if each.device.type == "cpu" else each for each in part]
                         for part in (ends, buffers))  # fmt: skip
    devices, times = [device for way in ways for device in way], []
    for _ in range(repetitions + 1):
        synchronise(devices)
        start = perf_counter()
        for lane, end, buffer, (source, destination) in zip(lanes, ends, buffers, ways, strict=True):
            with lane.stream or nullcontext():
                if is_pinned or source.type != destination.type == "cpu":
                    lane.refill(buffer, end)
                else:
                    lane.copy(end, destination)
        synchronise(devices)
        times.append((perf_counter() - start) * 1e6)
    return float(np.median(times[1:]))


def measured_links(
    devices: Sequence[Device], sizes: Sequence[int] = SIZES, repetitions: int = 5
) -> tuple[Float64[np.ndarray, "devices devices"], Float64[np.ndarray, "devices devices"]]:
    """Latency in microseconds and bytes per microsecond from each device (row) to each (column); 0 and infinite within
    a memory. From an accelerator to a host they are those to pinned memory, to which plans copy. Devices of one place
    in PyTorch, such as all cores, share what is measured of it."""
    count = len(devices)
    latency_us, bytes_per_us = np.zeros((count, count)), np.full((count, count), np.inf)
    known: dict[tuple[torch.device, torch.device], CopyRates | None] = {}
    for a, source in enumerate(devices):
        for b, destination in enumerate(devices):
            if source.memory == destination.memory:
                continue
            way = source.torch_device, destination.torch_device
            if way not in known:
                known[way] = copy_rates(*way, sizes, repetitions)
            if (rates := known[way]) is None:
                continue
            latency_us[a, b], bytes_per_us[a, b] = rates.latency_us, rates.gb_per_s * 1e3
            if way[1].type == "cpu" and rates.pinned_latency_us is not None and rates.pinned_gb_per_s is not None:
                latency_us[a, b], bytes_per_us[a, b] = rates.pinned_latency_us, rates.pinned_gb_per_s * 1e3
    return latency_us, bytes_per_us
