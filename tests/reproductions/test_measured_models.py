"""The reproduction of measured plans: what the linear model sees, and figures for every program and task."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.reproductions.measured_plans import METHODS, Measured, linear, run
from gst.cost.metrics import kendall_tau
from gst.placement.measured_plans import read_measured
from tests.files import FIXTURES

FIXTURE = FIXTURES / "measured" / "rnnlm"


@pytest.fixture
def measured() -> Measured:
    return Measured(read_measured(FIXTURE))


def named(measured: Measured, name: str) -> Measured:
    return Measured(replace(measured.source, header={**measured.source.header, "name": name}))


def test_summed_costs_by_loops(measured: Measured) -> None:
    profiled = measured.source.profiled
    best = profiled.times_us.sum(1).min()
    for plan, sums in zip(measured.source.plans[5:10], measured.sums[5:10], strict=True):
        devices, cores, edges, size = np.zeros(3), np.zeros(2), 0, 0
        for node, device in enumerate(plan.placement):
            devices[device] += profiled.times_us[device, node] / best
            for core in profiled.devices[device].cores:
                cores[core] += profiled.times_us[device, node] / best
        for producer, consumer in profiled.graph.edges.T:
            first = [profiled.devices[plan.placement[node]].cores[0] for node in (producer, consumer)]
            edges += first[0] != first[1]
            size += profiled.output_bytes[producer] * (first[0] != first[1])
        everything = profiled.output_bytes[profiled.graph.edges[0]].sum()
        assert np.allclose(sums, [*devices, *cores, edges / profiled.graph.num_edges, size / everything])


def test_a_linear_runtime_is_learned_by_the_linear_model(measured: Measured) -> None:
    planted = measured.sums @ np.arange(1.0, 8.0)
    measured.__dict__["graph"] = replace(measured.graph, targets=planted)
    train, test = np.arange(0, 40, 2), np.arange(1, 40, 2)
    assert kendall_tau(linear([(measured, train)], (measured, test), 0, 0), planted[test]) > 0.99


def test_targets_are_relative_to_the_best_single_device(measured: Measured) -> None:
    medians = np.array([each.median_ms for each in measured.source.measurements])
    assert np.allclose(measured.graph.targets, medians * 1e3 / measured.source.profiled.times_us.sum(1).min())


def test_every_program_has_figures_for_both_tasks(measured: Measured) -> None:
    programs = [measured, named(measured, "twin")]
    result = run(programs, seeds=1, epochs=1)
    for task in ("seen", "unseen"):
        assert result[task]["programs"].keys() == {measured.name, "twin"}  # type: ignore[index]
        for taus in result[task]["programs"].values():  # type: ignore[index]
            assert taus.keys() == METHODS.keys()
            assert all(len(each) == 1 and -1 <= each[0] <= 1 for each in taus.values())
    assert run(programs[:1], seeds=1, epochs=1).keys() == {"seen"}
