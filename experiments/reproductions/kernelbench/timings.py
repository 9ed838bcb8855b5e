"""Timings of KernelBench: milliseconds of 250 programs on two H100, eager and compiled by TorchInductor."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

from experiments.reproductions.dataset_files import dataset_files
from gst.util.untrusted import parse_json, shown

WANTED = re.compile(r"(?:.*/)?([^/]+/baseline_time_torch(?:_compile_inductor_default)?\.json)")
COMPILED = "baseline_time_torch_compile_inductor_default.json"


class Timing(NamedTuple):
    """Mean time of a program on a host.

    Args:
        host: such as `H100_Modal`.
        program: level and file, such as `level1/19_ReLU.py`.
        eager, compiled: milliseconds.
    """

    host: str
    program: str
    eager: float
    compiled: float


def read_timings(path: Path | str) -> list[Timing]:
    """The programs that were timed both ways, by host and name.

    Args:
        path: `kernelbench_timing.tar.xz`, or a folder with `HOST/baseline_time_torch*.json` at any depth.

    Raises:
        ValueError: there is none, or a file does not parse; the message names the place.
    """
    path = Path(path)
    times: dict[tuple[str, str], dict[bool, float]] = {}
    for name, content in dataset_files(path, WANTED, "KernelBench"):
        host, file = name.split("/")[-2:]
        levels = parse_json(content.decode(errors="replace"))
        if not isinstance(levels, dict):
            raise ValueError(f"{path}: {name} holds {shown(levels)}; want programs by level")
        for level, programs in levels.items():
            for program, record in (programs or {}).items():
                mean = record.get("mean") if isinstance(record, dict) else None
                if record is None:
                    continue  # it failed on that host
                if isinstance(mean, bool) or not isinstance(mean, int | float) or not 0 < mean < math.inf:
                    raise ValueError(f"{path}: {name}: mean of {level}/{program} is {shown(mean)}; want milliseconds")
                times.setdefault((host, f"{level}/{program}"), {})[file == COMPILED] = float(mean)
    timings = [Timing(*key, each[False], each[True]) for key, each in sorted(times.items()) if len(each) == 2]
    if not timings:
        raise ValueError(
            f"{path}: it holds no program that was timed eager and compiled; give kernelbench_timing.tar.xz"
        )
    return timings
