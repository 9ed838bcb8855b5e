"""The larger image workloads have the published sizes, and learn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from experiments.bench import images
from experiments.bench.images import inception_v3, nasnet
from gst.programs import TrainingStep, resolve


def test_inception_v3_has_as_many_parameters_as_the_published_network() -> None:
    """23,834,568 without the auxiliary classifier, for 1,000 classes."""
    with torch.device("meta"):
        network = images._network(4, 32, 1000)
        sizes = [value.numel() for value in network.parameters()]
        assert sum(sizes) == 23_834_568
        assert network(torch.empty(1, 3, 299, 299)).shape == (1, 1000)
        assert network[:-3](torch.empty(1, 3, 299, 299)).shape == (1, 2048, 8, 8)


def test_cells_of_nasnet_keep_or_halve_the_image() -> None:
    before, last = torch.rand(2, 6, 8, 8), torch.rand(2, 5, 8, 8)
    normal = images.Cell((6, 5), 4, images.NORMAL, halve_first=False)
    reduction = images.Cell((6, 5), 4, images.REDUCTION, halve_first=False)
    assert normal(before, last).shape == (2, normal.channels, 8, 8) == (2, 24, 8, 8)
    assert reduction(before, last).shape == (2, reduction.channels, 4, 4) == (2, 16, 4, 4)
    halved = images.Cell((6, 16), 4, images.NORMAL, halve_first=True)
    assert halved(before, reduction(before, last)).shape == (2, 24, 4, 4)


@pytest.mark.parametrize("make", [lambda: inception_v3(1, 1, 75, 4), lambda: nasnet(2, 1, 4, 8)])
def test_the_loss_decreases_when_the_step_is_iterated(make: Callable[[], TrainingStep]) -> None:
    step = make()
    parameters, *tensors = step.inputs
    losses = []
    for _ in range(20):
        loss, parameters = step.function(parameters, *tensors)
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_commands_find_the_workloads_by_their_names() -> None:
    assert resolve("experiments.bench.images:nasnet").name == "nasnet-3x2"


def test_depth_is_an_argument_and_images_have_a_least_size() -> None:
    sizes = [len(inception_v3(depth=depth, width=1).inputs[0]) for depth in (2, 4, 6)]
    assert sizes == sorted(set(sizes))
    assert len(nasnet(cells=3, width=4).inputs[0]) > len(nasnet(cells=1, width=4).inputs[0])
    with pytest.raises(ValueError, match="70 x 70 pixels are too small"):
        inception_v3(size=70)
