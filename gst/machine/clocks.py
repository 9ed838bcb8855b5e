"""Clocks of accelerators from NVML: speed, temperature, and the reasons why one runs slowly.

NVML is read by the package `pynvml`, otherwise by the program `nvidia-smi` on the PATH. There are no clocks without
both, nor for accelerators whose UUID NVML does not know, such as parts of a GPU that MIG splits."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
    """State of the clocks of one accelerator at one moment. None stands for values that its driver does not report.

    Args:
        sm_mhz, most_sm_mhz: clock of the multiprocessors, and the highest that they can have, MHz.
        celsius: temperature.
        slowed_by: reasons why it runs slower than requested, at this moment: the driver clears them as soon as it
            idles.
    """

    sm_mhz: float | None
    most_sm_mhz: float | None
    celsius: float | None
    slowed_by: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return a record for JSON."""
        return {**asdict(self), "slowed_by": list(self.slowed_by)}


ReadClocks = Callable[[Sequence[str]], Mapping[str, Clocks]]
"""Clocks by name of accelerators, `xpu:0`; those whose clocks cannot be read are left out."""


def slowed_by(bits: int) -> tuple[str, ...]:
    """Return reasons why an accelerator is slow, in words, from the bits of `nvmlClocksEventReasons`.

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
    """Access to `nvidia-smi` in one process: a field that failed once is not tried again.

    Args:
        reason_fields: names of `REASON_FIELDS` to try with nvidia-smi; none once it failed with all.
        stuck: a process of nvidia-smi that was killed and is not waited for: inside a driver that hangs it cannot end.
    """

    reason_fields: tuple[str, ...] = REASON_FIELDS
    stuck: subprocess.Popen[bytes] | None = None

    def clocks(self, uuids: Sequence[str]) -> dict[str, Clocks]:
        """Return clocks of accelerators by UUID, `GPU-8d3c...`."""
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
        """Return the output of nvidia-smi; None if it is not there, fails, or takes longer than `LIMIT_S`."""
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
    """Return clocks of accelerators by their names in PyTorch (`xpu:0`); those that cannot be read are left out.

    Examples:
        >>> read_clocks([])
        {}
    """
    uuids = {name: uuid for name in names if (uuid := _uuid(name))}
    clocks = source.clocks(list(uuids.values())) if uuids else {}
    return {name: clocks[uuid] for name, uuid in uuids.items() if uuid in clocks}


def _uuid(name: str) -> str:
    """Return the UUID of an accelerator as NVML writes it; empty if PyTorch has none for it."""
    device = torch.device(name)
    if torch.accelerator.current_accelerator(check_available=True) is None:
        return ""
    uuid = getattr(torch.get_device_module(device).get_device_properties(device), "uuid", None)
    return f"GPU-{uuid}" if uuid else ""


def parsed(lines: str) -> dict[str, Clocks]:
    """Return clocks by UUID from output of nvidia-smi: `FIELDS` and one of `REASON_FIELDS` in a line for each
    accelerator. Other lines are left out, and numbers that it does not report (`[N/A]`, `[Not Supported]`) are None.

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
