"""GO: one network that decides placement, schedule and fusion of a whole graph at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from gst.nn.sparse import check_heads, neighbour_max
from gst.placement.objectives import TASKS, Budgeted, check_tasks
from gst.placement.policies.ppo import (
    COST_FEATURES,
    DEVICE_FEATURES,
    GRAPH_FEATURES,
    GROUP_FEATURES,
    LEVELS,
    PATH_FEATURES,
    PPO,
    UNKNOWN_OPCODE,
    Lesson,
    LogProbabilities,
    PolicyInputs,
    policy_inputs,
)
from gst.placement.task import Task
from gst.programs.features import FEATURE_NAMES
from gst.util.progress import Progress, no_progress
from gst.util.random_numbers import seeded


class RecurrentAttention(nn.Module):
    """One layer of Transformer-XL (Dai et al., ACL 2019): the rows of a segment attend to each other and to the states
    of the previous segment, which are cached: no gradient goes through them. As in GO (Zhou et al., NeurIPS 2020)
    there is no positional embedding, and a row sees the whole of its segment, later rows too.

    A segment reads the inputs of this layer of the one before, so that all segments are computed at once. Memory and
    time grow with the number of rows, not with its square.

    Args:
        segment: rows of a segment.
        recurrence: attend to the previous segment too.

    Raises:
        ValueError: the heads do not divide the channels, or a segment has no rows.
    """

    def __init__(self, channels: int, heads: int = 4, segment: int = 256, recurrence: bool = True) -> None:
        super().__init__()
        check_heads(channels, heads)
        if segment < 1:
            raise ValueError(f"segment is {segment}; a segment of the sequence needs at least one row")
        self.heads, self.segment, self.recurrence = heads, segment, recurrence
        self.norm, self.forward_norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.query, self.mix = nn.Linear(channels, channels), nn.Linear(channels, channels)
        self.key_value = nn.Linear(channels, 2 * channels)
        self.widen, self.narrow = nn.Linear(channels, 2 * channels), nn.Linear(2 * channels, channels)

    def forward(self, rows: Float[Tensor, "rows channels"]) -> Float[Tensor, "rows channels"]:
        length = min(self.segment, len(rows))
        num_segments = -(-len(rows) // length)
        padded = F.pad(rows, (0, 0, 0, num_segments * length - len(rows)))
        normed = self.norm(padded).unflatten(0, (num_segments, length))
        context, there = self._context(normed, len(rows))
        keys, values = self.key_value(context).chunk(2, dim=-1)
        query, keys, values = map(self._by_head, (self.query(normed), keys, values))
        read = F.scaled_dot_product_attention(query, keys, values, attn_mask=there)
        after = rows + self.mix(read.transpose(1, 2).flatten(2)).flatten(0, 1)[: len(rows)]
        return after + self.narrow(self.widen(self.forward_norm(after)).relu())

    def _context(
        self, normed: Float[Tensor, "segments length channels"], num_rows: int
    ) -> tuple[Float[Tensor, "segments context channels"], Bool[Tensor, "segments 1 1 context"] | None]:
        """Return the rows that each segment attends to, the cached segment first, and a mask of rows (None = all)."""
        num_segments, length, _ = normed.shape
        if num_segments == 1:
            return normed, None
        there = (torch.arange(num_segments * length, device=normed.device) < num_rows).view(num_segments, length)
        if self.recurrence:
            cached = F.pad(normed.detach()[:-1], (0, 0, 0, 0, 1, 0))
            normed = torch.cat([cached, normed], dim=1)
            there = torch.cat([F.pad(there[:-1], (0, 0, 1, 0)), there], dim=1)
        return normed, there[:, None, None]

    def _by_head(self, rows: Float[Tensor, "segments rows channels"]) -> Float[Tensor, "segments heads rows width"]:
        return rows.unflatten(-1, (self.heads, -1)).transpose(1, 2)


MAX_ALIKE = 64  # equal devices that are told apart


class Neighbourhood(nn.Module):
    """h = f(concat(h, max over neighbours u of sigmoid(W h_u + b))): the variant of GraphSAGE (Hamilton et al. 2017)
    that GO trains with its policy. Neighbours are producers and consumers alike; f is linear, then ReLU, then
    LayerNorm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.send = nn.Linear(channels, channels)
        self.join = nn.Sequential(nn.Linear(2 * channels, channels), nn.ReLU(), nn.LayerNorm(channels))

    def forward(self, nodes: Float[Tensor, "nodes channels"], inputs: PolicyInputs) -> Float[Tensor, "nodes channels"]:
        received = neighbour_max(inputs.adjacency, self.send(nodes).sigmoid())
        return self.join(torch.cat([nodes, received], dim=1))


class GO(nn.Module):
    """The policy of Zhou et al., "Transferable Graph Optimizers for ML Compilers" (NeurIPS 2020): `PolicyInputs` ->
    log probabilities of all actions of all units at once, for each task.

    Nodes are embedded by GraphSAGE and pooled to colocation groups; the groups, in topological order, go through
    segment-recurrent attention (`RecurrentAttention`); then each task has one such layer of its own, which reads the
    embedding of the groups (a residual connection) and what the tasks before it decided: their states, and the mean
    embedding of their actions under their probabilities, so that one pass serves all plans drawn from it. The input
    of each attention layer is multiplied by c(x0), x0 being the pooled embedding of the graph (feature modulation).

    Where the paper has a softmax over a fixed number of devices, here the score of a device is the product of the
    group's state with an embedding of the device, made of its features and of the number of equal ones before it, plus
    a term in the group's own time there. So one network serves any number of devices.

    Args:
        tasks: the decisions, some of `TASKS`.
        channels: width of all layers.
        attention_layers: shared by all tasks.
        segment, recurrence: as in `RecurrentAttention`, for groups.

    Raises:
        ValueError: a task is unknown, or placement is not among them.
    """

    def __init__(
        self, tasks: Sequence[str] = ("placement",), channels: int = 64, encoder_layers: int = 3,
        attention_layers: int = 1, segment: int = 256, recurrence: bool = True, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        check_tasks(tasks)
        self.tasks = tuple(name for name in TASKS if name in tasks)
        self.settings: dict[str, Any] = {
            "tasks": list(self.tasks), "channels": channels, "encoder_layers": encoder_layers,
            "attention_layers": attention_layers, "segment": segment, "recurrence": recurrence, "seed": seed,
        }  # fmt: skip
        width = len(FEATURE_NAMES) + COST_FEATURES + PATH_FEATURES + channels
        with seeded(seed):
            self.opcodes = nn.Embedding(UNKNOWN_OPCODE + 1, channels)
            self.project = nn.Sequential(nn.Linear(width, channels), nn.ReLU(), nn.LayerNorm(channels))
            self.encoder = nn.ModuleList(Neighbourhood(channels) for _ in range(encoder_layers))
            self.group = nn.Sequential(nn.Linear(channels + GROUP_FEATURES, channels), nn.LayerNorm(channels))
            self.condition = nn.Linear(channels + GRAPH_FEATURES, channels)
            layer = lambda: RecurrentAttention(channels, segment=segment, recurrence=recurrence)  # noqa: E731
            self.shared = nn.ModuleList(layer() for _ in range(attention_layers))
            self.by_task = nn.ModuleList(layer() for _ in self.tasks)
            self.norms = nn.ModuleDict({name: nn.LayerNorm(channels) for name in self.tasks})
            self.device = nn.Linear(DEVICE_FEATURES, channels)
            self.slots = nn.Embedding(MAX_ALIKE, channels)
            self.favours = nn.Linear(channels, 1)
            self.levels = nn.Embedding(LEVELS, channels)
            self.fuse = nn.Linear(3 * channels, 2)

    def forward(self, inputs: PolicyInputs) -> LogProbabilities:
        """Return log probabilities of each task; each task reads the decisions of those before it."""
        nodes = self.embed(inputs)
        groups = self.group(torch.cat([inputs.pooled(nodes), inputs.groups], dim=1))
        gate = 2 * self.condition(torch.cat([groups.mean(0), inputs.graph])).sigmoid()
        state = groups
        for layer in self.shared:
            state = layer(state * gate)
        chances: dict[str, Tensor] = {}
        decided = torch.zeros_like(groups)
        for number, name in enumerate(self.tasks):
            state = self.norms[name](self.by_task[number]((state + decided) * gate) + groups)
            chances[name], decided = self._decide(name, state, nodes, inputs)
        return chances

    def embed(self, inputs: PolicyInputs) -> Float[Tensor, "nodes channels"]:
        """Return states of the nodes, which do not depend on their numbers."""
        features = [self.opcodes(inputs.opcodes), inputs.program, inputs.costs, inputs.paths]
        nodes = self.project(torch.cat(features, dim=1))
        for layer in self.encoder:
            nodes = layer(nodes, inputs)
        return nodes

    def _decide(
        self, name: str, state: Float[Tensor, "groups channels"], nodes: Float[Tensor, "nodes channels"],
        inputs: PolicyInputs,
    ) -> tuple[Float[Tensor, "units actions"], Float[Tensor, "groups channels"]]:  # fmt: skip
        """Return log probabilities of one task, and the mean embedding of each group's decisions."""
        if name == "fusion":
            return self._fuse(state, nodes, inputs), torch.zeros_like(state)
        actions = self.levels.weight
        if name == "placement":
            actions = self.device(inputs.devices) + self.slots(inputs.slots % MAX_ALIKE)
        scores = state @ actions.T / state.shape[1] ** 0.5
        if name == "placement":
            scores = scores - self.favours(state).exp() * inputs.relative
            scores = scores.masked_fill(~inputs.able, -1e9)
        chances = scores.log_softmax(1)
        return chances, chances.exp() @ actions

    def _fuse(
        self, state: Float[Tensor, "groups channels"], nodes: Float[Tensor, "nodes channels"], inputs: PolicyInputs
    ) -> Float[Tensor, "nodes 2"]:
        alone = inputs.producer < 0
        producer = inputs.producer.clamp(min=0)
        scores = self.fuse(torch.cat([nodes, nodes[producer], state[inputs.group]], dim=1))
        return scores.masked_fill(torch.stack([torch.zeros_like(alone), alone], dim=1), -1e9).log_softmax(1)


class GoTraining:
    """Training of GO-one (Zhou et al. 2020): a fresh policy, by PPO on one graph alone, without baselines to start
    from. It goes on with each call of `run`, by whatever objective. `tasks` and `settings` are those of `GO`.
    """

    def __init__(self, task: Task, seed: int = 0, tasks: Sequence[str] = ("placement",), **settings: Any) -> None:
        self.policy = GO(tasks, seed=seed, **settings)
        self._learner = PPO(self.policy, seed=seed)
        self._task, self._inputs = task, policy_inputs(task)
        self._lesson: Lesson | None = None

    def run(self, objective: Budgeted, progress: Progress = no_progress) -> None:
        """Train until the budget is spent."""
        if self._lesson is None:
            self._lesson = Lesson(self._task, self._inputs, objective)
        self._lesson.objective = objective
        budget, samples = objective.left, samples_for(objective.left)
        while objective.left:
            progress("go", budget - objective.left, budget)
            self._learner.step(self._lesson, min(samples, objective.left), 1 - objective.left / budget)


def samples_for(budget: int) -> int:
    """Return the number of plans of a batch: enough to compare, few enough to learn often."""
    return int(min(max(budget**0.5 / 2, 4), 32))
