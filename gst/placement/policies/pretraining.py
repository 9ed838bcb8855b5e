"""Policies that have learned on other graphs: pretraining, fine-tuning, plans without any, and files of policies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gst.devices import Plan
from gst.placement.local_search.annealing import anneal
from gst.placement.policies.decisions import Decisions, canonical, decisions_of, draw, most_likely, plans_of
from gst.placement.policies.go import GO, samples_for
from gst.placement.policies.imitation import Example, imitate
from gst.placement.policies.inputs import policy_inputs
from gst.placement.policies.list_decoding import list_decoded
from gst.placement.policies.ppo import PPO, Lesson, train
from gst.placement.runtime import SimulatedRuntime, Tracked
from gst.placement.task import Task
from gst.progress import Progress

SCHEMA = 1
MAX_STEPS = 49  # of fine-tuning (Zhou et al. 2020: fewer than 50)
SHARPER = 0.5  # temperature of half of the plans of `zero_shot`
DAMAGE = (OSError, KeyError, TypeError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError)


def pretrain(
    tasks: Sequence[Task], policy: GO, evaluations: int = 1_000, imitation_steps: int = 400, iterations: int = 50,
    samples: int = 16, seed: int = 0, progress: Progress = lambda what, done, total: None,
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
    examples = []
    for number, task in enumerate(tasks):
        progress("plans to imitate", number, len(tasks))
        teacher = Tracked(SimulatedRuntime(task), evaluations)
        anneal(task, teacher, seed)
        if teacher.best is not None:
            inputs = policy_inputs(task)
            examples.append(Example.of(inputs, decisions_of(task, inputs, canonical(inputs, teacher.best))))
    imitate(policy, examples, imitation_steps, seed=seed, progress=progress)
    lessons = [Lesson(task, policy_inputs(task), SimulatedRuntime(task)) for task in tasks]
    train(policy, lessons, iterations, samples, seed, learning_rate=3e-4, entropy=(1e-3, 1e-4), progress=progress)
    return policy


def fine_tune(policy: GO, task: Task, runtime: Tracked, seed: int = 0, steps: int = MAX_STEPS) -> GO:
    """A copy of a policy that has learned on one graph, in fewer than 50 steps of PPO or until the budget is spent."""
    tuned = copy.deepcopy(policy)
    learner, lesson = PPO(tuned, learning_rate=3e-4, seed=seed), Lesson(task, policy_inputs(task), runtime)
    steps = min(steps, MAX_STEPS)
    samples = max(samples_for(runtime.left), -(-runtime.left // max(steps, 1)))
    for step in range(steps):
        if runtime.left:
            learner.step(lesson, min(samples, runtime.left), step / steps)
    return tuned


@dataclass(frozen=True, eq=False)
class ZeroShot:
    """Plans of a policy that did not learn on their graph.

    Args:
        plans: best simulated first.
        simulated_ms: of each; NaN for those that fail.
        simulations: how many were needed to order them.
    """

    plans: list[Plan]
    simulated_ms: list[float]
    simulations: int


def zero_shot(policy: GO, task: Task, samples: int = 32, seed: int = 0) -> ZeroShot:
    """Plans by one pass of a policy: the most likely, `samples` drawn, half of them from sharper probabilities, and
    those that list schedules make of it (`list_decoded`, which simulate two or three plans for each)."""
    inputs, generator = policy_inputs(task), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        chances = policy(inputs)
    sharper = {name: (each / SHARPER).log_softmax(1) for name, each in chances.items()}
    decided: list[Decisions] = [most_likely(chances)]
    for each, count in ((sharper, samples - samples // 2), (chances, samples // 2)):
        decided += [draw(each, count, generator)] if count else []
    plans = [plan for each in decided for plan in plans_of(task, inputs, each)]
    plans += list_decoded(task, inputs, chances["placement"], generator)
    plans = list({plan.key: plan for plan in plans}.values())
    took = SimulatedRuntime(task)(plans)
    order = np.argsort(np.nan_to_num(took, nan=np.inf), kind="stable")
    return ZeroShot([plans[each] for each in order], took[order].tolist(), len(plans))


def save_policy(policy: GO, path: Path | str) -> None:
    """Write a file that `load_policy` reads: numbers and tensors only."""
    torch.save({"schema": SCHEMA, "settings": policy.settings, "state": policy.state_dict()}, path)


def load_policy(path: Path | str) -> GO:
    """Read what `save_policy` wrote.

    Raises:
        ValueError: there is no such file, it holds no policy, or one of another version.
    """
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if content["schema"] == SCHEMA:
            policy = GO(**content["settings"])
            policy.load_state_dict(content["state"])
            return policy
    except DAMAGE as error:
        raise ValueError(f"{path} is no policy ({type(error).__name__}: {error}); save one with save_policy") from error
    raise ValueError(f"{path} has schema {content['schema']!r}, this version reads {SCHEMA}; pretrain the policy again")
