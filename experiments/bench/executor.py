"""Overhead of the executors: a captured program on one device, compared with the step as written.

python -m experiments.bench executor --programs rnnlm,inception
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from gst.execution.executor import NativeExecutor
from gst.execution.measure import measure
from gst.lowering.calls import eager
from gst.lowering.plan import Plan
from gst.machine.devices import Device, discover, machine_record, select
from gst.machine.load import LoadGate
from gst.programs import WORKLOADS, TrainingStep, capture, outputs_differ, resolve
from gst.util.progress import Progress, no_progress
from gst.whole_model.child_process import StepProcess

CHAIN = 400  # operations of the program that measures hand-overs
ELEMENTS = 1 << 16  # of each: 10 to 30 us, long enough for a thread whose core is taken to fall asleep
RESAMPLES = 2000


COLUMNS = ("overhead", "one_core_ms", "pytorch_ms")


def run(
    programs: tuple[str, ...] = tuple(WORKLOADS), repetitions: int = 25, progress: Progress = no_progress
) -> dict[str, Any]:
    """Time each program, alternately: the step as written with one thread, the captured program on one core, and both
    with all cores.

    Returns:
        machine, hand_over (see `hand_overs`), and for each of `workloads`: num_nodes; one_core_ms and eager_ms (one
        thread each) with their ratio `overhead` and its 95 % interval; all_cores_ms (the program on the set of all
        cores) and pytorch_ms (the step as written, in a process of its own, with PyTorch's own threads and waiting).
    """
    workloads = {}
    for done, name in enumerate(programs):
        progress("measuring", done, len(programs))
        workloads[name] = _one(name, repetitions)
    progress("measuring", len(programs), len(programs))
    return {"machine": machine_record(), "hand_over": hand_overs(), "workloads": workloads}


def _one(name: str, repetitions: int) -> dict[str, Any]:
    step = resolve(name)
    program = capture(step)
    devices = one_and_all()
    alone = {device.name: Plan((device.name,), np.zeros(program.num_nodes, np.int64)) for device in devices}

    def eager_alone() -> None:
        torch.set_num_threads(1)
        step.function(*step.inputs)

    threads = torch.get_num_threads()
    with NativeExecutor(program, devices) as executor, StepProcess(name) as plain:
        difference = outputs_differ(executor.run(alone[devices[0].name]), eager(program))
        if difference:
            raise ValueError(f"{name}: the interpreter does not compute what the program does: {difference}")
        runs: dict[str, Callable[[], object]] = {"eager": eager_alone, "pytorch": plain}
        runs |= {device: partial(executor.run, plan) for device, plan in alone.items()}
        seen = measure(runs, repetitions, 3, LoadGate())
    torch.set_num_threads(threads)
    one_core, as_written = (np.array(seen[each].samples_ms) for each in (devices[0].name, "eager"))
    ratio, low, high = ratio_interval(one_core, as_written)
    return {
        "num_nodes": program.num_nodes,
        "one_core_ms": seen[devices[0].name].median_ms, "eager_ms": seen["eager"].median_ms,
        "overhead": ratio, "overhead_low": low, "overhead_high": high,
        "all_cores_ms": seen[devices[-1].name].median_ms, "pytorch_ms": seen["pytorch"].median_ms,
        "quiet": seen["eager"].quiet,
    }  # fmt: skip


def one_and_all() -> list[Device]:
    """The first core, and the set of all if there are more."""
    cpus = [device for device in discover() if device.kind == "cpu"]
    return select(["cpu:0", *([f"cpu:0-{len(cpus) - 1}"] if len(cpus) > 1 else [])], cpus)


def ratio_interval(
    above: Float64[np.ndarray, " rounds"], below: Float64[np.ndarray, " rounds"], seed: int = 0
) -> tuple[float, float, float]:
    """Median of `above` over median of `below`, and its bootstrap 95 % interval; rounds are drawn as pairs."""
    pairs = np.array([above, below])
    drawn = np.random.default_rng(seed).integers(0, pairs.shape[1], (RESAMPLES, pairs.shape[1]))
    ratios = np.median(pairs[0][drawn], axis=1) / np.median(pairs[1][drawn], axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(np.median(pairs[0]) / np.median(pairs[1])), float(low), float(high)


def hand_overs(repetitions: int = 20) -> dict[str, float]:
    """Microseconds from the end of a short operation to the beginning of the next that reads it.

    Returns:
        same_us: on the same core; other_us: on another core, which waits awake; narrow_to_wide_us and wide_to_other_us:
        to the set of both cores and from it to the core whose thread sleeps meanwhile. Medians; only `same_us` on a
        machine of one core.
    """
    cpus = [device for device in discover() if device.kind == "cpu"][:2]
    devices = select(["cpu:0", "cpu:1", "cpu:0-1"], cpus) if len(cpus) > 1 else cpus
    program = capture(TrainingStep("chain", _chain, ({"x": torch.ones(ELEMENTS)},)))
    turns = {"same_us": (0, 0), "other_us": (0, 1), "narrow_to_wide_us": (0, 2), "wide_to_other_us": (2, 1)}
    names = tuple(device.name for device in devices)
    result = {}
    with NativeExecutor(program, devices) as executor:
        for label, pair in turns.items():
            if max(pair) >= len(devices):
                continue
            plan = Plan(names, np.array(pair)[np.arange(program.num_nodes) % 2])
            gaps = []
            for _ in range(repetitions):
                executor.run(plan)
                line = executor.last_timeline
                second = np.arange(2, program.num_nodes)[line.device[2:] == pair[1]]
                gaps.append(line.begin_us[second] - line.end_us[second - 1])
            result[label] = float(np.median(gaps[1:]))
    return result


def _chain(parameters: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    x = parameters["x"]
    for _ in range(CHAIN):
        x = x + 1
    return x.sum(), {"x": x}
