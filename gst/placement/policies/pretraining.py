"""Policies that have learned on other graphs: pretraining, fine-tuning, plans without any, and files of policies."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gst.devices import Plan
from gst.files.untrusted import DAMAGE, check_weights, plain, read_tensors, shown
from gst.files.writing import atomic_path
from gst.placement.local_search.annealing import anneal
from gst.placement.objective import Budgeted, SimulatedRuntime
from gst.placement.policies.decisions import Decisions, canonical, decisions_of, draw, most_likely, plans_of
from gst.placement.policies.go import GO, samples_for
from gst.placement.policies.imitation import Example, imitate
from gst.placement.policies.inputs import policy_inputs
from gst.placement.policies.list_decoding import list_decoded
from gst.placement.policies.ppo import PPO, Lesson, train
from gst.placement.task import Task
from gst.process.progress import Progress, no_progress

SCHEMA = 1
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
    lessons = [Lesson(task, policy_inputs(task), SimulatedRuntime(task)) for task in tasks]
    train(policy, lessons, iterations, samples, seed, learning_rate=3e-4, entropy=(1e-3, 1e-4), progress=progress)
    return policy


def examples(
    tasks: Sequence[Task], evaluations: int = 1_000, seed: int = 0,
    progress: Progress = no_progress,
) -> list[Example]:  # fmt: skip
    """For each task the best plan that annealing finds from the portfolio, for a policy to imitate."""
    found = []
    for number, task in enumerate(tasks):
        progress("plans to imitate", number, len(tasks))
        teacher = Budgeted(SimulatedRuntime(task), evaluations)
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
    took = SimulatedRuntime(task)(plans)
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
