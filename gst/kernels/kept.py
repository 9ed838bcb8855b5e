"""Times of kernels that were measured on this machine before, by the content of their program."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from gst.kernels.run import Run, kernel_times_us
from gst.machine.devices import machine_folder
from gst.util.untrusted import read_object
from gst.util.writing import atomic_write


def kept_times_us(run: Run, directory: Path | None = None) -> tuple[Float64[np.ndarray, " kernels"], bool]:
    """Return the microseconds of each call alone, and whether they were measured before; measure them if not.

    Args:
        directory: of the files, one for each program; below the cache of the user, by machine, if None.
    """
    path = (directory or machine_folder("kernels")) / f"{run.program.key}.json"
    if (times_us := _read(path, run.program.num_kernels)) is not None:
        return times_us, True
    times_us = kernel_times_us(run)
    with atomic_write(path) as file:
        json.dump({"times_us": times_us.tolist()}, file)
    return times_us, False


def _read(path: Path, count: int) -> Float64[np.ndarray, " kernels"] | None:
    """Read times; None without a file, and of one that holds anything else."""
    try:
        times_us = np.array(read_object(path)["times_us"], np.float64)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_sound = times_us.shape == (count,) and np.isfinite(times_us).all() and (times_us > 0).all()
    return times_us if is_sound else None
