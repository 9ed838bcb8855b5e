"""Clocks of accelerators from `nvidia-smi`: speed, temperature, and the reasons why one runs slowly.

There are none without that program on the PATH, nor for parts of a GPU that MIG splits."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gst.util.untrusted import plain

REASONS = {
    0x04: "power limit", 0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat, by hardware", 0x80: "power brake",
}  # fmt: skip
"""Words for the bits of `nvmlClocksEventReasons` of an accelerator that runs slower than requested."""

Clocks = dict[str, Any]
"""Clocks of one accelerator: `sm_mhz` and `most_sm_mhz` of the multiprocessors, `celsius`, and `slowed_by`, a list of
reasons, which the driver clears as soon as the accelerator idles. None where its driver reports no number."""

ReadClocks = Callable[[Sequence[str]], Mapping[str, Clocks]]
"""Clocks by name of accelerators, `xpu:0`; those whose clocks cannot be read are left out."""

LIMIT_S = 5.0  # for an answer of nvidia-smi
FIELDS = ("uuid", "clocks.sm", "clocks.max.sm", "temperature.gpu", "clocks_event_reasons.active")


def read_clocks(names: Sequence[str]) -> dict[str, Clocks]:
    """Return clocks of accelerators by their names in PyTorch (`xpu:0`); those that cannot be read are left out.

    Examples:
        >>> read_clocks([])
        {}
    """
    program, uuids = shutil.which("nvidia-smi"), {name: uuid for name in names if (uuid := _uuid(name))}
    if program is None or not uuids:
        return {}
    query = [f"--query-gpu={','.join(FIELDS)}", "-i", ",".join(uuids.values()), "--format=csv,noheader,nounits"]
    try:
        ran = subprocess.run([program, *query], capture_output=True, timeout=LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    clocks = parsed(ran.stdout.decode(errors="replace"))
    return {name: clocks[uuid] for name, uuid in uuids.items() if uuid in clocks}


def _uuid(name: str) -> str:
    """Return the UUID of an accelerator as nvidia-smi writes it; empty if PyTorch has none for it."""
    device = torch.device(name)
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
