"""The whole loop on the devices found, written to a directory: what `gst demo` does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gst.devices import (
    AnyExecutor,
    Device,
    ExecutionError,
    LoadGate,
    Log,
    Measurement,
    PlainPyTorch,
    Plan,
    discover,
    eager,
    executor,
    machine_record,
    measure,
    select,
)
from gst.devices.child import profile_devices
from gst.placement.baselines import portfolio
from gst.placement.plan_files import save_plan
from gst.placement.runtime import MeasuredRuntime, Progress
from gst.placement.search import Search
from gst.placement.task import Task
from gst.programs import Program, capture, outputs_differ, resolve
from gst.report import render
from gst.segments import segment
from gst.store import prepare


def demo(
    program_name: str,
    out: Path,
    device_names: Sequence[str] | None = None,
    separate_memory: bool = False,
    budget: int = 40,
    seed: int = 0,
    resume: bool = False,
    command: str = "gst demo",
    progress: Progress = lambda what, done, total: None,
) -> dict[str, Any]:
    """Capture a training step, learn how fast plans for it run here, search one, measure it beside all baselines.

    Writes to `out` `measurements.jsonl` as they are made, then `plan.json`, `cost_model.pt`, `dataset/`, `report.html`.

    Args:
        program_name: a bundled program or `module:function`.
        device_names: which of the devices found to use; all if None.
        separate_memory: see `gst.devices.discover`.
        budget: plans to measure while searching.
        resume: go on with the measurements in `out` instead of starting anew.
        command: quoted in the report.

    Returns:
        program, num_nodes, devices, plans, best, pytorch_ms, cost_model; see the README.
    """
    started = time.perf_counter()
    found = discover(separate_memory)
    devices = found if device_names is None else select(device_names, found)
    progress("capturing", 0, 1)
    program = capture(resolve(program_name))
    out.mkdir(parents=True, exist_ok=True)
    log = Log(out / "measurements.jsonl")
    if not resume:
        log.path.unlink(missing_ok=True)
    with executor(program, devices) as made:
        progress("profiling", 0, 1)
        task = Task.of_profile(program, devices, profile_devices(program, made))
        search = Search(task, MeasuredRuntime(made, gate=LoadGate()), log, budget, seed=seed, progress=progress)
        plans = {"searched": search.run(), **portfolio(task)}
        for plan in plans.values():
            check_outputs(made, plan)
        final = measure_finally(program_name, made, plans, progress)
    tau = search.tau()
    ran = [name for name in plans if final[name].outcome == "ok"]
    if not ran:
        raise ValueError(f"no plan ran to the end: {'; '.join(sorted({final[name].reason for name in plans}))}")
    name = min(ran, key=lambda label: final[label].median_ms)
    save_plan(plans[name], program, out / "plan.json")
    if search.model is not None:
        search.model.save(out / "cost_model.pt")
    prepare([search.dataset()], out / "dataset", max_nodes=512)
    result: dict[str, Any] = {
        "command": command,
        "machine": machine_record(),
        "program": program.name,
        "num_nodes": program.num_nodes,
        "devices": [device.name for device in devices],
        "plans": {label: _interval(measurement) for label, measurement in final.items()},
        "best": name,
        "pytorch_ms": final["pytorch"].median_ms,
        "cost_model": {
            "tau": None if np.isnan(tau) else tau,
            "num_measured": len(search.trials),
            "num_screened": search.num_screened,
        },
    }
    drawn = _drawn(program, devices, plans[name].placement, search)
    record = result | drawn | {"seconds": time.perf_counter() - started}
    (out / "report.html").write_text(render(record))
    return result


def check_outputs(executor: AnyExecutor, plan: Plan) -> None:
    """A plan counts only if it computes what the program computes."""
    try:
        difference = outputs_differ(executor.run(plan), eager(executor.program))
    except ExecutionError as error:
        raise ValueError(f"a plan failed: {error}") from error
    if difference:
        raise ValueError(f"the plan does not compute what the program does: {difference}")


def measure_finally(
    program_name: str, executor: AnyExecutor, plans: dict[str, Plan], progress: Progress, repetitions: int = 25
) -> dict[str, Measurement]:
    """Fresh, interleaved runs of every plan and of plain PyTorch (`pytorch`)."""
    runs: dict[str, Callable[[], object]] = {name: partial(executor.run, plan) for name, plan in plans.items()}
    keys = {name: plan.key for name, plan in plans.items()}
    with PlainPyTorch(program_name) as plain:
        return measure(
            {**runs, "pytorch": plain}, repetitions, 3, LoadGate(), plan_keys=keys,
            progress=lambda done, total: progress("measuring the winners afresh", done, total),
        )  # fmt: skip


def _interval(measurement: Measurement) -> dict[str, Any]:
    record = measurement.to_dict()
    return {key: record[key] for key in ("median_ms", "low_ms", "high_ms")} | {"measurements": measurement.repetitions}


def _drawn(program: Program, devices: list[Device], placement: np.ndarray, search: Search) -> dict[str, Any]:
    """What the report draws beyond the result."""
    graph = program.graph
    cut = segment(graph, max_nodes=max(64, program.num_nodes // 12))
    part = np.empty(graph.num_nodes, np.int64)
    part[cut.node_ids] = np.repeat(np.arange(cut.num_segments), cut.owned_counts)
    return {
        "num_edges": graph.num_edges,
        "devices": [{"name": device.name, "description": device.description} for device in devices],
        "graph": {
            "edges": graph.edges.tolist(), "segment": part.tolist(), "device": placement.tolist(),
            "opcode": [operation.name.rsplit("_", 1)[0] for operation in program.operations],
        },
        "measurements": [
            {
                "label": trial.plan.key[:8], "origin": trial.origin, "round": trial.round,
                "predicted_ms": None if np.isnan(trial.predicted_ms) else trial.predicted_ms,
                **{key: trial.measurement.to_dict()[key] for key in ("median_ms", "low_ms", "high_ms", "outcome")},
            }
            for trial in search.trials
        ],
        "table": search.history,
    }  # fmt: skip
