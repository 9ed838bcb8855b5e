"""Clocks of accelerators as NVML tells them: how fast they run, how hot they are, and whether others use them.

NVML is asked by the package `pynvml` where it is installed, otherwise by the program `nvidia-smi` where it is on the
PATH. Without both, and of accelerators that NVML does not know, nothing is told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gst.devices.describe.nvml import Reading, readings

SLOWED = {
    0x04: "power limit", 0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat, by hardware", 0x80: "power brake",
}  # fmt: skip
"""Bits of `nvmlClocksEventReasons` under which an accelerator runs slower than it was asked to. The others say that it
idles, or that somebody set its clocks."""


@dataclass(frozen=True)
class Clocks:
    """What is known of an accelerator at a moment; None where it is not told.

    Args:
        sm_mhz: clock of its multiprocessors.
        most_sm_mhz: the most that this clock can be.
        celsius: temperature.
        others: share of the time, 0 .. 1, in which it computed, of the last second or less, if another process is on
            it; 0 if none is.
        slowed_by: what makes it slower than it was asked to be.
    """

    sm_mhz: float | None
    most_sm_mhz: float | None
    celsius: float | None
    others: float | None
    slowed_by: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "slowed_by": list(self.slowed_by)}


ReadClocks = Callable[[Sequence[str], Collection[int]], Mapping[str, Clocks]]
"""Called with names of accelerators and the processes of whoever asks."""


def read_clocks(names: Sequence[str], own: Collection[int]) -> dict[str, Clocks]:
    """Clocks of accelerators by name; of those that NVML knows.

    Args:
        names: as PyTorch calls them, `xpu:0`.
        own: numbers of processes that are no others.

    Examples:
        >>> read_clocks([], [])
        {}
    """
    wanted = {name: uuid for name in names if (uuid := _uuid(name))}
    found = readings(list(wanted.values())) if wanted else {}
    return {name: clocks_of(found[uuid], own) for name, uuid in wanted.items() if uuid in found}


def clocks_of(reading: Reading, own: Collection[int]) -> Clocks:
    """What a reading means for one who has these processes.

    Examples:
        >>> clocks_of(Reading(1410.0, 1980.0, 61.0, 97.0, 0x4, frozenset({7, 8})), own=[7])
        Clocks(sm_mhz=1410.0, most_sm_mhz=1980.0, celsius=61.0, others=0.97, slowed_by=('power limit',))
    """
    busy = None if reading.utilisation is None else reading.utilisation / 100
    others = busy if reading.processes - frozenset(own) else 0.0
    slowed_by = tuple(words for bit, words in SLOWED.items() if reading.reasons & bit)
    return Clocks(reading.sm_mhz, reading.most_sm_mhz, reading.celsius, others, slowed_by)


def worst(several: Sequence[Mapping[str, Clocks]]) -> dict[str, Clocks]:
    """Of readings at several moments the slowest clock, the highest temperature, the most that others used, and all
    that slowed it, by accelerator.

    Examples:
        >>> cool, hot = Clocks(1980.0, 1980.0, 50.0, 0.0, ()), Clocks(1200.0, 1980.0, 88.0, None, ("heat",))
        >>> worst([{"xpu:0": cool}, {"xpu:0": hot}])["xpu:0"]
        Clocks(sm_mhz=1200.0, most_sm_mhz=1980.0, celsius=88.0, others=0.0, slowed_by=('heat',))
    """
    result = {}
    for name in dict.fromkeys(name for each in several for name in each):
        mine = [each[name] for each in several if name in each]
        result[name] = Clocks(
            min((each.sm_mhz for each in mine if each.sm_mhz is not None), default=None),
            max((each.most_sm_mhz for each in mine if each.most_sm_mhz is not None), default=None),
            max((each.celsius for each in mine if each.celsius is not None), default=None),
            max((each.others for each in mine if each.others is not None), default=None),
            tuple(dict.fromkeys(words for each in mine for words in each.slowed_by)),
        )
    return result


def _uuid(name: str) -> str:
    """How NVML calls an accelerator; empty for one whose module in PyTorch tells no such name."""
    device = torch.device(name)
    if torch.accelerator.current_accelerator(check_available=True) is None:
        return ""
    uuid = getattr(torch.get_device_module(device).get_device_properties(device), "uuid", None)
    return f"GPU-{uuid}" if uuid else ""
