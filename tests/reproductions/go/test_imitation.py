"""Generated tasks are sound, and a policy imitates a plan of one."""

from __future__ import annotations

import numpy as np
import torch

from experiments.random_tasks import generated_task
from experiments.reproductions.go.imitation import Example, decisions_of, imitate
from gst.placement.baselines.portfolio import portfolio
from gst.placement.policies.go import GO
from gst.placement.policies.ppo import policy_inputs


def test_generated_tasks_are_in_topological_order_repeat_and_differ() -> None:
    tasks = [generated_task(seed) for seed in range(40)]
    for seed, task in enumerate(tasks):
        producers, consumers = task.costs.edges
        assert (producers < consumers).all() and len(np.unique(task.costs.edges, axis=1).T) == len(producers)
        assert 2 <= len(task.devices) <= 9 and 40 <= task.num_nodes <= 900
        assert np.isfinite(task.times_us).all() and (task.times_us[:, task.costs.computed] > 0).all()
        assert len(np.unique(np.concatenate([producers, consumers]))) == task.num_nodes, "every node has a neighbour"
        if seed < 5:
            again = generated_task(seed)
            assert again.key == task.key and np.array_equal(again.costs.latency_us, task.costs.latency_us)
    assert len({task.key for task in tasks}) == 40
    shared = [len({device.memory for device in task.devices}) == 1 for task in tasks]
    assert 3 <= sum(shared) <= 20, "core sets occur, and so do devices with memories of their own"


def test_imitation_makes_a_plan_likely() -> None:
    task = generated_task(5, num_nodes=80, num_devices=3)
    inputs, policy = policy_inputs(task), GO(("placement", "schedule"), channels=32, seed=2)
    plan = portfolio(task)["chunks"]
    wanted = decisions_of(task, inputs, plan)
    losses = imitate(policy, [Example.of(inputs, wanted)], 200, learning_rate=5e-3)
    assert losses[-1] < 0.5 * losses[0]
    with torch.no_grad():
        chances = policy(inputs)
    for name in ("placement", "schedule"):
        assert (chances[name].argmax(1) == wanted[name][0]).float().mean() > 0.9, name
