"""Measures the links between devices by copies.

A copy takes latency + bytes / bandwidth, fitted to copies of several sizes, which `Lane` makes as those of plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from time import perf_counter

import numpy as np
import torch
from jaxtyping import Float64
from scipy.optimize import nnls

from gst.execution.lanes import Lane, synchronise
from gst.machine.devices import Device

SIZES = (4, 1 << 12, 1 << 16, 1 << 20, 1 << 23)
"""Bytes of copies that are timed."""
REPETITIONS = 5  # of each, of which the median counts

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


def copy_rate(source: torch.device, destination: torch.device, is_pinned: bool = False) -> tuple[float, float]:
    """Measure copies from one device to another, and return the latency in microseconds and GB per second.

    Args:
        source, destination: the CPU, or accelerators of this process.
        is_pinned: memory of the host is pinned.
    """
    return fitted(SIZES, [_copy_us(each, source, destination, is_pinned) for each in SIZES])


def _copy_us(size: int, source: torch.device, destination: torch.device, is_pinned: bool) -> float:
    """Return median microseconds of a copy of `size` bytes.

    A value arrives in a pageable tensor that exists, as PyTorch returns pinned ones.
    """
    lane = Lane(source, 0)
    value = torch.zeros(size, dtype=torch.uint8, device=source)
    buffer = torch.zeros(size, dtype=torch.uint8, device=destination)
    if is_pinned:
        value, buffer = (each.pin_memory() if each.device.type == "cpu" else each for each in (value, buffer))
    times = []
    for _ in range(REPETITIONS + 1):
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
    known: dict[tuple[torch.device, torch.device], tuple[float, float]] = {}
    for a, source in enumerate(devices):
        for b, destination in enumerate(devices):
            way = source.torch_device, destination.torch_device
            if source.memory == destination.memory or (way[0] == way[1] and way[0].type != "cpu"):
                continue
            if way not in known:
                known[way] = copy_rate(*way, is_pinned=way[1].type == "cpu" != way[0].type)
            latency_us[a, b], gb_per_s = known[way]
            bytes_per_us[a, b] = gb_per_s * 1e3
    return latency_us, bytes_per_us
