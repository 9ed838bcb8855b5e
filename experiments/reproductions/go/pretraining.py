"""Policies that have learned on other graphs: examples to imitate, fine-tuning, plans in one pass, and their files."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from experiments.reproductions.go.imitation import Example, decisions_of
from gst.lowering.plan import Plan
from gst.placement.baselines.portfolio import etf, heft
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.policies.go import GO, samples_for
from gst.placement.policies.ppo import (
    PPO,
    Decisions,
    Lesson,
    LogProbabilities,
    PolicyInputs,
    draw,
    plans_of,
    policy_inputs,
)
from gst.placement.search.annealing import anneal
from gst.placement.task import Task
from gst.util.progress import Progress, no_progress
from gst.util.untrusted import DAMAGE, check_weights, plain, read_tensors, shown
from gst.util.writing import atomic_path

SCHEMA = 2
MAX_STEPS = 49  # of fine-tuning (Zhou et al. 2020: fewer than 50)
SHARPER = 0.5  # temperature of half of the plans that are drawn
STRENGTHS = (0.03, 0.1, 0.3, 1.0)
"""By how much of its time an operation seems longer for each nat that a device is less likely than the likeliest."""
NUM_NOISY = 4  # plans of each strength and schedule that noise is added for


def examples(
    tasks: Sequence[Task], evaluations: int = 1_000, seed: int = 0, progress: Progress = no_progress
) -> list[Example]:
    """Return for each task the best plan that annealing finds from the portfolio, for a policy to imitate (as DOPPLER
    imitates a heuristic: Yao et al., ICLR 2026)."""
    results = []
    for number, task in enumerate(tasks):
        progress("plans to imitate", number, len(tasks))
        teacher = Budgeted(SimulatedObjective(task), evaluations)
        anneal(task, teacher, seed)
        if teacher.best is not None:
            inputs = policy_inputs(task)
            results.append(Example.of(inputs, decisions_of(task, inputs, canonical(inputs, teacher.best))))
    return results


def canonical(inputs: PolicyInputs, plan: Plan) -> Plan:
    """Rename equal devices of a plan in the order of first use, so that plans that differ only in such names are one.
    Devices are equal if all their inputs of a policy are."""
    slots, features = inputs.slots.numpy(), inputs.devices.numpy()
    starts = np.flatnonzero(slots == 0)
    kind = np.array([next(s for s in starts if np.allclose(features[s], each, atol=1e-4)) for each in features])
    name = np.arange(len(slots))
    used = list(dict.fromkeys(plan.placement.tolist()))
    for start in starts:
        alike = np.flatnonzero(kind == start).tolist()
        in_order = [each for each in used if kind[each] == start]
        name[in_order + [each for each in alike if each not in in_order]] = alike
    return replace(plan, placement=name[plan.placement])


def fine_tune(
    policy: GO, task: Task, objective: Budgeted, seed: int = 0, steps: int = MAX_STEPS, listed: bool = True
) -> GO:
    """Return a copy of a policy that has learned on one graph, in fewer than 50 steps of PPO or until the budget is
    spent. Up to a quarter of the budget goes to the plans that it has without learning (`proposals`)."""
    tuned = copy.deepcopy(policy)
    objective(proposals(policy, task, seed=seed, listed=listed)[: objective.left // 4])
    learner, lesson = PPO(tuned, learning_rate=3e-4, seed=seed), Lesson(task, policy_inputs(task), objective)
    steps = min(steps, MAX_STEPS)
    samples = max(samples_for(objective.left), -(-objective.left // max(steps, 1)))
    for step in range(steps):
        if objective.left:
            learner.step(lesson, min(samples, objective.left), step / steps)
    return tuned


@dataclass(frozen=True, eq=False)
class ZeroShot:
    """Plans of a policy that did not learn on their graph, the best simulated first; NaN ms for those that fail."""

    plans: list[Plan]
    simulated_ms: list[float]


def zero_shot(policy: GO, task: Task, samples: int = 32, seed: int = 0) -> ZeroShot:
    """Simulate the plans by one pass of a policy (`proposals`)."""
    plans = proposals(policy, task, samples, seed)
    took = SimulatedObjective(task)(plans)
    order = np.argsort(np.nan_to_num(took, nan=np.inf), kind="stable")
    return ZeroShot([plans[each] for each in order], took[order].tolist())


def proposals(policy: GO, task: Task, samples: int = 32, seed: int = 0, listed: bool = True) -> list[Plan]:
    """Return different plans by one pass of a policy: those that list schedules make of it (`list_decoded`, which
    simulate two or three plans for each), the most likely one, and `samples` drawn, half of them from sharper
    probabilities.

    Args:
        listed: whether list schedules make plans of it.
    """
    inputs, generator = policy_inputs(task), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        chances = policy(inputs)
    sharper = {name: (each / SHARPER).log_softmax(1) for name, each in chances.items()}
    decided: list[Decisions] = [most_likely(chances)]
    for each, count in ((sharper, samples - samples // 2), (chances, samples // 2)):
        decided += [draw(each, count, generator)] if count else []
    plans = list(list_decoded(task, inputs, chances["placement"], generator)) if listed else []
    plans += [plan for each in decided for plan in plans_of(task, inputs, each)]
    return list({plan.key: plan for plan in plans}.values())


def most_likely(log_probabilities: LogProbabilities) -> Decisions:
    """Return the decisions of one plan."""
    return {name: each.argmax(1)[None] for name, each in log_probabilities.items()}


def list_decoded(
    task: Task, inputs: PolicyInputs, placement: Float[Tensor, "groups devices"], generator: torch.Generator
) -> Iterator[Plan]:
    """Yield plans that HEFT and ETF make of times that the policy has changed.

    A policy that decides all groups at once cannot see which device is free when; a list schedule can, but sees no
    further than the operation at hand. So times are longer on devices that the policy finds unlikely, by each of
    `STRENGTHS`, for its log probabilities as they are and with Gumbel noise, which draws from them (Maddison, Tarlow
    and Minka, A* Sampling, NeurIPS 2014). Up to 40 plans, those without noise first; none if the memories allow none.

    Args:
        placement: log probabilities of devices.
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


def save_policy(policy: GO, path: Path | str) -> None:
    """Write a file that `load_policy` reads: numbers and tensors only."""
    with atomic_path(Path(path)) as file:
        torch.save({"schema": SCHEMA, "settings": policy.settings, "state": policy.state_dict()}, file)


def load_policy(path: Path | str) -> GO:
    """Read a file of `save_policy`.

    Raises:
        ValueError: there is no such file, it holds no policy, or one of another version.
    """
    try:
        content: dict[str, Any] = read_tensors(Path(path))
        if content["schema"] == SCHEMA:
            settings, state = content["settings"], content["state"]
            check_weights(lambda: GO(**settings), state, (settings["encoder_layers"], settings["attention_layers"]))
            policy = GO(**settings)
            policy.load_state_dict(state)
            return policy
    except DAMAGE as error:
        raise ValueError(
            f"{path} is no policy ({type(error).__name__}: {plain(error)}); save one with save_policy"
        ) from error
    raise ValueError(
        f"{path} has schema {shown(content['schema'])}, this version reads {SCHEMA}; pretrain the policy again"
    )
