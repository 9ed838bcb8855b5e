"""The project's own method: the portfolio, then annealing guided by a policy that learns from every step."""

from __future__ import annotations

import copy
from pathlib import Path

from gst.placement.baselines.portfolio import portfolio
from gst.placement.local_search.annealing import anneal
from gst.placement.policies.decisions import decisions_of
from gst.placement.policies.go import GO
from gst.placement.policies.guided_search import guided_annealing
from gst.placement.policies.imitation import Example, imitate
from gst.placement.policies.inputs import policy_inputs
from gst.placement.policies.pretraining import load_policy, zero_shot
from gst.placement.runtime import Tracked
from gst.placement.task import Task
from gst.process.progress import Progress, no_progress

IMITATION_STEPS = 30
IMITATION_NODES = 100_000  # nodes times steps, at most, of a warm start
NUM_ZERO_SHOT = 2  # plans of a pretrained policy to start from


def ours(
    task: Task, runtime: Tracked, seed: int = 0, progress: Progress = no_progress,
    *, pretrained: GO | Path | str | None = None,
) -> None:  # fmt: skip
    """The best plan of the portfolio, improved: never worse than the portfolio as far as the budget reaches.

    The portfolio is asked about first, with the plans of a pretrained policy if there is one. The policy (`GO`) then
    imitates the best of them (the warm start of DOPPLER, ICLR 2026) and proposes steps to simulated annealing, from
    whose outcomes it goes on learning (see `guided_annealing`; a policy that guides a search, as in REGAL, Paliwal et
    al., ICLR 2020). Where no plan runs or there is one device, annealing goes on alone.

    Args:
        task: what is placed where.
        runtime: who is asked.
        seed: of everything that is drawn.
        pretrained: a policy, which is left as it is, or the file of one.
    """
    policy = load_policy(pretrained) if isinstance(pretrained, Path | str) else pretrained
    starts = list(portfolio(task).values())
    if policy is not None:
        starts += zero_shot(policy, task, seed=seed).plans[:NUM_ZERO_SHOT]
    runtime(list({plan.key: plan for plan in starts}.values()))
    best = runtime.best
    if best is not None and runtime.left and len(task.devices) > 1:
        inputs = policy_inputs(task)
        learner = GO(channels=32, encoder_layers=2, seed=seed) if policy is None else copy.deepcopy(policy)
        example = Example.of(inputs, decisions_of(task, inputs, best))
        imitate(learner, [example], min(IMITATION_STEPS, IMITATION_NODES // task.num_nodes), seed=seed)
        guided_annealing(learner, inputs, task, runtime, best, seed, progress)
    if runtime.left:
        anneal(task, runtime, seed, progress, start=() if best is None else (runtime.best or best,))
