"""Lanes recorded as one graph of an accelerator: where that is impossible they run eagerly and say why."""

import numpy as np
import pytest
import torch

from gst.devices import eager
from gst.devices.execute.lane_graphs import LaneGraph
from gst.devices.execute.lanes import LaneExecutor
from gst.devices.execute.lowering import stream_program
from gst.programs import Program, outputs_differ
from tests.programs.small import SMALL, small_program

from .test_lanes import NO_ACCELERATOR, gpus, storages_of
from .test_stream_program import lanes_of, random_plan, random_streams


def test_without_an_accelerator_lanes_run_eagerly_and_say_why(program: Program) -> None:
    devices = lanes_of(1, 3)
    graph = LaneGraph(LaneExecutor(program, random_streams(program, np.random.default_rng(0), 1, 3), devices))
    assert graph.reason == "graphs are recorded on an accelerator; this runs on cpu"
    doubled = [value * 2 if value.is_floating_point() else value for value in program.inputs]
    for inputs in (None, doubled, None):
        assert outputs_differ(graph.run(inputs), eager(program, inputs)) is None


def test_lanes_of_several_devices_are_no_graph() -> None:
    program, devices = small_program("inception", "cuda"), gpus(2, 1)
    streams = stream_program(program, random_plan(program, devices, np.random.default_rng(1)), devices)
    graph = LaneGraph(LaneExecutor(program, streams, devices))
    assert graph.reason == "graphs are recorded on one accelerator; this runs on cuda:0, cuda:1, cpu"


@pytest.mark.gpu
@NO_ACCELERATOR
@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_graph_of_lanes_gives_the_outputs_of_the_program(name: str) -> None:
    program, rng = small_program(name, "cuda"), np.random.default_rng(0)
    doubled = [value * 2 if value.is_floating_point() else value for value in program.inputs]
    for lanes in (1, 3):
        devices = gpus(1, lanes)[:-1]
        plan = random_plan(program, devices, rng)
        streams = stream_program(program, plan, devices, storages_of(program))
        graph = LaneGraph(LaneExecutor(program, streams, devices))
        assert graph.reason == ""
        for inputs in (None, doubled, None):
            assert outputs_differ(graph.run(inputs), eager(program, inputs)) is None
    assert torch.accelerator.is_available()
