"""ColocRL: a sequence-to-sequence policy over colocation groups (Mirhoseini et al., Device Placement Optimization with
Reinforcement Learning, ICML 2017), a method of `gst place`:

    gst place rnnlm --methods annealing,experiments.reproductions.colocrl.method:colocrl --out runs/place
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor, nn

from experiments.reproductions.colocrl.reinforce import Reinforce
from gst.lowering.plan import Plan
from gst.placement.baselines.units import in_order, unit_times_us
from gst.placement.methods import METHODS, Learned, Method
from gst.placement.task import Task
from gst.programs.features import FEATURE_NAMES
from gst.util.random_numbers import seeded

DIMENSIONS = [FEATURE_NAMES.index(f"log_dim_{axis}") for axis in range(4)]


@dataclass(frozen=True, eq=False)
class PolicyUnits:
    """Operations that are placed as one, numbered in the order of the first that computes anything.

    Args:
        of_node: unit of each node.
        kinds: how many operations of each kind that occurs are in each unit.
        sizes: sums over the operations of each unit: bytes of outputs, then, of a captured program, the first four
            dimensions of outputs, else the microseconds that each takes on its fastest device.
        edges: producer -> consumer between different units, each pair once.
        times_us: of all operations of a unit on each device; infinite where one of them cannot run.
    """

    of_node: Int64[np.ndarray, " nodes"]
    kinds: Float32[np.ndarray, "units kinds"]
    sizes: Float32[np.ndarray, "units sizes"]
    edges: Int64[np.ndarray, "2 edges"]
    times_us: Float64[np.ndarray, "devices units"]

    @property
    def count(self) -> int:
        return len(self.kinds)

    @property
    def able(self) -> Bool[np.ndarray, "devices units"]:
        return np.isfinite(self.times_us)

    @staticmethod
    def of_task(task: Task, most: int | None = None) -> PolicyUnits:
        """Return the colocation groups of a task, merged into no more than `most` (see `merged`)."""
        unit = in_order(task, task.colocation)
        unit = unit if most is None else merged(task, unit, most)
        count = int(unit.max()) + 1
        present, kind = np.unique(task.graph.opcodes, return_inverse=True)
        kinds = np.zeros((count, len(present)), np.float32)
        np.add.at(kinds, (unit, kind.reshape(-1)), 1)
        sizes = np.stack([np.bincount(unit, column, count) for column in _sizes(task)], axis=1).astype(np.float32)
        return PolicyUnits(unit, kinds, sizes, between(task.costs.edges, unit), unit_times_us(task, unit))

    def plan(self, task: Task, devices: Int64[np.ndarray, " units"]) -> Plan:
        """Return the plan that puts each unit on its device, or where it is fastest if it cannot run there. The
        published policies ran on this soft placement of TensorFlow."""
        able = self.able[devices, np.arange(self.count)]
        return task.plan(np.where(able, devices, self.times_us.argmin(0))[self.of_node])


def merged(task: Task, unit: Int64[np.ndarray, " nodes"], most: int) -> Int64[np.ndarray, " nodes"]:
    """Merge units into at most `most`.

    As in Mirhoseini et al. (ICML 2017), a unit whose values only one other unit reads is joined with that one, those
    that take the least time first, and no more than necessary. Where that is not enough, the order of the units is cut
    into at most `most` stretches, the longest of which takes as little as possible.
    """
    while (count := int(unit.max()) + 1) > most:
        joined = _joined_with_sole_readers(task, unit, count - most)
        if int(joined.max()) + 1 == count:
            return in_order(task, _stretches(_fastest(unit_times_us(task, unit)), most)[unit])
        unit = in_order(task, joined)
    return unit


def between(edges: Int64[np.ndarray, "2 edges"], unit: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, "2 pairs"]:
    """Return the edges between different units, each pair once."""
    pairs = unit[edges]
    pairs = pairs[:, pairs[0] != pairs[1]]
    count = int(unit.max()) + 1
    return np.stack(np.divmod(np.unique(pairs[0] * count + pairs[1]), count)).astype(np.int64)


def _joined_with_sole_readers(task: Task, unit: Int64[np.ndarray, " nodes"], many: int) -> Int64[np.ndarray, " nodes"]:
    """Join up to `many` units with the only one that reads them, the shortest first."""
    edges, count = between(task.costs.edges, unit), int(unit.max()) + 1
    sole = np.bincount(edges[0], minlength=count)[edges[0]] == 1
    reader = dict(zip(edges[0, sole].tolist(), edges[1, sole].tolist(), strict=True))
    took = _fastest(unit_times_us(task, unit))
    parent = list(range(count))

    def root(each: int) -> int:
        while parent[each] != each:
            parent[each] = parent[parent[each]]
            each = parent[each]
        return each

    for each in sorted(reader, key=lambda each: took[each]):
        if many and root(each) != root(reader[each]):
            parent[root(each)] = root(reader[each])
            many -= 1
    return np.unique([root(each) for each in range(count)], return_inverse=True)[1].reshape(-1)[unit]


def _stretches(took_us: Float64[np.ndarray, " units"], most: int) -> Int64[np.ndarray, " units"]:
    """Cut a sequence into at most `most` stretches, the longest as short as possible to a millionth of the whole."""
    low, high = 0.0, float(took_us.sum()) * (1 + 1e-9)  # sums differ in their last digits
    while high - low > 1e-6 * took_us.sum():
        middle = (low + high) / 2
        low, high = (low, middle) if _filled(took_us, middle)[-1] < most else (middle, high)
    return _filled(took_us, high)


def _filled(took_us: Float64[np.ndarray, " units"], limit_us: float) -> Int64[np.ndarray, " units"]:
    """Return the stretch of each unit; one that takes longer than the limit is a stretch of its own."""
    number, filled, stretch = 0, 0.0, np.zeros(len(took_us), np.int64)
    for position, each in enumerate(took_us.tolist()):
        if filled and filled + each > limit_us:
            number, filled = number + 1, 0.0
        filled += each
        stretch[position] = number
    return stretch


def _sizes(task: Task) -> list[np.ndarray]:
    """Return the columns that `PolicyUnits.sizes` sums up."""
    if task.program is None:
        return [task.costs.output_bytes, _fastest(task.times_us)]
    return [task.costs.output_bytes, *np.expm1(task.graph.node_features[:, DIMENSIONS].astype(np.float64)).T]


def _fastest(times_us: Float64[np.ndarray, "devices columns"]) -> Float64[np.ndarray, " columns"]:
    """Return the least time over the devices; 0 where none can run the unit."""
    least = times_us.min(0)
    return np.where(np.isfinite(least), least, 0.0)


class SequencePlacer(nn.Module):
    """Sequence-to-sequence model that draws a device for each step of a sequence, one after the other (Mirhoseini et
    al., ICML 2017): an LSTM encodes the sequence, and an attentional LSTM decodes it.

    At each step the decoder reads the embedding of the device drawn before, and the state of the encoder at this step,
    which the paper leaves to attention. Attention is multiplicative and enters after the decoder (Luong et al.,
    EMNLP 2015), so that all steps of known plans are scored at once.
    """

    def __init__(self, num_devices: int, hidden: int) -> None:
        super().__init__()
        self.encoder = nn.LSTM(hidden, hidden, batch_first=True)
        self.decoder = nn.LSTM(2 * hidden, hidden, batch_first=True)
        self.device = nn.Embedding(num_devices + 1, hidden)  # the last one before anything is drawn
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.mix = nn.Linear(3 * hidden, hidden)
        self.logits = nn.Linear(hidden, num_devices)

    def forward(
        self, embedded: Float[Tensor, "rows steps hidden"], devices: Int64[Tensor, "plans steps"]
    ) -> Float[Tensor, "plans steps devices"]:
        """Return log probabilities of each device at each step, given the devices drawn before. `embedded` is the
        sequence of each plan, or one for all of them (rows is plans, or 1)."""
        states, (h, c) = self.encoder(embedded)
        here = states.expand(len(devices), -1, -1)
        before = torch.full_like(devices[:, :1], self.logits.out_features)
        drawn = self.device(torch.cat([before, devices[:, :-1]], dim=1))
        first = tuple(each.expand(1, len(devices), -1).contiguous() for each in (h, c))
        decoded, _ = self.decoder(torch.cat([drawn, here], dim=2), first)
        return self._log_probabilities(decoded, states, here)

    @torch.no_grad()
    def sample(
        self, embedded: Float[Tensor, "rows steps hidden"], count: int, generator: torch.Generator
    ) -> Int64[Tensor, "plans steps"]:
        """Draw devices for the steps of `count` plans at once."""
        states, (h, c) = self.encoder(embedded)
        here, state = states.expand(count, -1, -1), (h[0].expand(count, -1), c[0].expand(count, -1))
        num_steps, num_devices = states.shape[1], self.logits.out_features
        exponential = torch.empty(count, num_steps, num_devices, dtype=states.dtype).exponential_(generator=generator)
        drawn = torch.full((count, num_steps + 1), num_devices)
        for step in range(num_steps):
            read = torch.cat([self.device(drawn[:, step]), here[:, step]], dim=1)
            state = torch.lstm_cell(read, state, *self.decoder.parameters())
            scores = self._log_probabilities(state[0][:, None], states, here[:, step : step + 1])
            # The greatest of log p - log(exponential) is of device d with probability p(d) (the Gumbel-max trick).
            drawn[:, step + 1] = (scores[:, 0] - exponential[:, step].log()).argmax(1)
        return drawn[:, 1:]

    def _log_probabilities(
        self, decoded: Float[Tensor, "plans some hidden"], states: Float[Tensor, "rows steps hidden"],
        here: Float[Tensor, "plans some hidden"],
    ) -> Float[Tensor, "plans some devices"]:  # fmt: skip
        queries = self.query(decoded).reshape(len(states), -1, decoded.shape[2])  # of all plans at once if rows is 1
        context = ((queries @ states.transpose(1, 2)).softmax(2) @ states).reshape(decoded.shape)
        mixed = torch.tanh(self.mix(torch.cat([decoded, context, here], dim=2)))
        return self.logits(mixed).log_softmax(2)


def of_drawn(
    log_probabilities: Float[Tensor, "plans steps choices"], drawn: Int64[Tensor, "plans steps"]
) -> tuple[Float[Tensor, " plans"], Float[Tensor, " plans"]]:
    """Return the log probability of each plan, and the sum of the entropies of its steps, in nats."""
    chosen = log_probabilities.gather(2, drawn[..., None])[..., 0]
    entropy = -(log_probabilities.exp() * log_probabilities).sum(2)
    return chosen.sum(1), entropy.sum(1)


MOST_UNITS = 256
SCALE = 0.1  # of logarithms of counts and sizes, so that they are of the order of one


def colocrl_training(task: Task, seed: int = 0, learning_rate: float = 3e-3, hidden: int = 64) -> Reinforce:
    """Return the training of ColocRL on one task by REINFORCE."""
    return Reinforce("colocrl", ColocRL(task, seed, hidden), task, seed, learning_rate)


class UnitEmbedding(nn.Module):
    """One linear layer over the description of a unit: the kinds of its operations, sums of the shapes of their
    outputs, and a one for each unit that it reads or that reads it, whose products with weights are sums of rows."""

    def __init__(self, units: PolicyUnits, hidden: int) -> None:
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
    """A policy that decides a device for each colocation group, one after the other; more than `MOST_UNITS` groups are
    merged before (`merged`)."""

    def __init__(self, task: Task, seed: int, hidden: int) -> None:
        super().__init__()
        self.task, self.units = task, PolicyUnits.of_task(task, MOST_UNITS)
        with seeded(seed):
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


METHODS["colocrl"] = Method(
    lambda task, seed, tasks: Learned(colocrl_training(task, seed)), "a sequence-to-sequence policy over groups"
)
