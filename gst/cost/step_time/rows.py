"""What a model of step times learns from: times of kernels at the peak rates of a machine, and what describes them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from gst.cost.step_time.kernels import CLASSES, COLUMNS, Kernels
from gst.cost.step_time.machines import Machine, machine_of

TERMS = 4  # times of a class: products, activations, parameters, launches
LAUNCH = {False: 0.003, True: 0.01}  # ms of a launch on a GPU and on a CPU, before it is scaled by what is learned
PRODUCTS = frozenset(
    place for place, name in enumerate(CLASSES) if name.startswith(("conv ", "linear", "matmul", "attention"))
)
DEPTHWISE = np.array(["depthwise" in name for name in CLASSES])


class Setting(NamedTuple):
    """What all rows of a table have in common.

    Args:
        machine: as the file's name has it, such as `rtx3090` or `cpu-i9_10940x`.
        mode: `infer` or `train`.
        precision: `amp`, `half` or `fp32`; see `kernels_of`.
        is_channels_last: the layout is NHWC.
        torch: version times 100, such as 291 for 2.9.1.
        is_compiled: by TorchInductor.
    """

    machine: str
    mode: str
    precision: str
    is_channels_last: bool
    torch: int
    is_compiled: bool


def kernel_times(kernels: Kernels, batch: int, machine: Machine) -> Float64[np.ndarray, "terms kernels"]:
    """Milliseconds of each kernel at peak rates: of its products, its activations, its parameters and its launch."""
    named = dict(zip(COLUMNS, kernels.columns.T.astype(np.float64), strict=True))
    times = np.where(kernels.grows > 0, batch, 1.0)
    peak = np.where((named["is half"] > 0) & ~DEPTHWISE[kernels.kind], machine.half, machine.single)
    return np.stack([
        named["flops"] * times / (peak * 1e9),
        (named["bytes read"] + named["bytes written"]) * times / (machine.bandwidth * 1e6),
        named["bytes of parameters"] / (machine.bandwidth * 1e6),
        np.full(len(times), LAUNCH[machine.is_cpu]),
    ])  # fmt: skip


def row_of(
    kernels: Kernels, batch: int, image_size: int, setting: Setting, machine: Machine | None = None
) -> tuple[Float64[np.ndarray, " terms"], Float64[np.ndarray, " columns"], Float64[np.ndarray, " 7"]]:
    """A program at a batch, as a model sees it.

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

    def log(array: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(array, 1e-9))

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
    sums = [math.log(peak_time.sum()), math.log(len(times)), math.log(batch), image_size / 224,
            math.log(max(parts[0].sum(), 1e-12) / max(parts[1].sum(), 1e-12))]  # fmt: skip
    numbers = [setting.is_channels_last, setting.is_compiled, setting.torch, machine.half, machine.bandwidth,
               setting.precision == "half", machine.is_cpu]  # fmt: skip
    return terms.ravel(), np.concatenate([sums, *means]), np.array(numbers, np.float64)
