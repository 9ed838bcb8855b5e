"""The split of a human expert: layers as parameters tell them, one after the other on the devices."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.reproductions.expert import expert, layers
from gst.placement.machines import machine
from gst.placement.task import Task
from tests.programs.small import small_program


@pytest.fixture(scope="module")
def gpus() -> Task:
    return machine("gpus:4").task(small_program("rnnlm"))


def test_a_layer_holds_what_reads_its_parameters_and_renews_them(gpus: Task) -> None:
    assert gpus.program is not None
    layer, home, program = layers(gpus), gpus.program.parameter_home, gpus.program
    for parameter in np.unique(home[home >= 0]):
        assert len(set(layer[home == parameter])) == 1
    assert 3 <= layer.max() + 1 <= 8  # embedding, two cells, words
    in_order = [layer[home == parameter][0] for parameter in np.unique(home[home >= 0])]
    assert in_order == sorted(in_order)
    for node, operation in enumerate(program.operations):
        parameters = {int(home[each]) for each in operation.producers} - {-1}
        if home[node] < 0 and len(parameters) == 1:
            assert layer[node] == layer[parameters.pop()]


def test_the_expert_puts_consecutive_layers_on_consecutive_devices(gpus: Task) -> None:
    layer, plan = layers(gpus), expert(gpus)
    assert plan is not None
    device = [set(plan.placement[layer == each]) for each in range(layer.max() + 1)]
    assert all(len(each) == 1 for each in device)
    assert (np.diff([each.pop() for each in device]) >= 0).all() and len(set(plan.placement)) > 1
