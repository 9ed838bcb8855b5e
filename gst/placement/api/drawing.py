"""A plan as the report draws it, and in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from gst.lowering.plan import Plan
from gst.machine.devices import core_use
from gst.placement.task import Task
from gst.programs.features import KINDS, kind_of
from gst.reporting.headline import LOOP, again, baseline_name, best_of, pytorch_of, ratio_of, time_of

PARTS = ("without a plan", "baselines", "search in simulation", "compiled groups", "search with measurements")
NUM_NAMED = 3


def plan_drawing(task: Task, plan: Plan) -> dict[str, Any]:
    """Return the devices and the simulated timeline, for `gst.reporting`."""
    run = task.simulator.run(plan)
    nodes = np.flatnonzero(task.costs.computed & (run.end_us > run.begin_us))
    operations = None if task.program is None else task.program.operations
    kinds = [KINDS.index("other" if operations is None else kind_of(operations[n])) for n in nodes]
    return {
        "num_edges": task.graph.num_edges,
        "devices": [{"name": device.name, "description": device.description} for device in task.devices],
        "timeline": {
            "kinds": list(KINDS),
            "bars": [
                [int(run.device[n]), run.begin_us[n] / 1e3, run.end_us[n] / 1e3, kind]
                for n, kind in zip(nodes, kinds, strict=True)
            ],
        },
    }  # fmt: skip


def explanation(task: Task, plan: Plan, result: dict[str, Any]) -> str:
    """Return a few lines about a plan: work of each device, values that move, lower bound. Times are simulated."""
    run = task.simulator.run(plan)
    span = max(run.makespan_us, 1e-9)
    took = (run.end_us - run.begin_us) * task.costs.computed
    use = core_use(task.devices)
    lines = [f"{task.name}: {task.num_nodes:,} operations, best plan {result['best']}, {_outcome(result)}"]
    for position, device in enumerate(task.devices):
        mine = (plan.placement == position) & task.costs.computed
        kinds = Counter(np.array(_opcodes(task), object)[mine].tolist()).most_common(NUM_NAMED)
        what = ", ".join(f"{name} {count:,}" for name, count in kinds) or "nothing"
        lines.append(f"  {device.name}: {mine.sum():,} operations, busy {took[mine].sum() / span:.0%} ({what})")
    shares = [took[use[plan.placement, core]].sum() / span for core in range(use.shape[1])]
    lines.append(f"cores are in use for {', '.join(f'{share:.0%}' for share in shares)} of the simulated run")
    producers, consumers = task.costs.edges
    crossing = plan.placement[producers] != plan.placement[consumers]
    size = task.costs.output_bytes[np.unique(producers[crossing])].sum() / 2**20
    lines.append(f"{crossing.sum():,} of {len(crossing):,} edges join two devices ({size:.1f} MiB of values)")
    bound = result["lower_bound"]
    ratio = result["objective"] / bound
    lines.append(f"no plan can take less than {bound:.2f} ms by these costs; this one takes {ratio:.2f} times that")
    return "\n".join(lines)


def contributions(plans: Mapping[str, Mapping[str, Any]], methods: Collection[str]) -> list[str]:
    """Return a line for each part of the loop: the fastest of the plans that it contributes.

    Args:
        methods: names of the plans that searches found.

    Examples:
        >>> heft, annealing = ({"feasible": True, "median_ms": ms} for ms in (4.0, 3.0))
        >>> contributions({"heft": heft, "annealing": annealing}, ["annealing"])
        ['baselines: heft, 4.00 ms', 'search in simulation: annealing, 3.00 ms']
    """
    best: dict[str, tuple[float, str]] = {}
    for name, plan in plans.items():
        if plan["feasible"]:
            ms = float(plan.get("median_ms", plan.get("latency", math.nan)))
            part = PARTS[0] if plan.get("seconds_to_plan", 0.0) is None else _part(name, methods)
            best[part] = min(best.get(part, (math.inf, "")), (ms, name))
    return [f"{part}: {best[part][1]}, {best[part][0]:.2f} ms" for part in PARTS if part in best]


def loop_words(result: Mapping[str, Any]) -> list[str]:
    """Return a line about what the loop measured, by what proposed it; none without measurements.

    Examples:
        >>> proposed = {"go": {"measured": 3, "best_ms": 2.5}, "heft": {"measured": 1, "best_ms": 3.0}}
        >>> cost_model = {"name": "gst", "tau": None}
        >>> print(loop_words({"proposed": proposed, "methods": ["go"], "cost_model": cost_model})[0])
        measured: go 3 (best 2.50 ms), baselines 1 (best 3.00 ms); rewards by the cost model gst
    """
    parts: dict[str, list[Any]] = {}
    for name, each in result.get("proposed", {}).items():
        part = parts.setdefault(name if name in (*result["methods"], "mutation") else "baselines", [0, math.inf])
        part[:] = part[0] + each["measured"], min(part[1], each["best_ms"])
    if not parts:
        return []
    in_order = sorted(parts.items(), key=lambda part: float(part[1][1]))
    words = ", ".join(f"{name} {count} (best {best_ms:.2f} ms)" for name, (count, best_ms) in in_order)
    model = result["cost_model"]
    tau = "" if model["tau"] is None else f", tau {model['tau']:.2f} on plans it had not seen"
    return [f"measured: {words}; rewards by the cost model {model['name']}{tau}"]


def _part(name: str, methods: Collection[str]) -> str:
    if name == LOOP:
        return PARTS[4]
    if name.endswith((":fused", ":segments")):
        return PARTS[3]
    return PARTS[2] if name in methods else PARTS[1]


def _outcome(result: dict[str, Any]) -> str:
    words = f"{result['objective']:.2f} ms {result['runtime']}"
    plain_ms, ratio = time_of(again(pytorch_of(result))), ratio_of(result, best_of(result))
    return f"{words}, {baseline_name(result)} {plain_ms:.2f} ms ({ratio})" if plain_ms > 0 else words


def _opcodes(task: Task) -> list[str]:
    if task.program is None:
        return ["operator"] * task.num_nodes
    return [operation.name.rsplit("_", 1)[0] for operation in task.program.operations]
