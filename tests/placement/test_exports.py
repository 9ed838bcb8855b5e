"""Plans handed to other programs are read by these as what they are."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from gst.placement.api.drawing import trace_of_task
from tests.placement.random_tasks import random_task


def check_trace(trace: dict, edges: list[tuple[str, str]]) -> None:
    """The laws of the Trace Event Format, and those of a run: no operation begins before what it reads is there."""
    events = json.loads(json.dumps(trace, allow_nan=False))["traceEvents"]
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    complete = {event["name"]: event for event in events if event["ph"] == "X"}
    for event in complete.values():
        assert event["ts"] >= 0 and event["dur"] >= 0 and isinstance(event["tid"], int)
        rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in rows.values():
        assert all(first[1] <= second[0] * (1 + 1e-9) for first, second in pairwise(sorted(spans))), "one at a time"
    named = {(event["pid"], event["tid"]) for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    assert set(rows) <= named
    opened = {event["id"]: event for event in events if event["ph"] == "b"}
    closed = {event["id"]: event for event in events if event["ph"] == "e"}
    assert opened.keys() == closed.keys() and len(opened) + len(closed) == sum(e["ph"] in "be" for e in events)
    arrives: dict[tuple[str, int], float] = {}
    for number, event in opened.items():
        assert closed[number]["ts"] > event["ts"] and closed[number]["name"] == event["name"]
        source = event["name"].partition(" to ")[0]
        assert event["ts"] == pytest.approx(complete[source]["ts"] + complete[source]["dur"])
        arrives[source, event["args"]["target"]] = closed[number]["ts"]
    for producer, consumer in edges:
        one, other = complete[producer], complete[consumer]
        there = arrives.get((producer, other["tid"]))
        assert (there is None) == (one["tid"] == other["tid"]), "what changes device moves once"
        assert other["ts"] * (1 + 1e-9) >= (one["ts"] + one["dur"] if there is None else there)


@pytest.mark.parametrize("seed", range(3))
def test_a_trace_obeys_the_laws_of_its_format_and_of_runs(seed: int) -> None:
    task = random_task(seed)
    generator = np.random.default_rng(seed)
    plan = task.plan(np.array([generator.choice(np.flatnonzero(column)) for column in np.isfinite(task.times_us).T]))
    check_trace(trace_of_task(task, plan), [(f"node {a}", f"node {b}") for a, b in task.costs.edges.T.tolist()])
