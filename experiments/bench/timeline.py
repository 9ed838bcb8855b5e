"""One plan of a workload, run for real and simulated: where do they differ?

    python -m experiments.bench timeline --program rnnlm
    python -m experiments.bench timeline --program rnnlm --devices cpu:0,cpu:1 --plan runs/demo/plan.json

The plan is that of `--plan`, or the list schedule HEFT. Costs are measured and contention is learned from other plans
first. Of the runs the one of median makespan is drawn. Writes a Chrome trace (for ui.perfetto.dev) and a picture.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from gst.placement.task import Task
from gst.util.process import WAITING

os.environ.update(WAITING)  # before torch is loaded

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from gst.execution.costs import measure_costs
from gst.execution.native import NativeExecutor, runs_in_turns
from gst.lowering.plan import Plan, Timeline
from gst.machine.devices import Device, discover, select
from gst.machine.load import LoadGate, LoadMeter
from gst.placement.baselines.list_schedules import heft
from gst.placement.search.random_plans import random_plans
from gst.programs import Program, traced
from gst.programs.features import KINDS, kind_of
from gst.simulation.calibration import fit
from gst.simulation.simulator import Simulator
from gst.util.writing import write_json

COLOURS = dict(zip(KINDS, ("#0b5394", "#e69f00", "#2a9d55", "#cc3311", "#bbbbbb", "#9467bd"), strict=True))
NUM_CALIBRATION = 12


def both(
    program: Program, devices: list[Device], plan: Plan | None, repetitions: int
) -> tuple[dict[str, Timeline], float]:
    """Measure costs, learn contention, run the plan `repetitions` times and simulate it.

    Returns:
        Both runs, and the share of the cores that others took while the plan ran.
    """
    with NativeExecutor(program, devices) as executor:
        costs = measure_costs(executor)
        task = Task.of_profile(program, devices, costs.times_us)
        plan = plan or heft(task)
        others = (other for _, other in random_plans(task, 0) if other.key != plan.key)
        contention = fit(costs, runs_in_turns(executor, list(islice(others, NUM_CALIBRATION))))
        LoadGate().wait()
        runs, meter = [], LoadMeter()
        for _ in range(repetitions + 1):
            executor.run(plan)
            runs.append(executor.last_timeline)
        load = meter.share()
    by_makespan = sorted(runs[1:], key=lambda run: float(run.end_us.max()))
    executed, simulated = by_makespan[len(by_makespan) // 2], Simulator(costs, contention).run(plan)
    return {"executed": executed, "simulated": simulated}, load


def draw(program: Program, devices: list[Device], runs: dict[str, Timeline], load: float, out: Path) -> None:
    """Two panels above each other with one axis of time; a row for each device."""
    makespans = {label: float(run.end_us.max()) / 1e3 for label, run in runs.items()}
    height = 1.3 + 2 * (0.5 + 0.35 * len(devices))
    figure, axes = plt.subplots(len(runs), 1, figsize=(12, height), sharex=True, layout="constrained")
    for axis, (label, run) in zip(axes, runs.items(), strict=True):
        _panel(axis, program, devices, run)
        axis.set_title(f"{label}: {makespans[label]:.1f} ms", loc="left", fontsize=10)
    axes[-1].set_xlabel("milliseconds")
    figure.legend(
        handles=[Patch(color=colour, label=kind) for kind, colour in COLOURS.items()],
        loc="outside lower center", ncols=len(KINDS), frameon=False,
    )  # fmt: skip
    error = makespans["simulated"] / makespans["executed"] - 1
    figure.suptitle(
        f"{program.name}, {program.num_nodes:,} nodes, one plan: executed {makespans['executed']:.1f} ms, "
        f"simulated {makespans['simulated']:.1f} ms ({error:+.1%}); others took {load:.0%} of the cores", fontsize=11,
    )  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120)
    plt.close(figure)


def _panel(axis: Axes, program: Program, devices: list[Device], run: Timeline) -> None:
    for kind, colour in COLOURS.items():
        nodes = [n for n, each in enumerate(program.operations) if each.kind == "operation" and kind_of(each) == kind]
        for row in range(len(devices)):
            mine = [node for node in nodes if run.device[node] == row]
            spans = [(run.begin_us[node] / 1e3, (run.end_us[node] - run.begin_us[node]) / 1e3) for node in mine]
            axis.broken_barh(spans, (row - 0.4, 0.8), color=colour, linewidth=0)
    axis.set_yticks(range(len(devices)), [device.name for device in devices])
    axis.set_ylim(len(devices) - 0.5, -0.5)
    axis.set_xlim(left=0)
    axis.spines[["top", "right"]].set_visible(False)


def chrome_trace(program: Program, devices: Sequence[Device], runs: Mapping[str, Timeline]) -> dict[str, Any]:
    """Return runs of a program in the Trace Event Format: a process for each run, a row for each device.

    Args:
        program: what ran.
        devices: of the executor or the simulator, in their order.
        runs: 'executed' and 'simulated', say, drawn in this order below each other, all from time 0.

    Returns:
        For `json.dumps`; times are microseconds. Inputs and constants, which take no time, are left out; operations
        that ran fused have the times of their group and lie on each other.

    Raises:
        ValueError: a run is of another program: it has another number of nodes.
    """
    events: list[dict[str, Any]] = []
    for process, (label, run) in enumerate(runs.items()):
        if len(run.device) != program.num_nodes:
            raise ValueError(f"run {label!r} has {len(run.device)} nodes, {program.name!r} has {program.num_nodes}")
        makespan_ms = run.makespan_us / 1e3
        events.append(_name("process_name", process, 0, f"{label}, {makespan_ms:.2f} ms"))
        events += [_name("thread_name", process, row, device.name) for row, device in enumerate(devices)]
        for node, operation in enumerate(program.operations):
            if operation.kind == "operation":
                begin, end = float(run.begin_us[node]), float(run.end_us[node])
                events.append({
                    "ph": "X", "name": operation.name, "cat": kind_of(operation), "pid": process,
                    "tid": int(run.device[node]), "ts": begin, "dur": end - begin,
                    "args": {
                        "node": node, "reads": [program.operations[each].name for each in operation.producers],
                        "shapes": [list(shape) for shape in operation.shapes],
                    },
                })  # fmt: skip
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _name(what: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": row, "args": {"name": name}}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run and simulate the plan, write the trace and the picture."""
    program = traced(options.program)
    devices = select(options.devices.split(","), discover())
    plan = Plan.load(options.plan) if options.plan else None
    runs, load = both(program, devices, plan, options.repetitions)
    write_json(options.trace, chrome_trace(program, devices, runs))
    draw(program, devices, runs, load, options.out)
    for label, run in runs.items():
        print(f"{label:<9} {float(run.end_us.max()) / 1e3:.2f} ms")
    print(f"others took {load:.0%} of the cores")
    print(f"Wrote {options.trace} (open it at ui.perfetto.dev) and {options.out}")
    return {"others": load} | {f"{label}_ms": float(run.end_us.max()) / 1e3 for label, run in runs.items()}
