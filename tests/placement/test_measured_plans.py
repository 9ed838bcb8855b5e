"""Configurations of plans worked by hand, overlapping devices, and a measured directory read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gst.execution.measure import Log, Measurement
from gst.graphs.graph import Graph
from gst.lowering.plan import Plan
from gst.machine.devices import Device
from gst.placement.measured_plans import GRAPH, MeasuredPlans, Profiled, plans_graph, read_measured, write_header

ONE, OTHER = (Device(f"cpu:{core}", "cpu", (core,), 1, "host", "test") for core in (0, 1))
BOTH = Device("cpu:0-1", "cpu", (0, 1), 2, "host", "test")
NAMES = ("cpu:0", "cpu:1", "cpu:0-1")


def chain() -> Profiled:
    """0 -> 1 -> 2 -> 3 with 10, 20, 30, 40 bytes; an operation takes 4 us on one core and 2 us on both."""
    graph = Graph(np.zeros((4, 1), np.float32), np.array([[0, 1, 2], [1, 2, 3]]), name="chain")
    times = np.array([[4.0], [4.0], [2.0]]) * np.ones(4)
    return Profiled(graph, np.array([10, 20, 30, 40]), (ONE, OTHER, BOTH), times)


def test_features_of_a_plan_by_hand() -> None:
    """Nodes 0 and 1 on cpu:0 and cpu:0-1, which share a thread; 1 -> 2 and 2 -> 3 cross to cpu:1 and back."""
    graph = plans_graph(chain(), [Plan(NAMES, np.array([0, 2, 1, 2]))], np.array([7.0]))
    (rows,) = graph.config_features
    share = 4 / (10 / 3), 2 / (10 / 3)
    want = [
        # device     core 0    core 1    crossing, log bytes    later
        [1, 0, 0, share[0], 0, 0, 0, 0],
        [0, 0, 1, share[1], share[1], 0, 0, 0],
        [0, 1, 0, 0, share[0], 1, np.log(21), 0],
        [0, 0, 1, share[1], share[1], 1, np.log(31), 0],
    ]
    assert np.allclose(rows, want)
    assert graph.targets.tolist() == [7.0] and graph.name == "chain"
    assert np.allclose(graph.node_features[:, 1:], np.log1p([4, 4, 2]))


def test_a_plan_may_name_devices_in_any_order_and_only_those_it_uses() -> None:
    whole = Plan(NAMES, np.array([2, 0, 2, 2]))
    part = Plan((NAMES[2], NAMES[0]), np.array([0, 1, 0, 0]))
    one, other = plans_graph(chain(), [whole, part]).config_features
    assert np.array_equal(one, other)


def test_priorities_are_told_as_a_delay_of_the_turn() -> None:
    placement = np.zeros(4, np.int64)
    plain, same, reversed_ = plans_graph(
        chain(),
        [Plan(NAMES, placement), Plan(NAMES, placement, np.array([9, 9, 5, 1])), Plan(NAMES, placement, np.arange(4))],
    ).config_features[:, :, -1]
    assert (plain == 0).all() and (same == 0).all()
    assert np.allclose(reversed_, [3 / 4, 1 / 4, -1 / 4, -3 / 4])


def write(directory: Path, devices: tuple[Device, ...], medians: list[float]) -> None:
    profiled = chain()
    kept = Profiled(profiled.graph, profiled.output_bytes, devices, profiled.times_us[: len(devices)])
    write_header(directory, {"name": directory.name, "program": "key"}, kept)
    names = tuple(device.name for device in devices)
    for number, median in enumerate(medians):
        outcome = "failed" if np.isnan(median) else "ok"
        seen = Measurement("", None, (), median, median, median, outcome, "crashed" * (outcome == "failed"))
        plan = Plan(names, np.array([number % len(names)] * 4))
        Log(directory / "measurements.jsonl").append({"plan": plan.to_dict(), "measurement": seen.to_dict()})


def test_directories_become_graphs_without_the_plans_that_failed(tmp_path: Path) -> None:
    write(tmp_path / "a", (ONE, OTHER), [1.5, np.nan, 2.5])
    write(tmp_path / "b", (ONE, OTHER), [4.0])
    source = MeasuredPlans([f"{tmp_path}/*"])
    before = source.fingerprint()
    first, second = source
    assert [first.name, second.name] == ["a", "b"]
    assert first.targets.tolist() == [1.5e6, 2.5e6] and second.targets.tolist() == [4e6]
    assert first.config_features[:, 0, 0].tolist() == [1.0, 1.0]
    measured = read_measured(tmp_path / "a")
    assert measured.profiled.devices == (ONE, OTHER) and len(measured.plans) == 3
    write(tmp_path / "c", (ONE, OTHER), [4.0])
    assert source.fingerprint() != before


def test_what_makes_no_dataset_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", (ONE, OTHER), [np.nan])
    with pytest.raises(ValueError, match="no plan of a ran to the end: crashed"):
        list(MeasuredPlans([str(tmp_path / "a")]))
    write(tmp_path / "b", (ONE, OTHER), [1.0])
    write(tmp_path / "c", (ONE,), [1.0])
    with pytest.raises(ValueError, match="was measured on cpu:0, the first directory on cpu:0, cpu:1"):
        list(MeasuredPlans([str(tmp_path / "b"), str(tmp_path / "c")]))
    (tmp_path / "b" / GRAPH).unlink()
    with pytest.raises(ValueError, match="does not hold what gst measure writes"):
        list(MeasuredPlans([str(tmp_path / "b")]))
