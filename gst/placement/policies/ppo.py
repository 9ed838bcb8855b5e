"""Inputs of policies for graphs of any size, their decisions as plans, and proximal policy optimisation of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn

from gst.lowering.fusion import legalise
from gst.lowering.plan import Plan, rows
from gst.machine.devices import core_use, memories_of
from gst.nn.sparse import CsrMatrix
from gst.placement.baselines.portfolio import mean_transfers_us
from gst.placement.baselines.units import downward_rank, mean_times, upward_rank
from gst.placement.objectives import Objective
from gst.placement.search.neighbourhoods import in_order_of_first
from gst.placement.task import Task
from gst.programs.features import FEATURE_NAMES, NUM_OPCODES

UNKNOWN_OPCODE = NUM_OPCODES  # of graphs that are no captured programs
COST_FEATURES, PATH_FEATURES, GROUP_FEATURES, DEVICE_FEATURES, GRAPH_FEATURES = 11, 4, 5, 8, 6


@dataclass(frozen=True, eq=False)
class PolicyInputs:
    """A task as a policy reads it. A policy decides for each group; groups are numbered in the topological order of
    their first nodes, not as in `Task.colocation`. Times enter as logarithms or as shares of means, so that no unit and
    no scale of a machine is left.

    Args:
        opcodes: kind of each node; `UNKNOWN_OPCODE` without a captured program.
        program: features of the program's nodes (`gst.programs.features`), logarithms divided by 10; zeros without one.
        costs: features of each node's time and bytes.
        paths: longest ways to and from each node, as shares of the critical path.
        adjacency: neighbours of each node, producers and consumers alike.
        producer: first computed producer of each computed node, with which it may be fused; -1 if there is none.
        groups: sums over each group.
        relative: logarithm of each group's time on each device over its mean over devices.
        able: True where all nodes of a group can run; everywhere if there is no such device.
        devices: speed, threads, cores, memory and links of each device.
        slots: number of equal devices before each, which otherwise would have equal scores.
        graph: size, parallelism, and the cost of moving values compared with computing them.
        upward_rank: microseconds from the start of each node to the end of the program, mean times and transfers
            (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002, equation 8).
    """

    opcodes: Int64[Tensor, " nodes"]
    program: Float[Tensor, "nodes program_features"]
    costs: Float[Tensor, "nodes cost_features"]
    paths: Float[Tensor, "nodes path_features"]
    adjacency: CsrMatrix
    producer: Int64[Tensor, " nodes"]
    group: Int64[Tensor, " nodes"]
    sizes: Int64[Tensor, " groups"]
    groups: Float[Tensor, "groups group_features"]
    relative: Float[Tensor, "groups devices"]
    able: Bool[Tensor, "groups devices"]
    devices: Float[Tensor, "devices device_features"]
    slots: Int64[Tensor, " devices"]
    graph: Float[Tensor, " graph_features"]
    upward_rank: Float64[np.ndarray, " nodes"]

    @property
    def num_nodes(self) -> int:
        return len(self.group)

    @property
    def num_groups(self) -> int:
        return len(self.sizes)

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    def pooled(self, nodes: Float[Tensor, "nodes channels"]) -> Float[Tensor, "groups channels"]:
        """Return the mean over the nodes of each group."""
        sums = nodes.new_zeros(self.num_groups, nodes.shape[1]).index_add(0, self.group, nodes)
        return sums / self.sizes.clamp(min=1)[:, None]


def policy_inputs(task: Task) -> PolicyInputs:
    """Compute the inputs of policies for a task."""
    able = np.isfinite(task.times_us)
    times = np.where(able, task.times_us, 0.0)
    mean_us, transfer_us = mean_times(task.times_us), mean_transfers_us(task) * task.costs.computed
    producers, consumers = task.costs.edges
    upward = upward_rank(mean_us, transfer_us, *rows(producers, consumers, task.num_nodes))
    downward = downward_rank(mean_us, transfer_us, *rows(consumers, producers, task.num_nodes))
    critical = max(float((upward + downward).max(initial=0.0)), 1e-9)
    group = in_order_of_first(task.colocation)
    sizes = np.bincount(group)
    by_group = np.stack([np.bincount(group, row, len(sizes)) for row in times])
    group_able = np.stack([np.bincount(group, ~row, len(sizes)) == 0 for row in able])
    group_able |= ~group_able.any(0)
    graph = task.graph
    captured = graph.node_features.shape[1] == len(FEATURE_NAMES)
    row, column = np.concatenate([producers, consumers]), np.concatenate([consumers, producers])
    devices = _device_features(task, times, by_group)
    return PolicyInputs(
        torch.from_numpy(graph.opcodes if captured else np.full(task.num_nodes, UNKNOWN_OPCODE)),
        _tensor(_scaled(graph.node_features) if captured else np.zeros((task.num_nodes, len(FEATURE_NAMES)))),
        _tensor(_cost_features(task, times, able, mean_us, transfer_us)),
        _tensor(_path_features(upward / critical, downward / critical)),
        CsrMatrix.from_entries(torch.from_numpy(row), torch.from_numpy(column), (task.num_nodes,) * 2),
        torch.from_numpy(_first_producers(task)),
        torch.from_numpy(group),
        torch.from_numpy(sizes),
        _tensor(_group_features(group, sizes, mean_us, upward / critical, group_able, task.costs.output_bytes)),
        _tensor(np.log(by_group + 1e-3) - np.log(by_group.mean(0) + 1e-3)).T.contiguous(),
        torch.from_numpy(group_able.T.copy()),
        _tensor(devices),
        torch.from_numpy(_slots(devices)),
        _tensor(_graph_features(task, mean_us, transfer_us, critical)),
        upward,
    )


def _first_producers(task: Task) -> Int64[np.ndarray, " nodes"]:
    producers, consumers = task.costs.edges
    both = task.costs.computed[producers] & task.costs.computed[consumers]
    first = np.full(task.num_nodes, task.num_nodes, np.int64)
    np.minimum.at(first, consumers[both], producers[both])
    return np.where(first == task.num_nodes, -1, first)


def _scaled(features: np.ndarray) -> np.ndarray:
    logarithmic = np.array([name.startswith("log_") for name in FEATURE_NAMES])
    return np.where(logarithmic, features / 10, features)


def _cost_features(
    task: Task, times: np.ndarray, able: np.ndarray, mean_us: np.ndarray, transfer_us: np.ndarray
) -> np.ndarray:
    costs = task.costs
    slowest, quickest = times.max(0), np.where(able, times, np.inf).min(0, initial=1e18)
    degrees = [np.bincount(costs.edges[end], minlength=task.num_nodes) for end in (0, 1)]
    typical = max(mean_us[costs.computed].mean() if costs.computed.any() else 0.0, 1e-9)
    columns = [
        np.log1p(mean_us) / 5, np.log1p(mean_us / typical), np.log((slowest + 1e-3) / (quickest + 1e-3)),
        np.log1p(costs.output_bytes) / 10, np.log1p(transfer_us / typical),
        np.log((mean_us + 1) / (transfer_us + 1)) / 5, np.log1p(task.resident_bytes) / 10, costs.computed,
        np.log1p(degrees[0]), np.log1p(degrees[1]), able.mean(0),
    ]  # fmt: skip
    return np.stack(columns, axis=1)


def _path_features(upward: np.ndarray, downward: np.ndarray) -> np.ndarray:
    slack = np.maximum(1 - upward - downward, 0.0)
    return np.stack([upward, downward, slack, np.exp(-20 * slack)], axis=1)


def _group_features(
    group: np.ndarray, sizes: np.ndarray, mean_us: np.ndarray, upward: np.ndarray, able: np.ndarray,
    num_bytes: np.ndarray,
) -> np.ndarray:  # fmt: skip
    time, longest = np.bincount(group, mean_us, len(sizes)), np.zeros(len(sizes))
    np.maximum.at(longest, group, upward)
    made = np.bincount(group, num_bytes.astype(np.float64), len(sizes))
    share = time / max(time.mean(), 1e-9)
    return np.stack([np.log1p(share), np.log1p(sizes), longest, able.mean(0), np.log1p(made) / 10], axis=1)


def _device_features(task: Task, times: np.ndarray, by_group: np.ndarray) -> np.ndarray:
    costs, use = task.costs, core_use(task.devices)
    total = np.maximum(times.sum(1), 1e-9)
    able = np.isfinite(task.times_us)
    on_all = np.where(able.all(0), times, 0.0).sum(1)
    speed = np.log(max(on_all.mean(), 1e-9)) - np.log(np.maximum(on_all, 1e-9))
    typical_bytes = costs.output_bytes[costs.computed].mean() if costs.computed.any() else 0.0
    link = (costs.latency_us + typical_bytes / costs.bytes_per_us).mean(1) / (total / max(costs.computed.sum(), 1))
    shared = (use @ use.T.astype(np.int64) > 0).mean(1)
    memories = [task.memories[device.memory] for device in task.devices]
    needed = max(float(task.resident_bytes.sum() + costs.output_bytes.max(initial=0)), 1.0)
    room = [0.0 if limit is None else np.log(max(limit, 1) / needed) for limit in memories]
    _, memory = memories_of(task.devices)
    columns = [
        speed, np.log([device.threads for device in task.devices]), np.log(use.sum(1)), shared, np.log1p(link),
        room, [limit is not None for limit in memories], (memory[:, None] == memory).mean(1),
    ]  # fmt: skip
    return np.stack([np.asarray(column, np.float64) for column in columns], axis=1)


def _slots(devices: np.ndarray) -> Int64[np.ndarray, " devices"]:
    rows = [row.tobytes() for row in devices.round(4) + 0.0]  # -0.0 and 0.0 are one
    return np.array([rows[:position].count(row) for position, row in enumerate(rows)], np.int64)


def _graph_features(task: Task, mean_us: np.ndarray, transfer_us: np.ndarray, critical: float) -> np.ndarray:
    total = max(float(mean_us.sum()), 1e-9)
    typical = total / max(int(task.costs.computed.sum()), 1)
    limits = [limit for limit in task.memories.values() if limit is not None]
    pressure = np.log1p(float(task.resident_bytes.sum()) / sum(limits)) if sum(limits) else 0.0
    return np.array([
        np.log1p(task.num_nodes) / 10, np.log(len(task.devices)), np.log(total / critical),
        np.log(transfer_us.sum() + 1) - np.log(total + 1), np.log1p(typical) / 5, pressure,
    ])  # fmt: skip


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, np.float32))


CLIP = 0.2  # of the ratio of probabilities of one decision (Schulman et al. 2017, equation 7)
KL_LIMIT = 0.05  # nats a decision, mean over decisions, that a policy may move in one step
FAILED = -10.0  # reward of a plan that failed (Zhou et al. 2020)
MEMORY = 0.9  # of the running mean of rewards
MAX_GRADIENT = 1.0  # norm
EPOCHS = 4  # steps on one batch; fewer once the policy has moved by `KL_LIMIT`
ENTROPY = 5e-2, 5e-4  # weight of a nat of entropy, at the beginning and at the end; geometric between them


LEVELS = 8
"""Levels of priority, one of which a schedule decides for each group; the greatest runs first."""

LogProbabilities = Mapping[str, Float[Tensor, "units actions"]]
"""Log probabilities of the actions of each task: `placement`, the devices of groups; `schedule`, the levels of groups;
`fusion`, 1 for each node that is fused with its first producer."""

Decisions = Mapping[str, Int64[Tensor, "plans units"]]
"""Actions of each task."""


def draw(log_probabilities: LogProbabilities, count: int, generator: torch.Generator) -> Decisions:
    """Draw the decisions of `count` plans, every unit by itself."""
    return {
        name: torch.multinomial(each.detach().exp(), count, replacement=True, generator=generator).T
        for name, each in log_probabilities.items()
    }


def plans_of(task: Task, inputs: PolicyInputs, decisions: Decisions) -> list[Plan]:
    """Turn decisions into plans.

    Every node goes where its group goes. Operations of a greater level run first, those of one level, and all of them
    without a schedule, by upward rank, as in HEFT. A node is fused with its first producer if both are on one device;
    groups of fusion are then made legal (`gst.lowering.fusion.legalise`).

    Raises:
        ValueError: fusion was decided, but there is no program whose operations could be fused.
    """
    group, longest_first = inputs.group.numpy(), np.argsort(np.argsort(inputs.upward_rank, kind="stable"))
    arrays = {name: each.numpy() for name, each in decisions.items()}
    plans = []
    for number in range(len(arrays["placement"])):
        placement = arrays["placement"][number][group]
        level = arrays["schedule"][number][group] if "schedule" in arrays else 0
        fusion = _fusion(task, inputs, placement, arrays["fusion"][number]) if "fusion" in arrays else None
        plans.append(Plan(task.names, placement, level * len(group) + longest_first, fusion))
    return plans


def _fusion(
    task: Task, inputs: PolicyInputs, placement: Int64[np.ndarray, " nodes"], fuse: Int64[np.ndarray, " nodes"]
) -> Int64[np.ndarray, " nodes"]:
    if task.program is None:
        raise ValueError(f"task {task.name!r} has no program whose operations could be fused; leave fusion out")
    producer, nodes = inputs.producer.numpy(), np.arange(task.num_nodes)
    joined = (fuse == 1) & (producer >= 0) & (placement[producer] == placement)
    root = np.where(joined, producer, nodes)
    while (root != root[root]).any():
        root = root[root]
    return legalise(task.program, root, placement)


@dataclass(eq=False)
class Lesson:
    """A graph of the training.

    Args:
        objective: gives the runtimes of plans.
        reference_ms: the unit of its rewards; the median of its first batch if NaN.
        mean_reward: running mean over its batches; NaN before the first.
    """

    task: Task
    inputs: PolicyInputs
    objective: Objective
    reference_ms: float = float("nan")
    mean_reward: float = float("nan")


class PPO:
    """Training by the clipped objective of Schulman et al., "Proximal Policy Optimization Algorithms" (2017, eq. 7).

    A plan is one step: all its decisions are taken at once, and its reward is -sqrt(runtime), in units of the graph's
    first batch; a plan that failed gets `FAILED`. The ratio of probabilities is clipped for each decision by itself:
    the joint ratio of thousands of decisions would always be clipped. A batch of one plan is compared with the graph's
    running mean, as in GO, larger ones with the mean of the other plans (leave one out: Kool, van Hoof and Welling,
    "Buy 4 REINFORCE Samples, Get a Baseline for Free!", 2019).

    Args:
        policy: `PolicyInputs` -> log probabilities.
    """

    def __init__(self, policy: nn.Module, learning_rate: float = 1e-3, seed: int = 0) -> None:
        self.policy = policy
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=learning_rate)
        self.generator = torch.Generator().manual_seed(seed)

    def step(self, lesson: Lesson, samples: int, done: float = 0.0) -> None:
        """Draw `samples` plans for a graph, ask how long they take, and learn from the answers.

        Args:
            done: share of the training that is over, 0 to 1.
        """
        with torch.no_grad():
            before = self.policy(lesson.inputs)
        decisions = draw(before, samples, self.generator)
        runtimes = lesson.objective(plans_of(lesson.task, lesson.inputs, decisions))
        drawn = before, decisions, advantages(lesson, runtimes)
        first, last = ENTROPY
        for _ in range(EPOCHS):
            self.optimizer.zero_grad()
            if self._accumulate(lesson.inputs, *drawn, first * (last / first) ** done) > KL_LIMIT:
                break
            nn.utils.clip_grad_norm_(self.policy.parameters(), MAX_GRADIENT)
            self.optimizer.step()

    def _accumulate(
        self, inputs: PolicyInputs, chances: LogProbabilities, decisions: Decisions,
        advantages: Float[Tensor, " plans"], entropy: float,
    ) -> float:  # fmt: skip
        """Compute the gradient of a batch; return how far the policy has moved from the one that drew it."""
        now = self.policy(inputs)
        loss, moved = torch.zeros(()), 0.0
        for name, before in chances.items():
            loss = loss - clipped_gain(before, now[name], decisions[name], advantages)
            loss = loss + entropy * (now[name].exp() * now[name]).sum(1).mean()
            moved += float((before.exp() * (before - now[name].detach())).sum(1).mean()) / len(chances)
        loss.backward()
        return moved


def clipped_gain(
    before: Float[Tensor, "units actions"], now: Float[Tensor, "units actions"], taken: Tensor, advantages: Tensor
) -> Float[Tensor, ""]:
    """Return min(r A, clip(r) A) of Schulman et al. (2017, equation 7), mean over decisions and plans."""
    ratio = (now.gather(1, taken.T) - before.gather(1, taken.T)).exp()
    return torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()


def advantages(lesson: Lesson, runtimes_ms: Float64[np.ndarray, " plans"]) -> Float[Tensor, " plans"]:
    """Return rewards less the baseline, in standard deviations of the batch; update the lesson's means."""
    if np.isnan(lesson.reference_ms) and np.isfinite(runtimes_ms).any():
        lesson.reference_ms = float(np.nanmedian(runtimes_ms))
    rewards = np.where(np.isnan(runtimes_ms), FAILED, -np.sqrt(runtimes_ms / lesson.reference_ms))
    mean, count = float(rewards.mean()), len(rewards)
    last = lesson.mean_reward
    expected = (rewards.sum() - rewards) / (count - 1) if count > 1 else np.array([mean if np.isnan(last) else last])
    lesson.mean_reward = mean if np.isnan(last) else MEMORY * last + (1 - MEMORY) * mean
    above = rewards - expected
    scale = above.std() if count > 1 else 1.0
    return torch.from_numpy(above / (scale + 1e-6)).float()
