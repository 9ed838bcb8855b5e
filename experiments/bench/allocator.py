"""Speedup of an eager step from keeping the memory of freed tensors. It is a control: plans and their baselines run
with this allocator setting (`gst.util.process.keep_freed_memory`), and PyTorch by itself does not.

python -m experiments.bench allocator --programs rnnlm
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from experiments.bench.child import call
from gst.execution.measure import median_interval, timed
from gst.machine.devices import machine_record
from gst.programs import WORKLOADS, resolve
from gst.programs.step import unseeded
from gst.util.process import keep_freed_memory
from gst.util.progress import Progress, no_progress

TURNS, WARM_UP = 5, 3  # processes of each kind, alternately, and steps of each that do not count


def run(
    programs: tuple[str, ...] = tuple(WORKLOADS), repetitions: int = 25, progress: Progress = no_progress
) -> dict[str, Any]:
    """Time each step with and without, in processes of their own that alternate.

    Returns:
        workloads: for each program the medians and intervals of `kept_ms` and `given_back_ms`; `ratio`, how many times
            as fast it is with freed memory kept, and its geometric mean; machine.
    """
    rows: dict[str, Any] = {}
    for number, name in enumerate(programs):
        progress(name, number, len(programs))
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(TURNS):
            for keeps, samples in times.items():
                steps = -(-repetitions // TURNS)
                samples += call("allocator:milliseconds", program=name, keeps=keeps, steps=steps)
        kept, given_back = (median_interval(times[keeps], np.random.default_rng(0)) for keeps in (True, False))
        rows[name] = {"kept_ms": kept, "given_back_ms": given_back, "ratio": given_back[0] / kept[0]}
    mean = statistics.geometric_mean(row["ratio"] for row in rows.values())
    return {"workloads": rows, "ratio": mean, "machine": machine_record()}


COLUMNS = ("ratio",)


def milliseconds(program: str, keeps: bool, steps: int) -> list[float]:
    """Time a step as written in this process."""
    step = resolve(program)
    if keeps and not keep_freed_memory():
        raise ValueError("the C library of this machine takes no such settings")

    def run_step() -> None:
        with unseeded():
            step.function(*step.inputs)

    return [timed(run_step) for _ in range(WARM_UP + steps)][WARM_UP:]
