"""One network of a cost model: an encoder and a head, trained by Graph Segment Training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from embedding_cache import EmbeddingTable
from gst.graphs.segments import SegmentedGraph
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head

OF_THE_ENCODER = ("channels", "num_layers", "num_opcodes", "config_symbols", "log_config")
CONFIGS_AT_ONCE = 64  # of a prediction


@dataclass(frozen=True, eq=False)
class Lesson:
    """What is known of a graph.

    Args:
        configs: those with a label, by number.
        labels: what a network is to say of them.
    """

    graph: SegmentedGraph
    configs: Int64[Tensor, " labelled"]
    labels: Float[Tensor, " labelled"]


class Member:
    """A network with a seed of its own.

    Args:
        settings: of the cost model, see `CostModel`.
        seed: of weights, and of the segments and the order of steps.
    """

    def __init__(self, settings: dict[str, Any], seed: int) -> None:
        self.settings, self.seed = settings, seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder = SAGE(**{name: settings[name] for name in OF_THE_ENCODER})
            self.head = Head(settings["channels"])
        self._generator = torch.Generator().manual_seed(seed)

    def twin(self) -> Member:
        """One that knows the same and learns by itself from here on."""
        other = copy.copy(self)
        other.encoder, other.head = copy.deepcopy(self.encoder), copy.deepcopy(self.head)
        other._generator = torch.Generator()
        other._generator.set_state(self._generator.get_state())
        return other

    def learn(
        self, lessons: Sequence[Lesson], epochs: int, configs_per_step: int, learning_rate: float,
        progress: Callable[[float], None],
    ) -> list[dict[str, float]]:  # fmt: skip
        """Go on learning; returns for each epoch its `step`, its mean `loss` and the table's statistics.

        Raises:
            ValueError: the loss is no longer a finite number.
        """
        table = EmbeddingTable(1, self.settings["channels"])
        model = self._estimator(table)
        self._materialise(model, lessons[0].graph)
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
        steps = epochs * sum(-(-len(lesson.labels) // configs_per_step) for lesson in lessons)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        model.train()
        history = []
        for epoch in range(epochs):
            losses = []
            for lesson, part in self._deal(lessons, configs_per_step):
                scores = model([lesson.graph], lesson.configs[part][None])[0]
                loss = nn.functional.mse_loss(scores, lesson.labels[part])
                _check_finite(loss, lesson.graph.name, epoch)
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
        """What it says of every configuration, from all segments.

        Raises:
            ValueError: it has learned nothing yet.
        """
        model = self._estimator(None)
        if any(nn.parameter.is_lazy(parameter) for parameter in model.parameters()):
            raise ValueError("this cost model has learned nothing yet; call fit() or load() first")
        return model.scores(graph, configs_at_once=CONFIGS_AT_ONCE)

    def state_dict(self) -> dict[str, Any]:
        """Its weights."""
        return {"encoder": self.encoder.state_dict(), "head": self.head.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.encoder.load_state_dict(state["encoder"])
        self.head.load_state_dict(state["head"])

    def _estimator(self, table: EmbeddingTable | None) -> GraphSegmentTraining:
        return GraphSegmentTraining(
            self.encoder, self.head, "mean", self.settings["num_fresh"], self.settings["keep_probability"], table,
            seed=0 if table is None else int(torch.randint(2**31, (), generator=self._generator)),
        )  # fmt: skip

    def _materialise(self, model: GraphSegmentTraining, graph: SegmentedGraph) -> None:
        """Give lazy layers their widths."""
        if any(nn.parameter.is_lazy(parameter) for parameter in model.parameters()):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                model.embed([graph], torch.zeros(1, 1, dtype=torch.long))

    def _deal(self, lessons: Sequence[Lesson], size: int) -> Iterator[tuple[Lesson, Int64[Tensor, " part"]]]:
        lists = [
            (lesson, part)
            for lesson in lessons
            for part in torch.randperm(len(lesson.labels), generator=self._generator).split(size)
        ]
        for k in torch.randperm(len(lists), generator=self._generator).tolist():
            yield lists[k]


def _check_finite(loss: Tensor, name: str, epoch: int) -> None:
    if not loss.isfinite():
        raise ValueError(
            f"the loss became {loss.item()} in epoch {epoch} at graph {name!r}; lower learning_rate, or look for "
            "extreme features or runtimes there. The cost model is as it was before fit()"
        )
