"""HDP: a policy that groups operations and places the groups, trained together (Mirhoseini et al., A Hierarchical Model
for Device Placement, ICLR 2018), a method of `gst place`:

    gst place rnnlm --methods annealing,experiments.reproductions.hdp.method:hdp --out runs/place
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from experiments.reproductions.colocrl.method import SCALE, PolicyUnits, SequencePlacer, UnitEmbedding, of_drawn
from experiments.reproductions.colocrl.reinforce import Reinforce
from gst.lowering.plan import Plan
from gst.placement.methods import METHODS, Learned, Method
from gst.placement.task import Task
from gst.util.random_numbers import seeded

GROUPS = 64  # at most; the paper has up to 256, but fewer are learned sooner, and faster


def hdp_training(task: Task, seed: int = 0, learning_rate: float = 1e-2, hidden: int = 64) -> Reinforce:
    """Return the training of HDP on one task by REINFORCE."""
    return Reinforce("hdp", HDP(task, seed, GROUPS, hidden), task, seed, learning_rate)


class HDP(nn.Module):
    """A feed-forward grouper, which draws a group for every operation, and a sequence-to-sequence placer, which draws a
    device for every group. Operations that have to be together (a colocation group) are grouped as one.

    The decisions of a plan are a row of numbers: the group of each unit, then the device of each group, empty or not.
    There are `groups` groups, fewer if there are fewer units.
    """

    def __init__(self, task: Task, seed: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.task, self.units = task, PolicyUnits.of_task(task)
        self.num_groups = min(groups, self.units.count)
        self._told = torch.cat([torch.from_numpy(self.units.kinds), torch.from_numpy(self.units.sizes)], dim=1)
        self._edges = torch.from_numpy(self.units.edges)
        with seeded(seed):
            self.embed = UnitEmbedding(self.units, hidden)
            self.grouper = nn.Linear(hidden, self.num_groups)
            self.embed_group = nn.Linear(self._told.shape[1] + 2 * self.num_groups, hidden)
            self.placer = SequencePlacer(len(task.devices), hidden)

    def sample(self, count: int, generator: torch.Generator) -> Int64[Tensor, "plans decisions"]:
        with torch.no_grad():
            grouping = torch.multinomial(self._grouper().exp(), count, replacement=True, generator=generator).T
            embedded = self._embedded(grouping)
        return torch.cat([grouping, self.placer.sample(embedded, count, generator)], dim=1)

    def score(
        self, decisions: Int64[Tensor, "plans decisions"]
    ) -> tuple[Float[Tensor, " plans"], Float[Tensor, " plans"]]:
        grouping, devices = self._apart(decisions)
        log_probabilities = self._grouper()
        of_grouping = log_probabilities.gather(1, grouping.T).sum(0)
        undecided = -(log_probabilities.exp() * log_probabilities).sum()
        of_placing, left = of_drawn(self.placer(self._embedded(grouping), devices), devices)
        return of_grouping + of_placing, undecided + left

    def plans(self, decisions: Int64[Tensor, "plans decisions"]) -> list[Plan]:
        grouping, devices = self._apart(decisions)
        return [self.units.plan(self.task, each.numpy()) for each in devices.gather(1, grouping)]

    def describe(self, grouping: Int64[Tensor, "plans units"]) -> Float[Tensor, "plans groups told"]:
        """Describe each group: numbers of operations of each kind, sums of shapes of outputs, and a one for each group
        that it reads and each that reads it."""
        empty = torch.zeros(self.num_groups, self._told.shape[1])
        totals = torch.stack([empty.index_add(0, group, self._told) for group in grouping])
        reads = torch.zeros(len(grouping), self.num_groups, self.num_groups)
        reads[torch.arange(len(grouping))[:, None], grouping[:, self._edges[1]], grouping[:, self._edges[0]]] = 1.0
        told = totals.log1p() * SCALE
        return torch.cat([told, reads, reads.transpose(1, 2)], dim=2)

    def _grouper(self) -> Float[Tensor, "units groups"]:
        return self.grouper(torch.tanh(self.embed())).log_softmax(1)

    def _embedded(self, grouping: Int64[Tensor, "plans units"]) -> Float[Tensor, "plans groups hidden"]:
        return torch.tanh(self.embed_group(self.describe(grouping)))

    def _apart(
        self, decisions: Int64[Tensor, "plans decisions"]
    ) -> tuple[Int64[Tensor, "plans units"], Int64[Tensor, "plans groups"]]:
        return decisions[:, : self.units.count], decisions[:, self.units.count :]


METHODS["hdp"] = Method(
    lambda task, seed, tasks: Learned(hdp_training(task, seed)), "a policy that groups operations and places the groups"
)
