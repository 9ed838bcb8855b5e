"""A placement policy: GraphSAGE over the program, one decision per colocation group, learned by PPO."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from gst.assembly import assemble
from gst.data.measured_plans import plans_graph
from gst.devices import Plan
from gst.nn import SAGE
from gst.placement.baselines import single
from gst.placement.runtime import Runtime
from gst.placement.task import Task
from gst.segments import segment

CLIP = 0.2  # of the probability ratio of one group (Schulman et al. 2017, equation 7)
KL_LIMIT = 0.03  # stop the update of a batch when the policy moved so far (mean over groups, nats)


class PlacementPolicy(nn.Module):
    """Logits of a device for every colocation group. All groups are decided at once, as in GO (Zhou et al. 2020).

    Args:
        task: the program and its devices.
        channels: width of the encoder.
        seed: of the weights and of the plans it draws.
    """

    def __init__(self, task: Task, channels: int = 64, seed: int = 0) -> None:
        super().__init__()
        self.task = task
        graph = plans_graph(task.profiled, [single(task, 0)])
        self._batch = assemble([segment(graph, graph.num_nodes)], [(0, 0)], torch.zeros(1, 1, dtype=torch.long))
        self._group = torch.from_numpy(task.colocation)
        self._sizes = torch.bincount(self._group)
        self._generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder = SAGE(channels, num_layers=3, num_opcodes=int(graph.opcodes.max()) + 1)
            self.logits = nn.Sequential(
                nn.Linear(2 * channels, channels), nn.ReLU(), nn.Linear(channels, len(task.devices))
            )
            with torch.no_grad():
                self()  # lazy layers take their widths

    def forward(self) -> Float[Tensor, "groups devices"]:
        """Log probabilities."""
        nodes = self.encoder(self._batch).dense()[:, 0]
        sums = nodes.new_zeros(len(self._sizes), nodes.shape[1]).index_add(0, self._group, nodes)
        groups = sums / self._sizes[:, None]
        everything = groups.mean(0, keepdim=True).expand_as(groups)
        return self.logits(torch.cat([groups, everything], dim=1)).log_softmax(1)

    def sample(self, count: int) -> Int64[Tensor, "plans groups"]:
        """Draw assignments of groups to devices."""
        with torch.no_grad():
            return torch.multinomial(self().exp(), count, replacement=True, generator=self._generator).T

    def plans(self, assignments: Int64[Tensor, "plans groups"]) -> list[Plan]:
        return [self.task.plan_of_groups(assignment.numpy()) for assignment in assignments]

    def imitate(self, plan: Plan, steps: int = 60, smoothing: float = 0.1, learning_rate: float = 3e-3) -> float:
        """Warm start: make `plan` likely (cross-entropy with label smoothing, so that it goes on exploring)."""
        optimizer = torch.optim.Adam(self.parameters(), lr=learning_rate)
        target = self._majority(plan)
        loss = torch.zeros(())
        for _ in range(steps):
            loss = nn.functional.nll_loss(self(), target) * (1 - smoothing) - smoothing * self().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    def _majority(self, plan: Plan) -> Int64[Tensor, " groups"]:
        votes = torch.zeros(len(self._sizes), len(self.task.devices))
        placement = torch.from_numpy(plan.placement)
        cost = torch.from_numpy(self.task.times_us[plan.placement, np.arange(len(placement))]).float() + 1e-3
        return votes.index_put((self._group, placement), cost, accumulate=True).argmax(1)

    def learn(
        self, runtime: Runtime, iterations: int = 10, batch: int = 64, epochs: int = 4, entropy: float = 1e-3,
        learning_rate: float = 1e-3,
    ) -> tuple[list[Plan], Float64[np.ndarray, " plans"]]:  # fmt: skip
        """PPO on the reward -sqrt(runtime), normalised over the batch against the mean of the others (leave-one-out).

        The ratio is clipped for each group: the joint ratio of hundreds of decisions would always be clipped.

        Returns:
            Every plan it drew and what `runtime` said of it, in ms.
        """
        optimizer = torch.optim.Adam(self.parameters(), lr=learning_rate)
        drawn: list[Plan] = []
        answers = []
        for _ in range(iterations):
            assignments = self.sample(batch)
            plans = self.plans(assignments)
            runtimes = runtime(plans)
            drawn += plans
            answers.append(runtimes)
            self._update(optimizer, assignments, _advantages(runtimes), epochs, entropy)
        return drawn, np.concatenate(answers)

    def _update(
        self,
        optimizer: torch.optim.Optimizer,
        assignments: Tensor,
        advantages: Tensor,
        epochs: int,
        entropy: float,
    ) -> None:
        before = self().detach()
        old = before.gather(1, assignments.T)
        for _ in range(epochs):
            now = self()
            if (before.exp() * (before - now)).sum(1).mean() > KL_LIMIT:
                return
            ratio = (now.gather(1, assignments.T) - old).exp()  # (groups, plans)
            gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
            loss = -gain.sum(0).mean() / len(old) + entropy * (now.exp() * now).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _advantages(runtimes_ms: Float64[np.ndarray, " plans"]) -> Float[Tensor, " plans"]:
    """Rewards minus the mean reward of the others, in standard deviations; a plan that failed counts as twice the
    slowest."""
    slowest = np.nanmax(runtimes_ms) if np.isfinite(runtimes_ms).any() else 1.0
    reward = -np.sqrt(np.nan_to_num(runtimes_ms, nan=2 * slowest))
    count = len(reward)
    others = (reward.sum() - reward) / max(count - 1, 1)
    advantage = reward - others
    return torch.from_numpy(advantage / (advantage.std() + 1e-9)).float()


def distinct(plans: Sequence[Plan]) -> list[Plan]:
    """The plans without repeats, in order."""
    return list({plan.key: plan for plan in plans}.values())
