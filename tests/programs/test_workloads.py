"""The bundled steps: they learn, are pure, and are the same for the same seed."""

import pytest
import torch

from gst.programs import WORKLOADS
from tests.choices import with_rest
from tests.programs.small import SMALL, STRUCTURES

EACH = pytest.mark.parametrize("name", with_rest(sorted(SMALL), STRUCTURES))


@EACH
def test_loss_decreases_when_the_step_is_iterated_and_its_inputs_stay(name: str) -> None:
    step = WORKLOADS[name](**SMALL[name])
    parameters, *tensors = step.inputs
    before = {key: value.clone() for key, value in parameters.items()}
    losses = []
    for _ in range(20):
        loss, parameters = step.function(parameters, *tensors)
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert all(torch.equal(before[key], value) for key, value in step.inputs[0].items())


@EACH
def test_a_seed_gives_one_step_and_leaves_the_global_generator_alone(name: str) -> None:
    before = torch.get_rng_state()
    first, again, other = (WORKLOADS[name](**SMALL[name], seed=seed).inputs[0] for seed in (1, 1, 2))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)
    assert torch.equal(before, torch.get_rng_state())
