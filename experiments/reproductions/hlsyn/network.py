"""Network over the loop tree: learned efficiencies, times composed from children to parents."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.reproductions.hlsyn.cycles.cycles import LOOP_FEATURES, PROGRAM_FEATURES

COLUMN = {name: place for place, name in enumerate(LOOP_FEATURES)}
REACH = 3.0  # powers of two by which a network may correct a term of the estimate
PROGRAM = {name: place for place, name in enumerate(PROGRAM_FEATURES)}


class LoopTreeNetwork(nn.Module):
    """log2 cycles and the log of its scale (Laplace), from the loops that remain.

    Args:
        hidden: width.
        is_composed: compose times over the tree; else only pool what the loops' features say (a control).
    """

    def __init__(self, hidden: int = 48, dropout: float = 0.1, is_composed: bool = True) -> None:
        super().__init__()
        self.is_composed = is_composed
        self.register_buffer("loop_mean", torch.zeros(len(LOOP_FEATURES)))
        self.register_buffer("loop_scale", torch.ones(len(LOOP_FEATURES)))
        self.register_buffer("program_mean", torch.zeros(len(PROGRAM_FEATURES)))
        self.register_buffer("program_scale", torch.ones(len(PROGRAM_FEATURES)))
        self.loop = nn.Sequential(
            nn.Linear(len(LOOP_FEATURES), hidden), nn.SiLU(), nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.SiLU()
        )
        self.efficiency = nn.Linear(hidden, 6)
        self.top = nn.Sequential(nn.Linear(hidden + len(PROGRAM_FEATURES), hidden), nn.SiLU(), nn.Linear(hidden, 4))
        nn.init.zeros_(self.efficiency.weight)
        nn.init.zeros_(self.top[-1].weight)  # type: ignore[arg-type]

    def fit_scales(self, program: Tensor, loops: Tensor, parents: Tensor) -> None:
        """Standardise features as these rows need it."""
        rows = loops[parents > -2]
        self.loop_mean, self.loop_scale = rows.mean(0), rows.std(0) + 0.1
        self.program_mean, self.program_scale = program.mean(0), program.std(0) + 0.1

    def forward(self, program: Tensor, loops: Tensor, parents: Tensor) -> tuple[Tensor, Tensor]:
        """(rows,) log2 cycles and (rows,) log scale.

        Args:
            program: (rows, `PROGRAM_FEATURES`).
            loops: (rows, loops, `LOOP_FEATURES`), children after parents.
            parents: (rows, loops) place of the parent, -1 at the top, -2 where there is no loop.
        """
        there = parents > -2
        states = self.loop(((loops - self.loop_mean) / self.loop_scale).clamp(-4, 4)) * there[..., None]
        share = loops[..., COLUMN["share"]] * there
        pooled = (states * share[..., None]).sum(1) / share.sum(1, keepdim=True).clamp_min(1e-3)
        whole = ((program - self.program_mean) / self.program_scale).clamp(-4, 4)
        top = self.top(torch.cat([pooled, whole], 1))
        if not self.is_composed:
            return self.program_mean[0] + self.program_scale[0] * 2 * top[:, 0], top[:, 1]
        gains = self.efficiency(states)
        trips, parallel, speed = (loops[..., COLUMN[name]] for name in ("log_trips", "log_parallel", "log_speed"))
        extra = torch.sigmoid(gains[..., 0] - 3)  # how far copies that should not help do
        blend = torch.sigmoid(gains[..., 1] + 3)  # between the interval without and with recurrences
        free, bound = loops[..., COLUMN["log_interval_free"]], loops[..., COLUMN["log_interval"]]
        interval = free + blend * (bound - free) + REACH * torch.tanh(gains[..., 2])
        depth = loops[..., COLUMN["log_depth"]] + REACH * torch.tanh(gains[..., 3])
        own = REACH * torch.tanh(gains[..., 4])
        moved = loops[..., COLUMN["log_moved"]] + REACH * torch.tanh(gains[..., 5])
        moved = torch.exp2(moved.clamp(0, 40)) * (loops[..., COLUMN["is_moved"]] > 0)
        pipelined = loops[..., COLUMN["is_pipelined"]] > 0
        total = program.new_zeros(len(program), loops.shape[1] + 1)
        for place in reversed(range(loops.shape[1])):
            if not bool(there[:, place].any()):
                continue
            leaf = torch.logaddexp2((trips - parallel + interval)[:, place], depth[:, place])
            body = torch.log2(total[:, place] + torch.exp2(depth[:, place]))
            node = (trips - speed - extra * (parallel - speed) + own)[:, place] + body
            time = torch.exp2(torch.where(pipelined[:, place], leaf, node).clamp(0, 40)) + moved[:, place]
            time = time * there[:, place]
            parent = parents[:, place].masked_fill(parents[:, place] < 0, loops.shape[1])
            total = total.scatter_add(1, parent[:, None], time[:, None])
        load = program[:, PROGRAM["wide_load"]] + torch.sigmoid(top[:, 2] - 1) * (
            program[:, PROGRAM["narrow_load"]] - program[:, PROGRAM["wide_load"]]
        )
        cycles = torch.log2(total[:, -1] + torch.exp2(load) + 100)
        return cycles + 2 * torch.tanh(top[:, 0] / 2), top[:, 1]


def train_network(
    program: np.ndarray, loops: np.ndarray, parents: np.ndarray, target: np.ndarray, group: np.ndarray, *, seed: int,
    epochs: int = 6, is_composed: bool = True, hidden: int = 48, rank: float = 0.5, rate: float = 3e-3,
    batch: int = 256, decay: float = 0.02,
) -> LoopTreeNetwork:  # fmt: skip
    """A network trained on these designs: Laplace likelihood of each, and the order of pairs of one program.

    Args:
        target: log2 cycles.
        group: program of each design.
        rank: weight of the order of pairs, next to the likelihood.
        batch: designs of a step; each brings another design of its program along.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    network = LoopTreeNetwork(hidden, is_composed=is_composed)
    most = max(int((parents > -2).sum(1).max()), 1)
    inputs = [torch.from_numpy(array) for array in (program, loops[:, :most], parents[:, :most])]
    labels = torch.from_numpy(target.astype(np.float32))
    network.fit_scales(*inputs)
    if not is_composed:
        network.program_mean[0], network.program_scale[0] = labels.mean(), labels.std()
    weight = 1 / np.sqrt(np.bincount(group)[group])
    weights = torch.from_numpy((weight / weight.mean()).astype(np.float32))
    by_program = np.argsort(group, kind="stable")
    counts = np.bincount(group)
    starts = np.cumsum(counts) - counts
    optimizer = torch.optim.AdamW(network.parameters(), rate, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, epochs * -(-len(target) // batch))
    for _ in range(epochs):
        for piece in np.array_split(rng.permutation(len(target)), -(-len(target) // batch)):
            others = by_program[starts[group[piece]] + rng.integers(counts[group[piece]])]
            rows = torch.from_numpy(np.concatenate([piece, others]))
            mean, scale = network(*(each[rows] for each in inputs))
            scale = scale.clamp(-3, 3)
            error = (mean - labels[rows]).abs()
            likelihood = ((error / scale.exp() + scale) * weights[rows]).mean()
            near = F.smooth_l1_loss(mean, labels[rows])
            gap, found = (each[: len(piece)] - each[len(piece) :] for each in (labels[rows], mean))
            order = (F.softplus(-2 * found * gap.sign()) * (gap.abs() > 0.05)).mean()
            optimizer.zero_grad()
            (likelihood + 0.3 * near + rank * order).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return network.eval()


@torch.no_grad()
def predict(
    network: LoopTreeNetwork, program: np.ndarray, loops: np.ndarray, parents: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """log2 cycles and scale of each design."""
    mean, scale = network(torch.from_numpy(program), torch.from_numpy(loops), torch.from_numpy(parents))
    return mean.numpy(), scale.clamp(-3, 3).exp().numpy()
