"""Description of an accelerator for readers of its times: memory, driver, libraries, and clocks from `nvidia-smi`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from gst.util.untrusted import plain

DRIVER = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
LIMIT_S = 10.0  # for an answer of nvidia-smi
FIELDS = ("uuid", "clocks.sm", "clocks.max.sm", "temperature.gpu", "clocks_event_reasons.active")
REASONS = {
    0x04: "power limit", 0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat, by hardware", 0x80: "power brake",
}  # fmt: skip
"""Words for the bits of `nvmlClocksEventReasons` of an accelerator that runs slower than requested."""

Clocks = dict[str, Any]
"""Clocks of one accelerator: `sm_mhz` and `most_sm_mhz` of the multiprocessors, `celsius`, and `slowed_by`, a list of
reasons. None where its driver reports no number."""


def accelerator_here() -> torch.device | None:
    """Return the first accelerator of this machine, or None."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    return None if kind is None else torch.device(kind.type, 0)


def print_rows(reports: Callable[[torch.device], Iterable[Mapping[str, Any]]], needs_one: bool = True) -> None:
    """Print rows of the accelerator here as lines of JSON, each as soon as it is known; exit if there is none.

    Args:
        reports: makes the rows.
        needs_one: or else rows of the CPU are printed where there is none.
    """
    device = accelerator_here()
    if device is None and needs_one:
        sys.exit("there is no accelerator here")
    for row in reports(device or torch.device("cpu")):
        print(json.dumps(row), flush=True)


def accelerator_record(device: torch.device) -> dict[str, Any]:
    """Return name and memory of an accelerator, versions of its driver, of CUDA and cuDNN, and whether convolutions
    round to TF32; None for what is not known."""
    properties: Any = torch.get_device_module(device).get_device_properties(device)
    return {
        "name": getattr(properties, "name", None), "memory_bytes": getattr(properties, "total_memory", None),
        "driver": driver(), "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
        "tf32": torch.backends.cudnn.allow_tf32,
    }  # fmt: skip


def driver(command: tuple[str, ...] = DRIVER) -> str | None:
    """Return the version of the driver of GPUs; None if no program reports it.

    Examples:
        >>> driver(("echo", "570.1")), driver(("false",)), driver(("no such program",))
        ('570.1', None, None)
    """
    return (_answer(command).split() or [None])[0]


def clocks_of(device: torch.device) -> Mapping[str, Clocks]:
    """Return the clocks of an accelerator by its name in PyTorch; none of a CPU, of a part of a GPU that MIG splits, or
    without `nvidia-smi`.

    Examples:
        >>> clocks_of(torch.device("cpu"))
        {}
    """
    uuid, program = "" if device.type == "cpu" else _uuid(device), shutil.which("nvidia-smi")
    if not uuid or program is None:
        return {}
    query = [f"--query-gpu={','.join(FIELDS)}", "-i", uuid, "--format=csv,noheader,nounits"]
    clocks = parsed(_answer([program, *query]))
    return {str(device): clocks[uuid]} if uuid in clocks else {}


def _answer(command: Sequence[str]) -> str:
    try:
        ran = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return ran.stdout.decode(errors="replace")


def _uuid(device: torch.device) -> str:
    """Return the UUID of an accelerator as nvidia-smi writes it; empty if PyTorch has none for it."""
    if torch.accelerator.current_accelerator(check_available=True) is None:
        return ""
    uuid = getattr(torch.get_device_module(device).get_device_properties(device), "uuid", None)
    return f"GPU-{uuid}" if uuid else ""


def parsed(lines: str) -> dict[str, Clocks]:
    """Return clocks by UUID from output of nvidia-smi: a line with `FIELDS` for each accelerator. Other lines are left
    out, and numbers that it does not report (`[N/A]`, `[Not Supported]`) are None.

    Examples:
        >>> parsed("GPU-8d3c, 1410, [N/A], 61, 0x0000000000000004")
        {'GPU-8d3c': {'sm_mhz': 1410.0, 'most_sm_mhz': None, 'celsius': 61.0, 'slowed_by': ['power limit']}}
    """
    result = {}
    for line in lines.splitlines():
        uuid, *fields = map(str.strip, plain(line).split(","))
        if len(fields) + 1 == len(FIELDS) and uuid.startswith("GPU-"):
            numbers = zip(("sm_mhz", "most_sm_mhz", "celsius"), map(_number, fields), strict=False)
            result[uuid] = {**dict(numbers), "slowed_by": _slowed_by(fields[-1])}
    return result


def _number(text: str) -> float | None:
    return float(text) if text.replace(".", "", 1).isdecimal() else None


def _slowed_by(text: str) -> list[str]:
    bits = int(text, 16) if text.startswith("0x") else 0
    return [words for bit, words in REASONS.items() if bits & bit]
