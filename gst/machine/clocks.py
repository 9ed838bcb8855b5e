"""Clocks of accelerators from NVML: speed, temperature, and the reasons why one runs slowly.

NVML is read by the package `pynvml`, otherwise by the program `nvidia-smi` on the PATH. There are no clocks without
both, nor for accelerators whose UUID NVML does not know, such as parts of a GPU that MIG splits."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch

from gst.util.untrusted import plain

REASONS = {
    0x04: "power limit", 0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat, by hardware", 0x80: "power brake",
}  # fmt: skip
"""Words for the bits of `nvmlClocksEventReasons` that say that an accelerator runs slower than it was asked to. The
other bits say that it idles, or that somebody set its clocks."""


@dataclass(frozen=True)
class Clocks:
    """State of the clocks of one accelerator at one moment. None stands for what its driver does not report.

    Args:
        sm_mhz: clock of the multiprocessors, MHz.
        most_sm_mhz: highest clock that the multiprocessors can have, MHz.
        celsius: temperature.
        slowed_by: reasons for which the accelerator runs slower than it was asked to, at this moment: the driver clears
            them as soon as the accelerator idles.
    """

    sm_mhz: float | None
    most_sm_mhz: float | None
    celsius: float | None
    slowed_by: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "slowed_by": list(self.slowed_by)}


ReadClocks = Callable[[Sequence[str]], Mapping[str, Clocks]]
"""Clocks by name of accelerators, `xpu:0`; those whose clocks cannot be read are left out."""


def slowed_by(bits: int) -> tuple[str, ...]:
    """Reasons for which an accelerator is slow, in words.

    Args:
        bits: of `nvmlClocksEventReasons`.

    Examples:
        >>> slowed_by(0x24), slowed_by(0x1)
        (('power limit', 'heat'), ())
    """
    return tuple(words for bit, words in REASONS.items() if bits & bit)


LIMIT_S = 5.0  # for an answer of nvidia-smi
FIELDS = ("uuid", "clocks.sm", "clocks.max.sm", "temperature.gpu")
REASON_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""Field of nvidia-smi with the bits of `nvmlClocksEventReasons`: its name in newer drivers, and in older ones."""


@dataclass
class Source:
    """What NVML is asked by in one process: a way that failed once is not tried again.

    Args:
        package: whether `pynvml` is to be tried.
        reason_fields: names of `REASON_FIELDS` that nvidia-smi is to be tried with; none once it failed with all.
        stuck: a process of nvidia-smi that was killed and is not waited for: inside a driver that hangs it cannot end.
    """

    package: bool = True
    reason_fields: tuple[str, ...] = REASON_FIELDS
    stuck: subprocess.Popen[bytes] | None = None

    def clocks(self, uuids: Sequence[str]) -> dict[str, Clocks]:
        """Clocks of accelerators by UUID, `GPU-8d3c...`."""
        if self.package:
            try:
                return _by_package(uuids)
            except Exception:  # it is not installed, or has no driver, or is another package of this name
                self.package = False
        for name in self.reason_fields:
            command = [f"--query-gpu={','.join((*FIELDS, name))}", "-i", ",".join(uuids)]
            answer = self._answer(command)
            if answer is not None:
                self.reason_fields = (name,)
                return {uuid: each for uuid, each in parsed(answer).items() if uuid in uuids}
            if self.stuck is not None:
                break
        self.reason_fields = ()
        return {}

    def _answer(self, arguments: Sequence[str]) -> str | None:
        """What nvidia-smi prints; None where it is not there, fails, or takes longer than `LIMIT_S`."""
        program = shutil.which("nvidia-smi")
        if program is None:
            return None
        command = [program, *arguments, "--format=csv,noheader,nounits"]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError:
            return None
        try:
            words, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            self.stuck = process
            return None
        return words.decode(errors="replace") if process.returncode == 0 else None


SOURCE = Source()


def read_clocks(names: Sequence[str], source: Source = SOURCE) -> dict[str, Clocks]:
    """Clocks of accelerators by name; those whose clocks cannot be read are left out.

    Args:
        names: as PyTorch calls them, `xpu:0`.
        source: what NVML is asked by.

    Examples:
        >>> read_clocks([])
        {}
    """
    uuids = {name: uuid for name in names if (uuid := _uuid(name))}
    clocks = source.clocks(list(uuids.values())) if uuids else {}
    return {name: clocks[uuid] for name, uuid in uuids.items() if uuid in clocks}


def _uuid(name: str) -> str:
    """UUID of an accelerator as NVML writes it; empty where PyTorch has none for it."""
    device = torch.device(name)
    if torch.accelerator.current_accelerator(check_available=True) is None:
        return ""
    uuid = getattr(torch.get_device_module(device).get_device_properties(device), "uuid", None)
    return f"GPU-{uuid}" if uuid else ""


def _by_package(uuids: Sequence[str]) -> dict[str, Clocks]:
    nvml: Any = import_module("pynvml")
    nvml.nvmlInit()
    try:
        handles = {uuid: _value(partial(nvml.nvmlDeviceGetHandleByUUID, uuid)) for uuid in uuids}
        return {uuid: _of_handle(nvml, handle) for uuid, handle in handles.items() if handle is not None}
    finally:
        _value(lambda: nvml.nvmlShutdown())


def _of_handle(nvml: Any, handle: Any) -> Clocks:
    bits = _value(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    if bits is None:
        bits = _value(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    return Clocks(
        _value(lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
        _value(lambda: float(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))),
        _value(lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
        slowed_by(int(bits or 0)),
    )


def _value(ask: Callable[[], Any]) -> Any:
    """What `ask` returns, or None where this accelerator, driver or release of the package has no answer."""
    try:
        return ask()
    except Exception:
        return None


def parsed(lines: str) -> dict[str, Clocks]:
    """Clocks by UUID from the output of nvidia-smi. Lines of another form are left out, and numbers that it does not
    report (`[N/A]`, `[Not Supported]`) are None.

    Args:
        lines: of `FIELDS` and one of `REASON_FIELDS`, one for each accelerator.

    Examples:
        >>> parsed("GPU-8d3c, 1410, [N/A], 61, 0x0000000000000004")
        {'GPU-8d3c': Clocks(sm_mhz=1410.0, most_sm_mhz=None, celsius=61.0, slowed_by=('power limit',))}
    """
    result = {}
    for line in lines.splitlines():
        uuid, *fields = map(str.strip, plain(line).split(","))
        if len(fields) == len(FIELDS) and uuid.startswith("GPU-"):
            sm_mhz, most_sm_mhz, celsius = map(_number, fields[:-1])
            result[uuid] = Clocks(sm_mhz, most_sm_mhz, celsius, slowed_by(_bits(fields[-1])))
    return result


def _number(text: str) -> float | None:
    return float(text) if text.replace(".", "", 1).isdecimal() else None


def _bits(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0
