"""Speedup of an eager step from keeping the memory of freed tensors. It is a control: plans and their baselines run
with this allocator setting (`gst.util.process.keep_freed_memory`), and PyTorch by itself does not.

    python -m experiments.bench allocator
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from gst.execution.measure import measure
from gst.lowering.calls import pytorch
from gst.machine.devices import machine_record
from gst.programs import resolve
from gst.programs.seeded import unseeded
from gst.util.child import connect
from gst.util.process import keep_freed_memory
from gst.util.progress import Progress, no_progress
from gst.whole_model.child_process import StepProcess, serve

KEPT, GIVEN_BACK = "kept", "given_back"
REPETITIONS = 25


def bench(programs: Sequence[str], repetitions: int = REPETITIONS, progress: Progress = no_progress) -> dict[str, Any]:
    """Time each step with and without, in processes of their own that take turns.

    Returns:
        workloads: for each program the medians and intervals of `kept_ms` and `given_back_ms`; `ratio`, how many times
            as fast it is with freed memory kept, and its geometric mean; machine.
    """
    rows: dict[str, Any] = {}
    for number, name in enumerate(programs):
        progress(name, number, len(programs))
        with ExitStack() as stack:
            runs = {
                way: stack.enter_context(StepProcess(name, way, module="experiments.bench.allocator")).__call__
                for way in (KEPT, GIVEN_BACK)
            }
            measured = measure(runs, repetitions, 3, time_of=lambda run: run())
        rows[name] = {f"{way}_ms": [each.median_ms, each.low_ms, each.high_ms] for way, each in measured.items()}
        rows[name]["ratio"] = measured[GIVEN_BACK].median_ms / measured[KEPT].median_ms
    mean = statistics.geometric_mean(row["ratio"] for row in rows.values())
    return {"workloads": rows, "ratio": mean, "machine": machine_record()}


def main() -> None:
    parent, (program, way) = connect()

    def make() -> tuple[dict[str, Callable[[], object]], dict[str, str], dict[str, Any]]:
        step = resolve(program)
        if way == KEPT and not keep_freed_memory():
            raise SystemExit("the C library of this machine takes no such settings")

        def run() -> None:
            with unseeded():
                pytorch(step)

        return {"step": run}, {}, {}

    serve(parent, make, keeps_memory=False)


if __name__ == "__main__":
    main()
