"""What a record of a search says, read with care: every part of it may be missing, empty or of another type."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int64

from gst.reporting.charts import number

Record = Mapping[str, Any]

METHODS = ("annealing", "cross_entropy", "evolution", "colocrl", "hdp", "go", "guided_search", "ours", "contiguous")
"""Plans by these names were searched for; all others but `STEPS` are baselines. Earlier versions wrote `ours` for
`guided_search`."""

PYTORCH, COMPILED = "pytorch", "compiled"
STEPS = {PYTORCH: "as written", COMPILED: "compiled"}
"""What runs without a plan, by name, and its kind."""
RUNTIMES = ("measured", "simulated", "published")


def mapping(value: Any) -> Record:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: Any) -> list[Record]:
    """The mappings of a list."""
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list | tuple) else []


def plans_of(record: Record) -> dict[str, Record]:
    """What is known of each plan, by name, in the order of the record."""
    return {str(name): mapping(plan) for name, plan in mapping(record.get("plans")).items()}


def runtime_of(record: Record) -> str:
    """One of `RUNTIMES`: what plans were judged by at the end. A record that does not say it is judged by its plans."""
    if record.get("runtime") in RUNTIMES:
        return str(record["runtime"])
    return "simulated" if any("latency" in plan for plan in plans_of(record).values()) else "measured"


def time_of(plan: Record) -> float:
    """Milliseconds of one step, measured or not; NaN if the plan failed or nothing is known of it."""
    failed = plan.get("feasible") is False
    return math.nan if failed else number(plan.get("median_ms", plan.get("latency")))


def best_of(record: Record) -> Record:
    """The plan that was found the fastest."""
    return plans_of(record).get(str(record.get("best")), {})


def again(plan: Record) -> Record:
    """A plan with the times of the second set of runs, where it was measured again: those that did not choose it."""
    times = {key: plan.get(f"again_{key}") for key in ("median_ms", "low_ms", "high_ms")}
    return plan if math.isnan(number(times["median_ms"])) else {**plan, **times}


def pytorch_of(record: Record) -> Record:
    """Plain PyTorch, as far as it was measured."""
    return plans_of(record).get(PYTORCH) or {"median_ms": record.get("pytorch_ms")}


def winner_of(record: Record) -> str:
    """Name of what is to run: a plan, or the step as written or compiled where no plan was faster beyond noise."""
    return str(record.get("winner") or record.get("best"))


def best_baseline(record: Record) -> tuple[str, Record]:
    """Name and plan of the fastest baseline; no name if none ran."""
    ran = [
        (time_of(plan), name, plan)
        for name, plan in plans_of(record).items()
        if kind_of(name) == "baseline" and name not in STEPS and not math.isnan(time_of(plan))
    ]
    _, name, plan = min(ran, key=lambda entry: entry[0], default=(math.nan, "", {}))
    return name, plan


def kind_of(origin: Any) -> str:
    """'baseline', 'method', 'mutation' or 'uncertain': what the marks of the charts tell apart."""
    origin = str(origin)
    return "method" if origin in METHODS else origin if origin in ("mutation", "uncertain") else "baseline"


def gap_percent(record: Record) -> float:
    """By how much the best plan is above the lower bound, in percent; NaN where either is unknown."""
    found, bound = time_of(best_of(record)), number(record.get("lower_bound"))
    return 100 * (found / bound - 1) if bound > 0 else math.nan


def overlaps(one: Record, other: Record) -> bool:
    """Whether the intervals of two plans have a time in common; False where one has no interval."""
    lows, highs = ([number(plan.get(key)) for plan in (one, other)] for key in ("low_ms", "high_ms"))
    return not any(map(math.isnan, lows + highs)) and max(lows) <= min(highs)


def command_of(record: Record) -> str:
    """'gst place', 'gst demo' or 'gst fit', or 'gst' if the record names another or none."""
    named = re.match(r"gst (place|demo|fit)(?=\s|$)", str(record.get("command") or ""))
    return named.group() if named else "gst"


def device_names(record: Record, indices: Iterable[int] = ()) -> dict[int, str]:
    """Name of each device by index; one that is used but not described is called by its index."""
    devices = record.get("devices")
    listed = devices if isinstance(devices, list | tuple) else []
    names = {
        index: str(entry.get("name", index) if isinstance(entry, Mapping) else entry)
        for index, entry in enumerate(listed)
    }
    return {**{index: f"device {index}" for index in sorted(set(indices))}, **names}


def graph_arrays(
    record: Record,
) -> tuple[
    Int64[np.ndarray, "ends edges"], Int64[np.ndarray, " nodes"], Int64[np.ndarray, " nodes"], list[str]
]:  # fmt: skip
    """Edges that name nodes that exist, then segment, device and opcode of each node."""
    graph = mapping(record.get("graph"))
    lists = [list(graph.get(key) or []) for key in ("segment", "device", "opcode")]
    nodes = max(map(len, lists))
    segment, device = (np.array([*lists[i], *[0] * (nodes - len(lists[i]))], np.int64).clip(0) for i in (0, 1))
    if segment.size:
        segment = segment if segment.max() < 4 * nodes else np.unique(segment, return_inverse=True)[1]
    pairs = graph.get("edges") or [[], []]
    edges = np.array([list(pairs[0]), list(pairs[1])], np.int64).reshape(2, -1)
    edges = edges[:, ((edges >= 0) & (edges < nodes)).all(axis=0) & (edges[0] != edges[1])]
    return edges, segment, device, [str(word) for word in lists[2]] + ["?"] * (nodes - len(lists[2]))
