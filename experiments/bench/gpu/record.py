"""Description of an accelerator for readers of its times: memory, driver, libraries and clocks."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any

import torch

from experiments.bench.gpu.clocks import read_clocks

DRIVER = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
LIMIT_S = 10.0  # for an answer of nvidia-smi


def accelerator_record(device: torch.device) -> dict[str, Any]:
    """Name and memory of an accelerator, versions of its driver, of CUDA and cuDNN, and whether convolutions round to
    TF32; None for what is not known."""
    properties: Any = torch.get_device_module(device).get_device_properties(device)
    return {
        "name": getattr(properties, "name", None), "memory_bytes": getattr(properties, "total_memory", None),
        "driver": driver(), "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
        "tf32": torch.backends.cudnn.allow_tf32,
    }  # fmt: skip


def driver(command: tuple[str, ...] = DRIVER) -> str | None:
    """Version of the driver of GPUs; None where nobody says it.

    Examples:
        >>> driver(("echo", "570.1")), driver(("false",)), driver(("no such program",))
        ('570.1', None, None)
    """
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return (answer.stdout.split() or [None])[0]


def clocks_of(device: torch.device) -> Mapping[str, Any]:
    """Clock, temperature and what slows an accelerator now, by its name; none where they cannot be read.

    Examples:
        >>> clocks_of(torch.device("cpu"))
        {}
    """
    return {} if device.type == "cpu" else read_clocks([str(device)])
