"""A learned cost model in five lines: fit on graphs with known runtimes, predict the runtime of any configuration."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from embedding_cache import EmbeddingTable
from gst.estimator import GraphSegmentTraining
from gst.graph import Graph
from gst.nn import SAGE, Head
from gst.segments import SegmentedGraph, segment

SCHEMA = 1


class CostModel:
    """Runtimes of graphs under configurations, by Graph Segment Training (GST+ED) on the logarithm of the runtime.

        model = CostModel()
        model.fit([graph])               # graph.targets: measured runtimes
        model.predict(graph)             # in the same unit, one for each configuration
        model.save("model.pt"); model = CostModel.load("model.pt")

    Args:
        channels, num_layers, num_opcodes, config_symbols, log_config: of the encoder, see `gst.nn.SAGE`.
        max_nodes: of a segment.
        num_fresh, keep_probability: see `GraphSegmentTraining`.
        seed: of weights, segments and the order of steps.
    """

    def __init__(
        self, channels: int = 32, num_layers: int = 2, num_opcodes: int = 256, config_symbols: int = 0,
        log_config: bool = True,
        max_nodes: int = 512, num_fresh: int = 2, keep_probability: float = 0.75, seed: int = 0,
    ) -> None:  # fmt: skip
        self.settings: dict[str, Any] = {
            "channels": channels, "num_layers": num_layers, "num_opcodes": num_opcodes,
            "config_symbols": config_symbols, "log_config": log_config, "max_nodes": max_nodes, "num_fresh": num_fresh,
            "keep_probability": keep_probability, "seed": seed,
        }  # fmt: skip
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder = SAGE(channels, num_layers, num_opcodes, config_symbols, log_config)
            self.head = Head(channels)
        self.mean, self.deviation = 0.0, 1.0
        self._generator = torch.Generator().manual_seed(seed)

    def fit(
        self, graphs: Sequence[Graph], epochs: int = 120, configs_per_step: int = 8, learning_rate: float = 1e-2,
        progress: Callable[[int, float], None] = lambda epoch, loss: None,
    ) -> list[dict[str, float]]:  # fmt: skip
        """Learn from all configurations of `graphs`; called again, it goes on from where it is.

        Args:
            progress: called after each epoch with its number and mean loss.

        Returns:
            For each epoch its `loss` (squared error in standard deviations of log runtime) and the table's statistics.

        Raises:
            ValueError: a runtime is not positive, or all are equal.
        """
        logs = [np.log(np.where(graph.targets > 0, graph.targets, np.nan)) for graph in graphs]
        together = np.concatenate(logs)
        if not np.isfinite(together).all():
            raise ValueError("a runtime is missing, zero or negative; the cost model learns logarithms of runtimes")
        if together.std() == 0:
            raise ValueError("all runtimes are equal: there is nothing to learn")
        self.mean, self.deviation = float(together.mean()), float(together.std())
        cut = [segment(graph, self.settings["max_nodes"]) for graph in graphs]
        targets = [torch.from_numpy((log - self.mean) / self.deviation).float() for log in logs]
        model = self._estimator(EmbeddingTable(1, self.settings["channels"]))
        self._materialise(model, cut[0])
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
        steps = epochs * sum(-(-len(log) // configs_per_step) for log in logs)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        model.train()
        history = []
        for epoch in range(epochs):
            losses = []
            for i, configs in self._deal(targets, configs_per_step):
                loss = nn.functional.mse_loss(model([cut[i]], configs[None])[0], targets[i][configs])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                losses.append(loss.item())
            assert model.table is not None
            history.append({"step": float(model.step), "loss": float(np.mean(losses)), **model.table.statistics()})
            progress(epoch, history[-1]["loss"])
        return history

    def predict(self, graph: Graph) -> Float64[np.ndarray, " configs"]:
        """Runtimes of all configurations of `graph`, in the unit of the targets it was fitted on."""
        cut = segment(graph, self.settings["max_nodes"])
        model = self._estimator(None)
        if any(nn.parameter.is_lazy(parameter) for parameter in model.parameters()):
            raise ValueError("this cost model has learned nothing yet; call fit() or load() first")
        parts = torch.arange(graph.num_configs).split(64)
        scores = torch.cat([model.exact([cut], part[None])[0] for part in parts]).double().numpy()
        return np.exp(scores * self.deviation + self.mean)

    def save(self, path: Path | str) -> None:
        """Write a file that `load` reads: numbers and tensors only."""
        torch.save(
            {
                "schema": SCHEMA, "settings": self.settings, "mean": self.mean, "deviation": self.deviation,
                "encoder": self.encoder.state_dict(), "head": self.head.state_dict(),
            },
            path,
        )  # fmt: skip

    @staticmethod
    def load(path: Path | str) -> CostModel:
        """Read what `save` wrote.

        Raises:
            ValueError: it is missing, damaged, or of another version.
        """
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            if content["schema"] != SCHEMA:
                raise ValueError(f"{path} has schema {content['schema']}, this version reads {SCHEMA}; fit it again")
            model = CostModel(**content["settings"])
            model.mean, model.deviation = content["mean"], content["deviation"]
            model.encoder.load_state_dict(content["encoder"])
            model.head.load_state_dict(content["head"])
        except (OSError, KeyError, TypeError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
            raise ValueError(f"{path} is no saved cost model ({type(error).__name__})") from error
        return model

    def _estimator(self, table: EmbeddingTable | None) -> GraphSegmentTraining:
        return GraphSegmentTraining(
            self.encoder, self.head, "mean", self.settings["num_fresh"], self.settings["keep_probability"], table,
            seed=0 if table is None else int(torch.randint(2**31, (), generator=self._generator)),
        )  # fmt: skip

    def _materialise(self, model: GraphSegmentTraining, graph: SegmentedGraph) -> None:
        """Give lazy layers their widths."""
        if any(nn.parameter.is_lazy(parameter) for parameter in model.parameters()):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.settings["seed"])
                model.embed([graph], torch.zeros(1, 1, dtype=torch.long))

    def _deal(self, targets: Sequence[Tensor], size: int) -> Iterator[tuple[int, Tensor]]:
        lists = [
            (i, part)
            for i, each in enumerate(targets)
            for part in torch.randperm(len(each), generator=self._generator).split(size)
        ]
        for k in torch.randperm(len(lists), generator=self._generator).tolist():
            yield lists[k]
