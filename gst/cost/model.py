"""Learned cost models: ensembles of networks that predict runtimes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from embedding_cache import EmbeddingTable
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head
from gst.util.random_numbers import seeded
from gst.util.untrusted import DAMAGE, check_weights, plain, read_tensors, shown
from gst.util.writing import atomic_path

SCHEMA = 3
SEEDS_APART = 1 << 20  # of members, so that models with neighbouring seeds have none in common
ENCODER_SETTINGS = ("channels", "num_layers", "num_opcodes", "config_symbols", "log_config")
CONFIGS_AT_ONCE = 64  # of a prediction

Runtimes = Float64[np.ndarray, " configs"]


class CostModel:
    """Model of the runtime of graphs under configurations: Graph Segment Training (GST+ED) on logarithms of runtimes.

    Examples:
        >>> from gst.data.synthetic import synthetic_program
        >>> graph = synthetic_program(num_nodes=60, num_configs=30)     # graph.targets: measured runtimes
        >>> model = CostModel(members=2)
        >>> history = model.fit([graph], epochs=2)
        >>> runtimes = model.predict(graph)                             # in the unit of the targets
        >>> logs, deviations = model.logs(graph)                        # deviations: how much the members disagree
        >>> runtimes.shape, bool((np.exp(logs) == runtimes).all())
        ((30,), True)
        >>> model.save("model.pt")
        >>> bool((CostModel.load("model.pt").predict(graph) == runtimes).all())
        True

    Args:
        channels, num_layers, num_opcodes, config_symbols, log_config: see `gst.nn.SAGE`.
        num_fresh, keep_probability: see `GraphSegmentTraining`.
        members: networks that differ in their seed alone; they disagree on unfamiliar inputs (Lakshminarayanan et al.
            2017, section 2.4).
    """

    def __init__(
        self, channels: int = 32, num_layers: int = 2, num_opcodes: int = 256, config_symbols: int = 0,
        log_config: bool = True,
        max_nodes: int = 512, num_fresh: int = 2, keep_probability: float = 0.75, seed: int = 0, members: int = 1,
    ) -> None:  # fmt: skip
        if members < 1:
            raise ValueError(f"members is {members}; a cost model needs at least one network")
        self.settings: dict[str, Any] = {
            "channels": channels, "num_layers": num_layers, "num_opcodes": num_opcodes,
            "config_symbols": config_symbols, "log_config": log_config, "max_nodes": max_nodes, "num_fresh": num_fresh,
            "keep_probability": keep_probability, "seed": seed, "members": members,
        }  # fmt: skip
        self.mean, self.deviation = 0.0, 1.0
        self.members = [Member(self.settings, seed + i * SEEDS_APART) for i in range(members)]

    def fit(
        self, graphs: Sequence[Graph], epochs: int = 120, configs_per_step: int = 8, learning_rate: float = 1e-2,
        progress: Callable[[int, float], None] = lambda epoch, loss: None,
    ) -> list[dict[str, float]]:  # fmt: skip
        """Train on the configurations of `graphs`; a second call continues. If it fails, the model is unchanged.

        Args:
            progress: called after each epoch with its number and mean loss; members are trained one after another.

        Returns:
            For each epoch the means over members of `loss` (squared error in standard deviations of log runtime) and of
            the table's statistics.

        Raises:
            ValueError: a runtime is not positive, all are equal, or the loss is no longer a finite number.
        """
        logs = [np.log(np.where(graph.targets > 0, graph.targets, np.nan)) for graph in graphs]
        if not np.isfinite(np.concatenate(logs)).all():
            raise ValueError("a runtime is missing, zero or negative; the cost model learns logarithms of runtimes")
        together = np.concatenate(logs)
        if not len(together) or together.std() == 0:
            raise ValueError("all runtimes are equal: there is nothing to learn")
        mean, deviation = float(together.mean()), float(together.std())
        lessons = [
            (segment(graph, self.settings["max_nodes"]), torch.from_numpy((log - mean) / deviation).float())
            for graph, log in zip(graphs, logs, strict=True)
            if len(log)
        ]
        epoch_numbers = count()
        members = copy.deepcopy(self.members)
        histories = [
            member.learn(
                lessons, epochs, configs_per_step, learning_rate, lambda loss: progress(next(epoch_numbers), loss)
            )
            for member in members
        ]
        self.members, self.mean, self.deviation = members, mean, deviation
        return [
            {key: float(np.mean([each[key] for each in epoch])) for key in epoch[0]}
            for epoch in zip(*histories, strict=True)
        ]

    def predict(self, graph: Graph) -> Runtimes:
        """Return runtimes of all configurations of `graph` in the unit of the targets: geometric means over members."""
        return np.exp(self.logs(graph)[0])

    def logs(self, graph: Graph) -> tuple[Runtimes, Runtimes]:
        """Return mean and standard deviation over the members of the logarithm of each runtime."""
        cut = segment(graph, self.settings["max_nodes"])
        scores = np.stack([member.scores(cut).double().numpy() for member in self.members])
        return scores.mean(0) * self.deviation + self.mean, scores.std(0) * self.deviation

    def save(self, path: Path | str) -> None:
        """Write a file for `load`, of numbers and tensors only."""
        content = {
            "schema": SCHEMA,
            "settings": self.settings,
            "mean": self.mean,
            "deviation": self.deviation,
            "members": [{"encoder": one.encoder.state_dict(), "head": one.head.state_dict()} for one in self.members],
        }
        with atomic_path(Path(path)) as file:
            torch.save(content, file)

    @staticmethod
    def load(path: Path | str) -> CostModel:
        """Read a file that `save` wrote; raise ValueError if it is missing, damaged, or of another version."""
        try:
            content = read_tensors(Path(path))
            if content["schema"] != SCHEMA:
                schema = shown(content["schema"])
                raise ValueError(f"it has schema {schema}, this version reads {SCHEMA}; fit it again")
            settings, states = content["settings"], content["members"]
            if settings["members"] != len(states):
                raise ValueError(f"it has {len(states)} members")
            for state in states:
                check_weights(lambda: Member(settings, 0).encoder, state["encoder"], (settings["num_layers"],))
            model = CostModel(**settings)
            model.mean, model.deviation = content["mean"], content["deviation"]
            for member, state in zip(model.members, states, strict=True):
                member.encoder.load_state_dict(state["encoder"])
                member.head.load_state_dict(state["head"])
        except DAMAGE as error:
            raise ValueError(f"{path} is no saved cost model ({type(error).__name__}: {plain(error)})") from error
        return model


Lesson = tuple[SegmentedGraph, Float[Tensor, " configs"]]
"""A graph, and the normalised logarithms of runtimes of its configurations."""


class Member:
    """Network of a cost model: an encoder and a head, trained by Graph Segment Training, with its own seed."""

    def __init__(self, settings: dict[str, Any], seed: int) -> None:
        self.settings, self.seed = settings, seed
        with seeded(seed):
            self.encoder = SAGE(**{name: settings[name] for name in ENCODER_SETTINGS})
            self.head = Head(settings["channels"])
        self._generator = torch.Generator().manual_seed(seed)

    def is_new(self) -> bool:
        """True if lazy layers lack their widths, because the network has read no graph."""
        return any(nn.parameter.is_lazy(parameter) for parameter in self.encoder.parameters())

    def learn(
        self, lessons: Sequence[Lesson], epochs: int, configs_per_step: int, learning_rate: float,
        progress: Callable[[float], None],
    ) -> list[dict[str, float]]:  # fmt: skip
        """Train, and return for each epoch its `step`, its mean `loss` and the statistics of the embedding table."""
        table = EmbeddingTable(1, self.settings["channels"])
        model = self._estimator(table)
        if self.is_new():  # lazy layers get their widths
            with seeded(self.seed):
                model.embed([lessons[0][0]], torch.zeros(1, 1, dtype=torch.long))
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
        steps = epochs * sum(-(-len(labels) // configs_per_step) for _, labels in lessons)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        model.train()
        history = []
        for epoch in range(epochs):
            losses = []
            for (graph, labels), part in self._deal(lessons, configs_per_step):
                scores = model([graph], part[None])[0]
                loss = nn.functional.mse_loss(scores, labels[part])
                if not loss.isfinite():
                    raise ValueError(
                        f"the loss became {loss.item()} in epoch {epoch} at graph {graph.name!r}; lower "
                        "learning_rate, or look for extreme features or runtimes there. The cost model is as it was "
                        "before fit()"
                    )
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                losses.append(loss.item())
            history.append({"step": float(model.step), "loss": float(np.mean(losses)), **table.statistics()})
            progress(history[-1]["loss"])
        return history

    def scores(self, graph: SegmentedGraph) -> Float[Tensor, " configs"]:
        """Predict the normalised logarithm of the runtime of every configuration from all segments."""
        if self.is_new():
            raise ValueError("this cost model has learned nothing yet; call fit() or load() first")
        return self._estimator(None).scores(graph, configs_at_once=CONFIGS_AT_ONCE)

    def _estimator(self, table: EmbeddingTable | None) -> GraphSegmentTraining:
        return GraphSegmentTraining(
            self.encoder, self.head, "mean", self.settings["num_fresh"], self.settings["keep_probability"], table,
            seed=0 if table is None else int(torch.randint(2**31, (), generator=self._generator)),
        )  # fmt: skip

    def _deal(self, lessons: Sequence[Lesson], size: int) -> Iterator[tuple[Lesson, Int64[Tensor, " part"]]]:
        lists = [
            (lesson, part)
            for lesson in lessons
            for part in torch.randperm(len(lesson[1]), generator=self._generator).split(size)
        ]
        for k in torch.randperm(len(lists), generator=self._generator).tolist():
            yield lists[k]
