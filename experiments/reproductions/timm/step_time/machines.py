"""Peak rates of machines, as their makers publish them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gst.util.untrusted import plain, read_object, shown


class Machine(NamedTuple):
    """A processor.

    Args:
        half: TFLOP/s of dense products of 16-bit numbers accumulated in 32 bits.
        single: TFLOP/s of 32-bit numbers outside tensor cores.
        bandwidth: GB/s of its memory.
        cache: MB of the last level.
        cores: streaming multiprocessors, or cores of a CPU.
    """

    half: float
    single: float
    bandwidth: float
    cache: float
    cores: int
    is_cpu: bool = False


MACHINES = {
    "rtx3090": Machine(71, 35.6, 936, 6, 82), "rtx4090": Machine(165, 82.6, 1008, 72, 128),
    "pro6000maxq": Machine(400, 105, 1792, 128, 188), "pro6000": Machine(500, 125, 1792, 128, 188),
    "rtx5090": Machine(210, 104.8, 1792, 96, 170), "rtx5080": Machine(113, 56.3, 960, 64, 84),
    "rtx5070ti": Machine(88, 43.9, 896, 48, 70), "rtx4080": Machine(97, 48.7, 717, 64, 76),
    "rtx4070": Machine(58, 29.1, 504, 36, 46), "rtx4060": Machine(30, 15.1, 272, 24, 24),
    "rtx3080": Machine(60, 29.8, 760, 5, 68), "rtx3070": Machine(41, 20.3, 448, 4, 46),
    "rtx3060": Machine(26, 12.7, 360, 3, 28), "rtx2080ti": Machine(54, 13.4, 616, 5.5, 68),
    "titanrtx": Machine(130, 16.3, 672, 6, 72), "a6000": Machine(155, 38.7, 768, 6, 84),
    "a5000": Machine(111, 27.8, 768, 6, 64), "a4000": Machine(77, 19.2, 448, 4, 48),
    "rtx6000ada": Machine(364, 91.1, 960, 96, 142), "l40s": Machine(362, 91.6, 864, 96, 142),
    "l40": Machine(181, 90.5, 864, 96, 142), "l4": Machine(121, 30.3, 300, 48, 58), "t4": Machine(65, 8.1, 320, 4, 40),
    "v100": Machine(125, 15.7, 900, 6, 80), "a10": Machine(125, 31.2, 600, 6, 72), "a10g": Machine(70, 35, 600, 6, 80),
    "a40": Machine(150, 37.4, 696, 6, 84), "a30": Machine(165, 10.3, 933, 24, 56),
    "a100": Machine(312, 19.5, 1555, 40, 108), "a100-80gb": Machine(312, 19.5, 2039, 40, 108),
    "h100": Machine(989, 66.9, 3350, 50, 132), "h100-pcie": Machine(756, 51.2, 2000, 50, 114),
    "h200": Machine(989, 66.9, 4800, 50, 132), "gh200": Machine(989, 66.9, 4000, 50, 132),
    "b200": Machine(2250, 80, 8000, 126, 148), "gb10": Machine(125, 31, 273, 24, 48),
    "mi210": Machine(181, 22.6, 1638, 8, 104), "mi250": Machine(362, 45.3, 3277, 16, 208),
    "mi300x": Machine(1307, 163, 5300, 256, 304), "rx7900xtx": Machine(123, 61.4, 960, 96, 96),
    "cpu-i9_10940x": Machine(2.9, 2.9, 94, 33, 14, True), "cpu-i7_12700h": Machine(1.0, 1.0, 76, 24, 14, True),
    "cpu-i9_9980xe": Machine(3.2, 3.2, 85, 43, 18, True), "cpu-i9_13900k": Machine(1.9, 1.9, 89, 36, 24, True),
    "cpu-i9_12900k": Machine(1.6, 1.6, 76, 30, 16, True), "cpu-i7_12700k": Machine(1.3, 1.3, 76, 25, 12, True),
    "cpu-i5_1135g7": Machine(0.5, 0.5, 51, 8, 4, True), "cpu-r9_5950x": Machine(1.9, 1.9, 51, 64, 16, True),
    "cpu-r9_7950x": Machine(2.3, 2.3, 83, 64, 16, True), "cpu-r9_9950x": Machine(4.4, 4.4, 90, 64, 16, True),
    "cpu-r9_3950x": Machine(1.8, 1.8, 51, 64, 16, True), "cpu-tr_3970x": Machine(3.8, 3.8, 102, 128, 32, True),
}  # fmt: skip


def machine_of(name: str) -> Machine:
    """Return the rates of a machine by its name (case, `-` and `_` make no difference), or those in a `.json` file.

    Raises:
        ValueError: its rates are not here, or the file does not hold them.

    Examples:
        >>> machine_of("RTX_4090").bandwidth
        1008
    """
    if name.endswith(".json"):
        return _read(Path(name))
    machine = _PLAIN.get(_plain(name))
    if machine is None:
        raise ValueError(
            f"machine {plain(name)} has no rates; there are {', '.join(MACHINES)}; describe another one by a file "
            f"{name}.json with {', '.join(Machine._fields)}"
        )
    return machine


def _read(path: Path) -> Machine:
    fields = read_object(path)
    unknown, missing = fields.keys() - set(Machine._fields), set(Machine._fields[:-1]) - fields.keys()
    if unknown or missing:
        wrong = f"lacks {', '.join(sorted(missing))}" if missing else f"has {', '.join(sorted(unknown))} besides"
        raise ValueError(f"{path} {wrong}; it wants {', '.join(Machine._fields)}")
    rates = {name: fields[name] for name in Machine._fields[:-1]}
    for name, value in rates.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
            raise ValueError(f"{path}: {name} is {shown(value)}; want a positive number")
    return Machine(**rates, is_cpu=fields.get("is_cpu", False) is True)


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").removeprefix("nvidia").removeprefix("geforce")


_PLAIN = {_plain(name): machine for name, machine in MACHINES.items()}
