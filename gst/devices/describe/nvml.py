"""NVML asked in either of two ways: by the package `pynvml`, or by the program `nvidia-smi`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from gst.files.untrusted import plain

LIMIT_S = 5.0  # for an answer of nvidia-smi
FIELDS = ("uuid", "clocks.sm", "clocks.max.sm", "temperature.gpu", "utilization.gpu")
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""What newer and older drivers call the bits of why clocks are as they are."""


@dataclass(frozen=True)
class Reading:
    """One accelerator at a moment; None where NVML does not tell.

    Args:
        sm_mhz: clock of its multiprocessors.
        most_sm_mhz: the most that this clock can be.
        celsius: temperature.
        utilisation: percent of the time, of the last second or less, in which it computed.
        reasons: bits of `nvmlClocksEventReasons`; 0 if not told.
        processes: numbers of those that compute there, as far as this process may see them.
    """

    sm_mhz: float | None
    most_sm_mhz: float | None
    celsius: float | None
    utilisation: float | None
    reasons: int
    processes: frozenset[int]


def readings(uuids: Sequence[str]) -> dict[str, Reading]:
    """Readings of accelerators by the names that NVML gives them, `GPU-8d3c...`; of those that it knows."""
    by_package = _by_package(uuids)
    return _by_program(uuids) if by_package is None else by_package


def _by_package(uuids: Sequence[str]) -> dict[str, Reading] | None:
    """None where the package is not here, or finds no driver."""
    try:
        nvml: Any = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # it is not installed, or has no driver, or is another package of this name
        return None
    found = {}
    try:
        for uuid in uuids:
            handle = _told(partial(nvml.nvmlDeviceGetHandleByUUID, uuid))
            if handle is not None:
                found[uuid] = _of_handle(nvml, handle)
    finally:
        _told(lambda: nvml.nvmlShutdown())
    return found


def _of_handle(nvml: Any, handle: Any) -> Reading:
    reasons = _told(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    if reasons is None:
        reasons = _told(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    processes = _told(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ()
    return Reading(
        _told(lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
        _told(lambda: float(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))),
        _told(lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
        _told(lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
        int(reasons or 0),
        frozenset(int(each.pid) for each in processes),
    )


def _told(ask: Callable[[], Any]) -> Any:
    """The answer, or None where this accelerator, driver or release of the package has none."""
    try:
        return ask()
    except Exception:
        return None


def _by_program(uuids: Sequence[str]) -> dict[str, Reading]:
    for name in REASONS:
        states = _asked(f"--query-gpu={','.join((*FIELDS, name))}")
        if states is not None:
            found = parsed(states, _asked("--query-compute-apps=gpu_uuid,pid") or "")
            return {uuid: found[uuid] for uuid in uuids if uuid in found}
    return {}


def _asked(query: str) -> str | None:
    """What nvidia-smi answers; None where it is not here, fails, or takes too long."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, query, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.decode(errors="replace") if answer.returncode == 0 else None


def parsed(states: str, processes: str) -> dict[str, Reading]:
    """Readings by name of the accelerator. Lines that are none, and fields that are no numbers ([N/A], [Not
    Supported]), are left out.

    Args:
        states: what nvidia-smi says of `FIELDS` and one of `REASONS`, a line for each accelerator.
        processes: what it says of gpu_uuid and pid, a line for each process.

    Examples:
        >>> reading = parsed("GPU-8d3c, 1410, 1980, 61, [N/A], 0x0000000000000004", "GPU-8d3c, 4711")["GPU-8d3c"]
        >>> reading.sm_mhz, reading.utilisation, reading.reasons, reading.processes
        (1410.0, None, 4, frozenset({4711}))
    """
    on: dict[str, set[int]] = {}
    for line in processes.splitlines():
        uuid, *fields = map(str.strip, line.split(","))
        if len(fields) == 1 and fields[0].isdecimal():
            on.setdefault(uuid, set()).add(int(fields[0]))
    result = {}
    for line in states.splitlines():
        uuid, *fields = map(str.strip, plain(line).split(","))
        if len(fields) == len(FIELDS) and uuid.startswith("GPU-"):
            sm, most, celsius, busy = map(_number, fields[:-1])
            result[uuid] = Reading(sm, most, celsius, busy, _bits(fields[-1]), frozenset(on.get(uuid, ())))
    return result


def _number(text: str) -> float | None:
    return float(text) if text.replace(".", "", 1).isdecimal() else None


def _bits(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0
