"""ColocRL: a sequence-to-sequence policy over colocation groups.

Mirhoseini, Pham, Le, Steiner, Larsen, Zhou, Kumar, Norouzi, Bengio and Dean, Device Placement Optimization with
Reinforcement Learning, ICML 2017.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gst.devices import Plan
from gst.placement.objective import Budgeted
from gst.placement.policies.reinforce import reinforce
from gst.placement.policies.sequence import SequencePlacer, of_drawn
from gst.placement.policies.units import Units
from gst.placement.task import Task
from gst.process.progress import Progress, no_progress

MOST_UNITS = 256
SCALE = 0.1  # of logarithms of counts and sizes, so that they are of the order of one


def colocrl(
    task: Task, objective: Budgeted, seed: int = 0, progress: Progress = no_progress, *,
    learning_rate: float = 3e-3, hidden: int = 64,
) -> None:  # fmt: skip
    """Learn to place by REINFORCE, from nothing, until the budget is spent; see `objective.best`.

    Args:
        hidden: width of the networks.
    """
    policy = ColocRL(task, seed, hidden)
    generator = torch.Generator().manual_seed(seed)
    reinforce("colocrl", policy, task, objective, generator, progress, learning_rate)


class UnitEmbedding(nn.Module):
    """One linear layer over all that is told of a unit: the kinds of its operations (so that each kind has an embedding
    that is learned), sums of the shapes of their outputs, and which units it reads and which read it.

    The last two are vectors with a one for each neighbour; their products with the layer's weights are sums of rows.
    """

    def __init__(self, units: Units, hidden: int) -> None:
        super().__init__()
        told = [torch.from_numpy(each).log1p() * SCALE for each in (units.kinds, units.sizes)]
        self._told = torch.cat(told, dim=1)
        self._producers, self._consumers = torch.from_numpy(units.edges)
        self.told = nn.Linear(self._told.shape[1], hidden)
        self.read, self.read_by = (nn.Embedding(units.count, hidden) for _ in range(2))

    def forward(self) -> Float[Tensor, "units hidden"]:
        embedded = self.told(self._told)
        embedded = embedded.index_add(0, self._consumers, self.read(self._producers))
        return embedded.index_add(0, self._producers, self.read_by(self._consumers))


class ColocRL(nn.Module):
    """A device for each colocation group, one after the other; more than `MOST_UNITS` groups are merged before
    (`gst.placement.policies.units.merged`).

    Args:
        task: the program and its devices.
        seed: of the weights.
        hidden: width of the networks.
    """

    def __init__(self, task: Task, seed: int, hidden: int) -> None:
        super().__init__()
        self.task, self.units = task, Units.of_task(task, MOST_UNITS)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed = UnitEmbedding(self.units, hidden)
            self.placer = SequencePlacer(len(task.devices), hidden)

    def sample(self, count: int, generator: torch.Generator) -> Int64[Tensor, "plans units"]:
        with torch.no_grad():
            embedded = self._embedded()
        return self.placer.sample(embedded, count, generator)

    def score(self, decisions: Int64[Tensor, "plans units"]) -> tuple[Float[Tensor, " plans"], Float[Tensor, " plans"]]:
        return of_drawn(self.placer(self._embedded(), decisions), decisions)

    def plans(self, decisions: Int64[Tensor, "plans units"]) -> list[Plan]:
        return [self.units.plan(self.task, each.numpy()) for each in decisions]

    def _embedded(self) -> Float[Tensor, "1 units hidden"]:
        return torch.tanh(self.embed())[None]
