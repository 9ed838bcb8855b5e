"""Kernels of KernelBench's programs, eager and compiled: modules of a checkout, captured on the meta device.

The modules are imported and their constructors and `forward` run, on tensors that have shapes and no content: give a
checkout that you trust. Nothing is allocated and no GPU is needed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from experiments.reproductions.timm.step_time.captured import operators
from experiments.reproductions.timm.step_time.kernels import Kernels, kernels_of
from gst.programs import Program, capture_module
from gst.util.progress import bar
from gst.util.untrusted import plain

UNROLLED = ("nn.LSTM", "nn.GRU")
"""Modules that a capture unrolls into tens of thousands of operations; their programs are left out."""


class Compared(NamedTuple):
    """A program both ways.

    Args:
        program: as captured.
        eager, compiled: its kernels.
    """

    program: Program
    eager: Kernels
    compiled: Kernels


def read_programs(checkout: Path, names: Sequence[str]) -> tuple[dict[str, Compared], dict[str, str]]:
    """The programs that can be captured, by name, and why the others cannot.

    Args:
        checkout: of KernelBench, or its folder that holds `level1`.
        names: such as `level1/19_ReLU.py`.

    Raises:
        ValueError: none of them is there.
    """
    folder = checkout / "KernelBench" if (checkout / "KernelBench").is_dir() else checkout
    if not any((folder / name).is_file() for name in names):
        raise ValueError(f"{checkout}: it holds no program such as {names[0]}; give a checkout of KernelBench")
    programs: dict[str, Compared] = {}
    missing: dict[str, str] = {}
    for name in bar(names, desc="programs"):
        try:
            programs[name] = _captured(folder / name)
        except Exception as error:  # whatever the code of a program raises
            missing[name] = plain(error)
    return programs, missing


def _captured(path: Path) -> Compared:
    if any(name in path.read_text() for name in UNROLLED):
        raise ValueError("a recurrent layer, which a capture unrolls")
    specification = importlib.util.spec_from_file_location("kernelbench_program", path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    with torch.device("meta"):
        specification.loader.exec_module(module)
        model = module.Model(*module.get_init_inputs()).eval()
        inputs = module.get_inputs()
        program = capture_module(_OfTensors(model, inputs), [each for each in inputs if isinstance(each, Tensor)])
    operations = operators(program)
    return Compared(program, kernels_of(operations, "fp32", False), kernels_of(operations, "fp32", True))


class _OfTensors(nn.Module):
    """A module whose arguments that are no tensors are fixed."""

    def __init__(self, model: nn.Module, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, *tensors: Tensor) -> Any:
        following = iter(tensors)
        return self.model(*(next(following) if isinstance(each, Tensor) else each for each in self.inputs))
