"""GO that has learned on other programs: what the loop finds by it in hidden worlds, against GO that begins anew.

The policy imitates what annealing finds, in simulation, of all programs of the world but the one that is searched, and
of generated ones (`experiments.reproductions.go.pretraining`). It is kept in a folder for later runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from experiments.random_tasks import generated_task
from experiments.reproductions.go.generalize import learned
from experiments.reproductions.go.imitation import Example
from experiments.reproductions.go.pretraining import examples, load_policy
from experiments.worlds.world import WORLDS
from gst.placement.policies.go import GO, GoTraining
from gst.placement.policies.ppo import PPO
from gst.placement.task import Task

FOLDER = Path("runs/policies")
GENERATED = 20  # programs of the generator that it imitates, too
EVALUATIONS, STEPS = 500, 200  # of annealing for each example; of imitation
LEARNING_RATE = 3e-4  # of fine-tuning


@cache
def _example(world: str, program: str) -> list[Example]:
    return examples([WORLDS[world][0](program)], EVALUATIONS)


@cache
def _generated() -> list[Example]:
    return examples([generated_task(seed) for seed in range(GENERATED)], EVALUATIONS)


def pretrained(world: str, program: str, folder: Path = FOLDER) -> GO:
    """Return the policy that has learned on all programs of a world but this one."""
    path = folder / f"{world}_without_{program}_{GENERATED}_{EVALUATIONS}_{STEPS}.pt"
    if path.exists():
        return load_policy(path)
    others = [each for each in WORLDS[world][1] if each != program]
    known = [*_generated(), *(example for each in others for example in _example(world, each))]
    return learned(known, path, STEPS, seed=0)


def fine_tuning(policy: GO, task: Task, seed: int, tasks: Sequence[str]) -> GoTraining:
    """Return the training of GO that begins with a policy."""
    training = GoTraining(task, seed, tasks)
    training.policy.load_state_dict(policy.state_dict())
    training._learner = PPO(training.policy, LEARNING_RATE, seed=seed)
    return training
