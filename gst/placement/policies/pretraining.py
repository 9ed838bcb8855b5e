"""Policies that have learned on other graphs: pretraining, fine-tuning, plans without any, and files of policies."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from gst.lowering.plan import Plan
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.policies.decisions import (
    Decisions,
    LogProbabilities,
    canonical,
    decisions_of,
    draw,
    list_decoded,
    most_likely,
    plans_of,
)
from gst.placement.policies.go import GO, samples_for
from gst.placement.policies.inputs import PolicyInputs, policy_inputs
from gst.placement.policies.ppo import PPO, Lesson, train
from gst.placement.search.annealing import anneal
from gst.placement.task import Task
from gst.util.progress import Progress, no_progress
from gst.util.untrusted import DAMAGE, check_weights, plain, read_tensors, shown
from gst.util.writing import atomic_path

AT_ONCE = 4  # examples in a step
SMOOTHING = 0.05  # share of the target that is spread over all actions, so that the policy goes on exploring


@dataclass(frozen=True, eq=False)
class Example:
    """Decisions of one plan for one graph.

    Args:
        weights: of each group, mean 1: large operations matter more, but all do.
    """

    inputs: PolicyInputs
    decisions: Decisions
    weights: Float[Tensor, " groups"]

    @staticmethod
    def of(inputs: PolicyInputs, decisions: Decisions) -> Example:
        weights = inputs.groups[:, 0] + 0.1  # the logarithm of the share of time
        return Example(inputs, decisions, weights / weights.mean())


def imitate(
    policy: nn.Module,
    examples: Sequence[Example],
    steps: int,
    learning_rate: float = 2e-3,
    seed: int = 0,
    progress: Progress = no_progress,
) -> list[float]:
    """Make the plans of examples likely: cross-entropy with smoothed labels (Szegedy et al., "Rethinking the Inception
    Architecture", CVPR 2016, section 7), of the tasks that both policy and example decide. The learning rate falls to
    zero as a cosine.

    A step takes `AT_ONCE` examples, all of them in turn.

    Returns:
        The loss of each step.
    """
    if not examples:
        return []
    optimizer = torch.optim.Adam(policy.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    generator, waiting, losses = np.random.default_rng(seed), list[int](), []
    for step in range(steps):
        while len(waiting) < min(AT_ONCE, len(examples)):
            waiting += generator.permutation(len(examples)).tolist()
        chosen, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
        optimizer.zero_grad()
        loss = 0.0
        for each in chosen:
            part = distance(policy(examples[each].inputs), examples[each]) / len(chosen)
            part.backward()
            loss += part.item()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss)
        progress("imitating", step + 1, steps)
    return losses


def distance(log_probabilities: LogProbabilities, example: Example) -> Tensor:
    """Cross-entropy from an example to a policy, nats a group."""
    loss = torch.zeros(())
    for name in [each for each in log_probabilities if each in example.decisions]:
        now, wanted = log_probabilities[name], example.decisions[name].T
        possible = now > -1e8
        spread = (now.masked_fill(~possible, 0.0)).sum(1) / possible.sum(1)
        hit = now.gather(1, wanted)[:, 0].clamp(min=-20.0)
        loss = loss - (example.weights * ((1 - SMOOTHING) * hit + SMOOTHING * spread)).mean()
    return loss


SCHEMA = 2
MAX_STEPS = 49  # of fine-tuning (Zhou et al. 2020: fewer than 50)
SHARPER = 0.5  # temperature of half of the plans that are drawn


def pretrain(
    tasks: Sequence[Task], policy: GO, evaluations: int = 1_000, imitation_steps: int = 400, iterations: int = 50,
    samples: int = 16, seed: int = 0, progress: Progress = no_progress,
) -> GO:  # fmt: skip
    """Teach a policy on several graphs and machines: first to imitate the best plan that annealing finds from the
    portfolio (as DOPPLER does from a heuristic: Yao et al., ICLR 2026), then by PPO against simulated runtimes. It is
    taught in place, and returned.

    Args:
        tasks: captured programs, published graphs, or those of `generated_task`.
        evaluations: simulated plans for each of the plans to imitate.
        imitation_steps, iterations: of the two parts.
        samples: plans of each graph in an iteration of PPO.
    """
    imitate(policy, examples(tasks, evaluations, seed, progress), imitation_steps, seed=seed, progress=progress)
    lessons = [Lesson(task, policy_inputs(task), SimulatedObjective(task)) for task in tasks]
    train(policy, lessons, iterations, samples, seed, learning_rate=3e-4, entropy=(1e-3, 1e-4), progress=progress)
    return policy


def examples(
    tasks: Sequence[Task], evaluations: int = 1_000, seed: int = 0, progress: Progress = no_progress
) -> list[Example]:
    """For each task the best plan that annealing finds from the portfolio, for a policy to imitate."""
    found = []
    for number, task in enumerate(tasks):
        progress("plans to imitate", number, len(tasks))
        teacher = Budgeted(SimulatedObjective(task), evaluations)
        anneal(task, teacher, seed)
        if teacher.best is not None:
            inputs = policy_inputs(task)
            found.append(Example.of(inputs, decisions_of(task, inputs, canonical(inputs, teacher.best))))
    return found


def fine_tune(
    policy: GO, task: Task, objective: Budgeted, seed: int = 0, steps: int = MAX_STEPS, listed: bool = True
) -> GO:
    """A copy of a policy that has learned on one graph, in fewer than 50 steps of PPO or until the budget is spent. Up
    to a quarter of the budget goes to the plans that it has without learning (`proposals`, `listed` as there)."""
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
    """Plans of a policy that did not learn on their graph.

    Args:
        plans: best simulated first.
        simulated_ms: of each; NaN for those that fail.
    """

    plans: list[Plan]
    simulated_ms: list[float]


def zero_shot(policy: GO, task: Task, samples: int = 32, seed: int = 0) -> ZeroShot:
    """Plans by one pass of a policy (`proposals`), simulated."""
    plans = proposals(policy, task, samples, seed)
    took = SimulatedObjective(task)(plans)
    order = np.argsort(np.nan_to_num(took, nan=np.inf), kind="stable")
    return ZeroShot([plans[each] for each in order], took[order].tolist())


def proposals(policy: GO, task: Task, samples: int = 32, seed: int = 0, listed: bool = True) -> list[Plan]:
    """Different plans by one pass of a policy: those that list schedules make of it (`list_decoded`, which simulate two
    or three plans for each), the most likely one, and `samples` drawn, half of them from sharper probabilities.

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


def save_policy(policy: GO, path: Path | str) -> None:
    """Write a file that `load_policy` reads: numbers and tensors only."""
    with atomic_path(Path(path)) as file:
        torch.save({"schema": SCHEMA, "settings": policy.settings, "state": policy.state_dict()}, file)


def load_policy(path: Path | str) -> GO:
    """Read what `save_policy` wrote.

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
