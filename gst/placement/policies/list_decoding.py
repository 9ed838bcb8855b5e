"""Plans of a policy by list scheduling: what it finds unlikely costs more, and who is busy counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from gst.devices import Plan
from gst.placement.baselines.list_schedules import etf, heft
from gst.placement.policies.inputs import PolicyInputs
from gst.placement.task import Task

STRENGTHS = (0.03, 0.1, 0.3, 1.0)
"""By how much of its time an operation seems longer for each nat that a device is less likely than the likeliest."""

NUM_NOISY = 4  # plans of each strength and schedule that noise is added for


def list_decoded(
    task: Task, inputs: PolicyInputs, placement: Float[Tensor, "groups devices"], generator: torch.Generator
) -> Iterator[Plan]:
    """Plans that HEFT and ETF make of times that the policy has changed.

    A policy that decides all groups at once cannot see which device is free when; a list schedule can, but sees no
    further than the operation at hand. So times are longer on devices that the policy finds unlikely, by each of
    `STRENGTHS`, for its log probabilities as they are and with Gumbel noise, which draws from them (Maddison, Tarlow
    and Minka, A* Sampling, NeurIPS 2014).

    Args:
        placement: log probabilities of devices.
        generator: of the noise.

    Yields:
        Up to 40 plans, those without noise first; where the limits of memories leave no plan, none.
    """
    exponential = placement.new_empty((NUM_NOISY, *placement.shape)).exponential_(generator=generator)
    for noise, strength in product((torch.zeros_like(placement), *-exponential.log()), STRENGTHS):
        scores = (placement + noise).clamp(min=-20.0)
        longer = 1 + strength * (scores.max(1, keepdim=True).values - scores)
        times = task.times_us * longer[inputs.group].T.double().numpy()
        changed = replace(task, costs=replace(task.costs, times_us=times))
        for plan in (heft(changed), etf(changed)):
            if plan is not None:
                yield plan
