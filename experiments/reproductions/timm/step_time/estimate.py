"""Estimate of a program's time on a machine that is not here, from its kernels, peak rates and published step times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float64
from torch import nn

from experiments.reproductions.graphnet.reader import FxSource, Operation, is_image_input, operator_graph
from experiments.reproductions.timm.step_time.captured import (
    batch_of,
    is_training,
    operators,
    operators_by_node,
    parameter_bytes,
    peak_memory,
)
from experiments.reproductions.timm.step_time.fusion import runs_channels_last
from experiments.reproductions.timm.step_time.kernels import CLASSES, PER_SAMPLE, Kernels, kernels_of
from experiments.reproductions.timm.step_time.machines import Machine, machine_of
from experiments.reproductions.timm.step_time.model import Model, load
from experiments.reproductions.timm.step_time.rows import TERMS, Setting, kernel_times, row_of
from experiments.reproductions.timm.step_time.xla import XlaProgram
from gst.programs import Program
from gst.programs.tracing import capture_module

Precision = Literal["fp32", "amp", "half"]
TORCH = 291  # version times 100 that is estimated for, the newest of the tables
MOST_LAUNCH = {False: 2.5, True: 1.0}  # of `LAUNCH`, on a GPU and on a CPU: 7.5 and 10 us
SHORTEST = {False: 0.002, True: 0.0005}  # ms of a kernel of XLA on a GPU and on a CPU


class Cost(NamedTuple):
    """Number and total time of the kernels of one class of `step_time.kernels.CLASSES`."""

    kind: str
    kernels: int
    milliseconds: float


class Estimate(NamedTuple):
    """Time of a step on a machine.

    Args:
        interval: least and most milliseconds; it holds 90 % of programs like those that were measured.
        costs: by class of kernels, the costliest first; they add up to `milliseconds`.
        parameter_bytes: of weights and buffers.
        activation_bytes: peak of other values if each is freed after its last use.
        basis: the source of the estimate, in a sentence.
    """

    program: str
    machine: str
    milliseconds: float
    interval: tuple[float, float]
    costs: tuple[Cost, ...]
    parameter_bytes: float
    activation_bytes: float
    basis: str

    def __str__(self) -> str:
        least, most = self.interval
        return f"{self.program} on {self.machine}: {self.milliseconds:.3g} ms ({least:.3g} to {most:.3g})"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return self._asdict() | {"costs": [each._asdict() for each in self.costs]}


def estimate(
    program: nn.Module | Program | FxSource | XlaProgram, inputs: Sequence[Any] = (), on: str = "h100",
    precision: Precision = "fp32", is_compiled: bool = False, batch: int = 1,
) -> Estimate:  # fmt: skip
    """Estimate the time of a step on a machine.

    Args:
        program: a model, which is captured without gradients; a captured step; a GraphNet sample; or an XLA program
            (`step_time.xla.read_xla`), which has its own types and compiler.
        on: name of the machine (`step_time.machines.MACHINES`), or a `.json` file with its peak rates.
        precision: `fp32` as captured; `half`: weights and inputs of 16 bits; `amp`: under autocast to 16 bits.
        batch: samples of a step, of a GraphNet sample; others have theirs.

    Raises:
        ValueError: the machine is unknown, or the program has no operation that moves data.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3)).eval()
        >>> images = torch.zeros(32, 3, 224, 224)
        >>> times = [estimate(model, (images,), on=name).milliseconds for name in ("rtx3060", "h100")]
        >>> times[0] > 2 * times[1] > 0
        True
        >>> estimate(model, (images,)).costs[0].kind
        'conv kxk'
    """
    machine, weights = machine_of(on), _weights()
    if isinstance(program, FxSource):
        name, mode = program.name, "infer"
        images = [each.shape for label, each in program.inputs.items() if is_image_input(label, each)]
        side = round(math.sqrt(math.prod(images[0][2:]))) if images else 0
        operations = operator_graph(program)
        kernels = _source_kernels(program, operations, precision, is_compiled, machine)
        growth = float(batch)
    elif isinstance(program, XlaProgram):
        name, mode, batch, side = program.name, "train" if program.is_training else "infer", program.batch, program.side
        precision, is_compiled = "half" if program.is_half else "fp32", True
        kernels, growth = _per_sample(program.kernels(), batch), 1.0
    else:
        captured = program if isinstance(program, Program) else capture_module(program, tuple(inputs))
        name, mode = captured.name, "train" if is_training(captured) else "infer"
        batch, side = batch_of(captured)
        operations = operators(captured)
        is_last = runs_channels_last(operations, is_compiled, False, machine.is_cpu)
        whole = kernels_of(operations, precision, is_compiled, is_last, is_cpu=machine.is_cpu)
        kernels, growth = _per_sample(whole, batch), 1.0
    setting = Setting(_name_of(on, weights), mode, precision, False, TORCH, is_compiled)
    time, width, basis = _predicted(kernels, batch, side, setting, machine, weights)
    if isinstance(program, XlaProgram):  # may be all short kernels, which image models have few of
        time = max(time, SHORTEST[machine.is_cpu] * len(kernels.kind))
    costs = _costs(kernels, batch, machine, _efficiencies(setting, side, machine, weights), time)
    if isinstance(program, XlaProgram):
        parameters, activations, share = program.parameter_bytes, program.activation_bytes(), 1.0
    else:
        (parameters, activations), share = peak_memory(operations), 0.5 if precision == "half" else 1.0
        if isinstance(program, nn.Module | Program):  # tables of embeddings are read by rows
            parameters = parameter_bytes(captured)
    interval = (time / math.exp(width), time * math.exp(width))
    return Estimate(name, on, time, interval, costs, parameters * share, activations * share * growth, basis)


def operation_times_us(program: Program, on: str) -> Float64[np.ndarray, " nodes"]:
    """Estimate the microseconds of each operation of a captured program, run alone in fp32; 0 for views and inputs.

    None is less than at the machine's peak rates. Trees, which correct whole image models, are left out. An unknown
    machine raises ValueError.

    Examples:
        >>> import torch
        >>> program = capture_module(nn.Linear(2048, 2048), (torch.zeros(2048, 2048),))
        >>> [bool(operation_times_us(program, name).sum() > 200) for name in ("rtx3090", "h100")]
        [True, True]
    """
    machine, weights = machine_of(on), _weights()
    mode = "train" if is_training(program) else "infer"
    setting = Setting(_name_of(on, weights), mode, "fp32", False, TORCH, False)
    efficiencies = _efficiencies(setting, 0, machine, weights)
    result = np.zeros(program.num_nodes)
    for node, operations in enumerate(operators_by_node(program)):
        if not all(each.is_view for each in operations):
            kernels = kernels_of(operations, "fp32", False)
            result[node] = 1e3 * _at_least_peak(kernels, 1, machine, efficiencies).sum()
    return result


def _at_least_peak(
    kernels: Kernels, batch: int, machine: Machine, efficiencies: Float64[np.ndarray, "terms classes"]
) -> Float64[np.ndarray, " kernels"]:
    times = kernel_times(kernels, batch, machine)
    weighted = (times * efficiencies[:, kernels.kind]).sum(0)
    return np.maximum(weighted, _at_peak(kernels, batch, machine))


def _at_peak(kernels: Kernels, batch: int, machine: Machine) -> Float64[np.ndarray, " kernels"]:
    products, activations, parameters, _ = kernel_times(kernels, batch, machine, is_peak=True)
    return np.asarray(np.maximum(products, activations + parameters))


@cache
def _weights() -> Model:
    return load(Path(__file__).with_name("weights.pt"))


def _name_of(on: str, model: Model) -> str:
    """Return the machine's name in the tables that the model was trained on, if it is among them."""
    if on.endswith(".json"):
        return "cpu" if machine_of(on).is_cpu else "gpu"
    known = {each.machine for each in model.settings}
    return next((name for name in known if machine_of(name) is machine_of(on)), "cpu" if machine_of(on).is_cpu else on)


def _source_kernels(
    source: FxSource, operations: list[Operation], precision: Precision, is_compiled: bool, machine: Machine
) -> Kernels:
    is_last = runs_channels_last(operations, is_compiled, False, machine.is_cpu)
    if is_last:
        try:
            operations = operator_graph(source, is_channels_last=True)
        except ValueError:  # it takes a view that the order of elements in NHWC does not allow
            is_last = False
    return kernels_of(operations, precision, is_compiled, is_last, is_cpu=machine.is_cpu)


def _per_sample(kernels: Kernels, batch: int) -> Kernels:
    columns = kernels.columns.copy()
    columns[:, list(PER_SAMPLE)] /= np.where(kernels.grows > 0, batch, 1)[:, None]
    return kernels._replace(columns=columns)


def _predicted(
    kernels: Kernels, batch: int, side: int, setting: Setting, machine: Machine, model: Model
) -> tuple[float, float, str]:
    """Return milliseconds, at least those at peak rates, half the width of their interval (of logs), and the basis."""
    terms, columns, numbers = row_of(kernels, batch, side or 224, setting, machine)
    measured = any(each.machine == setting.machine for each in model.settings)
    basis = f"efficiencies {'measured on such a machine' if measured else 'of its kind, at its peak rates'}"
    programs = [(kernels, batch)]
    logs, widths = model.predict([setting], terms[None], columns[None], numbers[None], programs, machine)
    if side:
        time = max(math.exp(logs[0]), float(_at_peak(kernels, batch, machine).sum()))
        return time, float(widths[0]), f"{basis}, with image models of other families"
    width = float(math.hypot(widths[0], model.widths["new machine"]))
    time = float(_at_least_peak(kernels, batch, machine, _efficiencies(setting, side, machine, model)).sum())
    return time, width, f"{basis}, with image models alone: a program of another kind may be further off"


def _efficiencies(setting: Setting, side: int, machine: Machine, model: Model) -> Float64[np.ndarray, "terms classes"]:
    """Return the weights of terms by class of kernels; a launch is bounded, which image models tell little about."""
    weights = model.weights_of(setting).reshape(TERMS, len(CLASSES)).copy()
    if not side:
        weights[3] = np.minimum(weights[3], MOST_LAUNCH[machine.is_cpu])
    return weights


def _costs(
    kernels: Kernels, batch: int, machine: Machine, weights: Float64[np.ndarray, "terms classes"], time: float
) -> tuple[Cost, ...]:
    weights = weights[:, kernels.kind]
    each = (kernel_times(kernels, batch, machine) * weights).sum(0)
    each *= time / max(float(each.sum()), 1e-12)
    costs = [
        Cost(CLASSES[kind], int((kernels.kind == kind).sum()), float(each[kernels.kind == kind].sum()))
        for kind in np.unique(kernels.kind).tolist()
    ]
    return tuple(sorted(costs, key=lambda cost: -cost.milliseconds))
