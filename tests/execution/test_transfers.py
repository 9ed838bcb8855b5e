"""Links fitted to copies of several sizes: made-up measurements give back what they were made of, and costs hold what
was measured on this machine."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from gst.execution import costs as measuring
from gst.execution.costs import SIZES, copy_rate, fitted, measured_links
from gst.execution.executor import GraphExecutor
from gst.execution.isolated import Runner
from gst.lowering.calls import COPY_US, profiled_costs
from gst.lowering.plan import Plan
from gst.machine.devices import Device, discover
from gst.placement.profiling import cached_task
from gst.placement.task import Task
from gst.programs import Program
from gst.simulation.simulator import Simulator

CPU = torch.device("cpu")
GPU = Device("cuda:0", "cuda", (), 1, "cuda:0", "test")


@pytest.mark.parametrize(("latency_us", "gb_per_s"), [(3.0, 20.0), (25.0, 0.5), (1.0, 900.0), (0.2, 40.0)])
def test_what_made_the_times_is_found_in_spite_of_noise(latency_us: float, gb_per_s: float) -> None:
    exact = [latency_us + size / gb_per_s / 1e3 for size in SIZES]
    assert fitted(SIZES, exact) == pytest.approx((latency_us, gb_per_s), rel=1e-6)
    noise = np.random.default_rng(0).uniform(0.95, 1.05, (9, len(SIZES)))
    for row in noise:
        assert fitted(SIZES, exact * row) == pytest.approx((latency_us, gb_per_s), rel=0.15)


def test_copies_of_this_machine_have_a_cost_in_both_directions() -> None:
    latency_us, gb_per_s = copy_rate(CPU, CPU)
    assert 0 < latency_us < 10_000 and 0.01 < gb_per_s < 10_000


class Journal:
    """A lane that writes down its copies: from where to where, whether of pinned memory, whether on its stream."""

    entries: ClassVar[list[tuple[str, str, str, bool, bool]]] = []
    pinned: ClassVar[list[torch.Tensor]] = []

    def __init__(self, device: torch.device, memory: int) -> None:
        self.stream = self if device.type == "meta" else None
        self.is_entered = False

    def __enter__(self) -> None:
        self.is_entered = True

    def __exit__(self, *_: object) -> None:
        self.is_entered = False

    def _note(self, name: str, value: torch.Tensor, destination: torch.device, host: torch.Tensor | None) -> None:
        is_pinned = any(host is each for each in self.pinned)
        self.entries.append((name, value.device.type, destination.type, is_pinned, self.is_entered))

    def copy(self, value: torch.Tensor, device: torch.device) -> None:
        self._note("copy", value, device, value)

    def refill(self, buffer: torch.Tensor, value: torch.Tensor) -> None:
        self._note("refill", value, buffer.device, buffer if buffer.device.type == "cpu" else value)

    @classmethod
    def pin(cls, tensor: torch.Tensor) -> torch.Tensor:
        cls.pinned.append(tensor.clone())
        return cls.pinned[-1]


def test_copies_leave_an_accelerator_first_on_a_stream_of_their_own_into_memory_of_the_kind_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Described tensors stand for those of the accelerator."""
    monkeypatch.setattr(measuring, "Lane", Journal)
    monkeypatch.setattr(measuring, "synchronise", lambda devices: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: Journal.pin(tensor))
    monkeypatch.setattr(Journal, "entries", [])
    meta = torch.device("meta")
    for way, is_pinned, call in (
        ((CPU, meta), False, "copy"), ((CPU, meta), True, "refill"),
        ((meta, CPU), False, "refill"), ((meta, CPU), True, "refill"),
    ):  # fmt: skip
        Journal.entries.clear()
        copy_rate(*way, is_pinned)
        expected = call, way[0].type, way[1].type, is_pinned, way[0] == meta
        assert set(Journal.entries) == {expected} and len(Journal.entries) > len(SIZES)


def test_links_of_devices_are_those_of_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def rate(source: torch.device, destination: torch.device, is_pinned: bool) -> tuple[float, float]:
        asked.append((source.type, destination.type))
        return (4.0, 3.0) if is_pinned else (7.0, 2.0)

    monkeypatch.setattr(measuring, "copy_rate", rate)
    cores = [Device(f"cpu:{number}", "cpu", (), 1, "host", "test") for number in range(2)]
    apart = replace(GPU, name="cuda:0/other", memory="other")  # within an accelerator nothing is asked of it
    assert np.isinf(measured_links([GPU, apart])[1]).all() and not asked
    latency_us, bytes_per_us = measured_links([*cores, GPU])
    assert latency_us.tolist() == [[0, 0, 7], [0, 0, 7], [4, 4, 0]], "what comes back arrives in pinned memory"
    assert bytes_per_us[2].tolist() == [3_000, 3_000, np.inf] and bytes_per_us[0].tolist() == [np.inf, np.inf, 2_000]
    assert asked == [("cpu", "cuda"), ("cuda", "cpu")]  # once for each direction


def test_the_simulator_reads_what_was_measured(program: Program) -> None:
    """Costs of devices with memories of their own hold measured links, and a slower link makes a plan take longer."""
    devices = [*discover()[:1], Device("cpu:x", "cpu", (), 1, "another", "test")]
    with GraphExecutor(program, devices) as executor:
        costs = Runner(executor, None, None).costs(1)
    apart = ~np.eye(2, dtype=bool)
    assert (costs.latency_us[apart] > 0).all() and (costs.latency_us[apart] != COPY_US).all()
    assert np.isfinite(costs.bytes_per_us[apart]).all() and np.isinf(costs.bytes_per_us[~apart]).all()
    plan = Plan(tuple(each.name for each in devices), np.arange(program.num_nodes) % 2)
    links = np.where(apart, 1e5, 0.0), costs.bytes_per_us
    slow = profiled_costs(program, devices, costs.times_us, links)
    assert Simulator(slow).run(plan).makespan_us > Simulator(costs).run(plan).makespan_us + 1e5


def test_a_search_that_goes_on_has_the_links_it_began_with(program: Program, tmp_path: Path) -> None:
    devices = [Device(name, "cpu", (), 1, name, "test") for name in ("first", "second")]
    apart = ~np.eye(2, dtype=bool)
    links = np.array([[0.0, 7.0], [9.0, 0.0]]), np.where(apart, [[1.0, 250.0], [125.0, 1.0]], np.inf)
    task = Task.of_program(program, profiled_costs(program, devices, np.ones((2, program.num_nodes)), links))
    for make in (lambda: task, pytest.fail):  # measured, then read
        cached = cached_task(program, devices, tmp_path, make).costs  # type: ignore[arg-type]
        assert np.array_equal(cached.latency_us, links[0]) and np.array_equal(cached.bytes_per_us, links[1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator: no link to one is here")
def test_pinned_memory_is_no_slower_than_pageable() -> None:
    device = torch.accelerator.current_accelerator()
    assert device is not None
    for way in ((CPU, device), (device, CPU)):
        assert copy_rate(*way, is_pinned=True)[1] > 0.7 * copy_rate(*way)[1]
