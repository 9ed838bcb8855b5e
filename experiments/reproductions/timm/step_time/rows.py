"""Inputs of the model of step times: times of kernels at the peak rates of a machine, and their descriptors."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from experiments.reproductions.timm.step_time.kernels import CLASSES, COLUMNS, Kernels
from experiments.reproductions.timm.step_time.machines import Machine, machine_of

TERMS = 4  # times of a class: products, activations, parameters, launches
LAUNCH = {False: 0.003, True: 0.01}  # ms of a launch on a GPU and on a CPU, before it is scaled by what is learned
PRODUCTS = frozenset(
    place for place, name in enumerate(CLASSES) if name.startswith(("conv ", "linear", "matmul", "attention"))
)
TENSOR = 4.0  # ratio of the rates of tensor cores and of other units up to which programs are no faster
TILE = 128  # rows and outputs that a block of threads works out of a product
LARGEST_WINDOW = 49  # of a depthwise convolution that libraries have a fast kernel for
SPECIAL_WINDOWS = (1, 9, 25)  # of depthwise convolutions that PyTorch's own kernel is compiled for
DEPTHWISE = np.array(["depthwise" in name for name in CLASSES])


class Setting(NamedTuple):
    """Setting shared by all rows of a table.

    Args:
        machine: a name such as `rtx3090` or `cpu-i9_10940x`.
        precision: `amp`, `half` or `fp32`; see `kernels_of`.
        torch: version times 100, such as 291 for 2.9.1.
    """

    machine: str
    mode: str  # infer or train
    precision: str
    is_channels_last: bool
    torch: int
    is_compiled: bool


def product_rate(machine: Machine) -> float:
    """Return TFLOP/s for comparing 16-bit products of machines: twice the 32-bit rate, more above `TENSOR` times it.

    In the tables a GPU whose tensor cores are four times as fast as its other units (PRO 6000) is no faster, for its
    32-bit rate, than GPUs with a ratio of two. The limit of 4 is an assumption: ratios of 16 (A100, H100) are missing.

    Examples:
        >>> product_rate(machine_of("rtx4090")), round(product_rate(machine_of("a100")))
        (165.0, 110)
    """
    if machine.is_cpu:
        return float(machine.half)
    return min(float(machine.half), 2 * machine.single * max(1.0, machine.half / machine.single / TENSOR) ** 0.75)


def kernel_times(
    kernels: Kernels, batch: int, machine: Machine, is_peak: bool = False
) -> Float64[np.ndarray, "terms kernels"]:
    """Return milliseconds of kernels by term: products, activations, parameters and launches. Equal kernels add up.

    Args:
        is_peak: take products of 16 bits at the machine's peak rate instead of its `product_rate`.
    """
    named = dict(zip(COLUMNS, kernels.columns.T.astype(np.float64), strict=True))
    times = np.where(kernels.grows > 0, batch, 1.0)
    half = machine.half if is_peak else product_rate(machine)
    peak = np.where((named["is half"] > 0) & ~DEPTHWISE[kernels.kind], half, machine.single)
    return kernels.repeats * np.stack([
        named["flops"] * times / (peak * 1e9),
        (named["bytes read"] + named["bytes written"]) * times / (machine.bandwidth * 1e6),
        named["bytes of parameters"] / (machine.bandwidth * 1e6),
        np.full(len(times), LAUNCH[machine.is_cpu]),
    ])  # fmt: skip


def row_of(
    kernels: Kernels, batch: int, image_size: int, setting: Setting, machine: Machine | None = None
) -> tuple[Float64[np.ndarray, " terms"], Float64[np.ndarray, " columns"], Float64[np.ndarray, " 7"]]:
    """Return the inputs of a model for a program at a batch.

    Returns:
        terms: ms at peak rates, by term and class of kernels, flattened.
        columns: sums, and means over the kernels weighted by their time at peak rates.
        numbers: of the setting and the machine.
    """
    machine = machine or machine_of(setting.machine)
    named = dict(zip(COLUMNS, kernels.columns.T.astype(np.float64), strict=True))
    times = np.where(kernels.grows > 0, batch, 1.0)
    flops, activations = named["flops"] * times, (named["bytes read"] + named["bytes written"]) * times
    parts = kernel_times(kernels, batch, machine)
    terms = np.stack([np.bincount(kernels.kind, part, len(CLASSES)) for part in parts])
    peak_time = np.maximum(parts[0], parts[1] + parts[2]) + 1e-9

    inner, outputs = named["inner"], named["outputs"]
    described = np.stack([
        log(flops), log(activations + 1), log(parts[0] / np.maximum(parts[1], 1e-12)), log(named["rows"] * times),
        log(outputs), log(inner), log(named["window"]), log(named["groups"]), log(named["positions"]),
        log(named["operations"]), inner % 8 == 0, outputs % 8 == 0, outputs % 64 == 0, log(outputs * named["groups"]),
        named["stride"], log((activations + named["bytes of parameters"]) / machine.cache / 1e6),
    ], 1)  # fmt: skip
    is_product = np.isin(kernels.kind, list(PRODUCTS))
    share = peak_time / peak_time.sum()
    means = [
        (share * chosen) @ described / max(float((share * chosen).sum()), 1e-9)
        for chosen in (np.ones(len(share)), is_product, ~is_product)
    ]
    sums = [math.log(peak_time.sum()), math.log(kernels.repeats.sum()), math.log(batch), image_size / 224,
            math.log(max(parts[0].sum(), 1e-12) / max(parts[1].sum(), 1e-12))]  # fmt: skip
    numbers = [setting.is_channels_last, setting.is_compiled, setting.torch, machine.half, machine.bandwidth,
               setting.precision == "half", machine.is_cpu]  # fmt: skip
    return terms.ravel(), np.concatenate([sums, *means]), np.array(numbers, np.float64)


def log(array: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(array, 1e-9))


def kernel_descriptors(
    kernels: Kernels, batch: int, setting: Setting, machine: Machine | None = None
) -> Float64[np.ndarray, "kernels descriptors"]:
    """Return the inputs of a network for each kernel: shapes, work and setting, but no absolute rate of a machine."""
    machine = machine or machine_of(setting.machine)
    named = dict(zip(COLUMNS, kernels.columns.T.astype(np.float64), strict=True))
    times = np.where(kernels.grows > 0, batch, 1.0)
    parts = kernel_times(kernels, batch, machine) / kernels.repeats
    moved = named["bytes read"] + named["bytes written"]
    rows, outputs, inner, groups = named["rows"] * times, named["outputs"], named["inner"], named["groups"]
    waves = np.ceil(rows / TILE) * np.ceil(outputs / TILE) * groups / machine.cores
    is_product = np.isin(kernels.kind, list(PRODUCTS)).astype(np.float64)

    of_kernel = [
        log(named["flops"] * times) / 10 - 2, log(moved * times + 1) / 10 - 1.5,
        log(named["bytes of parameters"] + 1) / 10 - 0.5, log(rows) / 5 - 2, log(outputs) / 3 - 1.5,
        log(inner) / 3 - 1.5, log(named["window"]) / 2, named["stride"] > 1, named["stride"] > 2, log(groups) / 3,
        log(groups * outputs) / 3 - 1.5, log(named["positions"]) / 5 - 1, log(named["operations"]), named["is half"],
        named["reads"] / 3, named["bytes scattered"] / np.maximum(named["bytes read"], 1),
        named["transcendental"] * 4 / np.maximum(moved, 1), named["is channels last"], kernels.grows,
        outputs % 8 == 0, inner % 8 == 0, outputs % 64 == 0, inner % 64 == 0, np.minimum(outputs, TILE) / TILE,
        np.minimum(inner, TILE) / TILE, named["bytes read"] / np.maximum(moved, 1),
        log(parts[0] / np.maximum(parts[1] + parts[2], 1e-12)) / 3 * is_product, log(waves) / 4 * is_product,
        (np.minimum(np.ceil(waves) / np.maximum(waves, 1e-9), 4) - 1) * is_product,
        log((moved * times + named["bytes of parameters"]) / machine.cache / 1e6) / 4,
        named["window"] > LARGEST_WINDOW, ~np.isin(named["window"], SPECIAL_WINDOWS), outputs % 16 == 0,
        outputs % 32 == 0, np.log2(np.maximum(outputs, 1)) % 1 == 0,
    ]  # fmt: skip
    of_setting = [setting.is_compiled, machine.is_cpu, (setting.torch - 240) / 60, setting.precision == "half",
                  setting.mode == "train"]  # fmt: skip
    return np.column_stack([*of_kernel, *(np.full(len(times), float(each)) for each in of_setting)])
