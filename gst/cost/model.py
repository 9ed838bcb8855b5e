"""A learned cost model in five lines: fit on graphs with known runtimes, predict the runtime of any configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64

from gst.cost.calibration import Calibration, held_out
from gst.cost.member import Lesson, Member
from gst.files.untrusted import DAMAGE, check_weights, plain, read_tensors, shown
from gst.files.writing import atomic_path
from gst.graphs.graph import Graph
from gst.graphs.segments import segment

SCHEMA = 2
HELD_OUT = 0.2  # share of the configurations that an ensemble is calibrated on
SEEDS_APART = 1 << 20  # of members, so that models with neighbouring seeds have none in common

Runtimes = Float64[np.ndarray, " configs"]


class CostModel:
    """Runtimes of graphs under configurations, by Graph Segment Training (GST+ED) on the logarithm of the runtime.

        model = CostModel(members=3)
        model.fit([graph])                                      # graph.targets: measured runtimes
        model.predict(graph)                                    # in the same unit, one for each configuration
        runtimes, factors = model.predict_with_spread(graph)    # and how far off they may be
        model.save("model.pt"); model = CostModel.load("model.pt")

    Args:
        channels, num_layers, num_opcodes, config_symbols, log_config: of the encoder, see `gst.nn.SAGE`.
        max_nodes: of a segment.
        num_fresh, keep_probability: see `GraphSegmentTraining`.
        seed: of weights, segments and the order of steps.
        members: networks that differ in their seed alone. Two or more know how far off they may be, for which a fifth
            of the configurations is kept from them.
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
        self.calibration: Calibration | None = None
        self.members = [Member(self.settings, seed + i * SEEDS_APART) for i in range(members)]

    def fit(
        self, graphs: Sequence[Graph], epochs: int = 120, configs_per_step: int = 8, learning_rate: float = 1e-2,
        progress: Callable[[int, float], None] = lambda epoch, loss: None,
    ) -> list[dict[str, float]]:  # fmt: skip
        """Learn from the configurations of `graphs`; called again, it goes on from where it is. What fails leaves the
        model as it was.

        Args:
            progress: called after each epoch with its number and mean loss; the epochs of one member follow those of
                another.

        Returns:
            For each epoch its `loss` (squared error in standard deviations of log runtime) and the table's statistics,
            as means over the members.

        Raises:
            ValueError: a runtime is not positive, all are equal, or the loss is no longer a finite number.
        """
        logs = [np.log(np.where(graph.targets > 0, graph.targets, np.nan)) for graph in graphs]
        if not np.isfinite(np.concatenate(logs)).all():
            raise ValueError("a runtime is missing, zero or negative; the cost model learns logarithms of runtimes")
        kept = [self._kept(graph) for graph in graphs]
        together = np.concatenate([log[known] for log, known in zip(logs, kept, strict=True)])
        if not len(together) or together.std() == 0:
            raise ValueError("all runtimes are equal: there is nothing to learn")
        mean, deviation = float(together.mean()), float(together.std())
        lessons = [
            Lesson(
                segment(graph, self.settings["max_nodes"]), torch.from_numpy(known.nonzero()[0]),
                torch.from_numpy((log[known] - mean) / deviation).float(),
            )
            for graph, log, known in zip(graphs, logs, kept, strict=True) if known.any()
        ]  # fmt: skip
        epoch_numbers = count()
        members = [member.twin() for member in self.members]
        histories = [
            member.learn(
                lessons, epochs, configs_per_step, learning_rate, lambda loss: progress(next(epoch_numbers), loss)
            )
            for member in members
        ]
        before = self.members, self.mean, self.deviation
        self.members, self.mean, self.deviation = members, mean, deviation
        try:
            self.calibration = self._calibrated(graphs, logs, kept) if len(members) > 1 else None
        except BaseException:
            self.members, self.mean, self.deviation = before
            raise
        return [
            {key: float(np.mean([each[key] for each in epoch])) for key in epoch[0]}
            for epoch in zip(*histories, strict=True)
        ]

    def predict(self, graph: Graph) -> Runtimes:
        """Runtimes of all configurations of `graph`, in the unit of the targets it was fitted on: of several members,
        the geometric mean."""
        return np.exp(self._logs(graph)[0])

    def predict_with_spread(self, graph: Graph, coverage: float = 0.68) -> tuple[Runtimes, Runtimes]:
        """Runtimes as from `predict`, and for each a factor >= 1: measured, it lies between runtime / factor and
        runtime * factor with a probability of `coverage` or more. What that rests on: `gst.cost.calibration`.

        Raises:
            ValueError: there is one member alone, or too few configurations were held out for such a coverage.
        """
        if self.settings["members"] == 1:
            raise ValueError("one network cannot disagree; make the model with CostModel(members=3) or more")
        logs, spreads = self._logs(graph)
        assert self.calibration is not None, "what predicts was fitted"
        return np.exp(logs), np.exp(self.calibration.half_width(spreads, coverage))

    def save(self, path: Path | str) -> None:
        """Write a file that `load` reads: numbers and tensors only."""
        calibration = self.calibration
        content = {
            "schema": SCHEMA, "settings": self.settings, "mean": self.mean, "deviation": self.deviation,
            "members": [member.state_dict() for member in self.members],
            "ratios": None if calibration is None else torch.from_numpy(calibration.ratios),
            "offset": None if calibration is None else calibration.offset,
        }  # fmt: skip
        with atomic_path(Path(path)) as file:
            torch.save(content, file)

    @staticmethod
    def load(path: Path | str) -> CostModel:
        """Read what `save` wrote.

        Raises:
            ValueError: it is missing, damaged, or of another version.
        """
        try:
            content = read_tensors(Path(path))
            schema = content["schema"]
        except DAMAGE as error:
            raise ValueError(f"{path} is no saved cost model ({type(error).__name__}: {plain(error)})") from error
        if not isinstance(schema, int) or schema != SCHEMA:
            raise ValueError(f"{path} has schema {shown(schema)}, this version reads {SCHEMA}; fit it again")
        try:
            settings, states = content["settings"], content["members"]
            if settings["members"] != len(states):
                raise ValueError(f"it has {len(states)} members")
            for state in states:
                check_weights(lambda: Member(settings, 0).encoder, state["encoder"], (settings["num_layers"],))
            model = CostModel(**settings)
            model.mean, model.deviation = content["mean"], content["deviation"]
            for member, state in zip(model.members, states, strict=True):
                member.load_state_dict(state)
            if content["ratios"] is not None:
                model.calibration = Calibration(content["ratios"].numpy(), content["offset"])
        except DAMAGE as error:
            raise ValueError(f"{path} is no saved cost model ({type(error).__name__}: {plain(error)})") from error
        return model

    def _kept(self, graph: Graph) -> Bool[np.ndarray, " configs"]:
        """Which configurations are learned: all, unless members are to be calibrated."""
        if self.settings["members"] == 1:
            return np.ones(graph.num_configs, bool)
        return ~held_out(graph, HELD_OUT)

    def _logs(self, graph: Graph) -> tuple[Runtimes, Runtimes]:
        """Mean and standard deviation over the members of the logarithm of each runtime."""
        cut = segment(graph, self.settings["max_nodes"])
        scores = np.stack([member.scores(cut).double().numpy() for member in self.members])
        return scores.mean(0) * self.deviation + self.mean, scores.std(0) * self.deviation

    def _calibrated(self, graphs: Sequence[Graph], logs: Sequence[Runtimes], kept: Sequence[np.ndarray]) -> Calibration:
        said = [self._logs(graph) for graph in graphs]
        errors = np.concatenate([(log - mean)[~known] for log, (mean, _), known in zip(logs, said, kept, strict=True)])
        spreads = np.concatenate([spread for _, spread in said])
        learned = np.concatenate(kept)
        return Calibration.of(errors, spreads[~learned], float(spreads[learned].mean()))
