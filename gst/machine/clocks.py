"""Clocks of accelerators: how fast one runs, how hot it is, what slows it. `gst.machine.nvml` reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

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
