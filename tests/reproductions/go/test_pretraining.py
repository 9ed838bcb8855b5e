"""Policies transfer to graphs they never saw, survive being saved, and plan in one pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.random_tasks import generated_task
from experiments.reproductions.go.imitation import imitate
from experiments.reproductions.go.pretraining import examples, list_decoded, load_policy, most_likely, save_policy
from gst.placement.objectives import SimulatedObjective
from gst.placement.policies.go import GO
from gst.placement.policies.ppo import plans_of, policy_inputs
from gst.placement.task import Task


def test_a_policy_survives_being_saved(tmp_path: Path) -> None:
    inputs = policy_inputs(generated_task(0, num_nodes=60))
    policy = GO(("placement", "schedule"), channels=16, segment=32, seed=3)
    save_policy(policy, tmp_path / "policy.pt")
    again = load_policy(tmp_path / "policy.pt")
    assert again.settings == policy.settings
    with torch.no_grad():
        for name, each in policy(inputs).items():
            assert torch.equal(again(inputs)[name], each)


def test_what_is_no_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing\.pt is no policy"):
        load_policy(tmp_path / "missing.pt")
    (tmp_path / "text.pt").write_text("no policy")
    with pytest.raises(ValueError, match=r"text\.pt is no policy"):
        load_policy(tmp_path / "text.pt")
    torch.save({"schema": 99}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="schema 99"):
        load_policy(tmp_path / "other.pt")
    save_policy(GO(channels=16), tmp_path / "policy.pt")
    content = torch.load(tmp_path / "policy.pt", weights_only=True)
    del content["state"]["fuse.weight"]
    torch.save(content, tmp_path / "damaged.pt")
    with pytest.raises(ValueError, match=r"damaged\.pt is no policy"):
        load_policy(tmp_path / "damaged.pt")


def test_list_schedules_follow_the_policy_as_far_as_it_is_sure() -> None:
    task = generated_task(5, num_nodes=80, num_devices=3)
    inputs, generator = policy_inputs(task), torch.Generator().manual_seed(0)
    sure = torch.full((inputs.num_groups, 3), -1e9)
    sure[:, 1] = 0.0
    on_one = [float((plan.placement == 1).mean()) for plan in list_decoded(task, inputs, sure, generator)]
    even = torch.full((inputs.num_groups, 3), 1 / 3).log()
    spread = [float((plan.placement == 1).mean()) for plan in list_decoded(task, inputs, even, generator)]
    assert len(on_one) == len(spread) == 40
    assert np.mean(on_one) > np.mean(spread) + 0.2 and max(on_one) > 0.8


def most_likely_ms(policy: GO, task: Task) -> float:
    inputs = policy_inputs(task)
    with torch.no_grad():
        return float(SimulatedObjective(task)(plans_of(task, inputs, most_likely(policy(inputs))))[0])


def test_imitation_helps_on_graphs_it_never_saw() -> None:
    tasks = [generated_task(seed, 60, 3) for seed in range(6)]
    unseen = [generated_task(100 + seed, 60, 3) for seed in range(6)]
    policy, fresh = GO(channels=32), GO(channels=32)
    imitate(policy, examples(tasks, evaluations=60), 80)
    ratio = [most_likely_ms(policy, task) / most_likely_ms(fresh, task) for task in unseen]
    assert np.exp(np.mean(np.log(ratio))) < 0.95, ratio
