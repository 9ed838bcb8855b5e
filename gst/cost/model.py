"""Learned cost models: ensembles of networks that predict runtimes, with conformal intervals around the predictions.

Members of an ensemble disagree on unfamiliar inputs (Lakshminarayanan et al. 2017, section 2.4). Split conformal
prediction (Lei et al. 2018, section 5.2) scales the disagreement to an interval; see `Calibration`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn

from embedding_cache import EmbeddingTable
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head
from gst.util.random_numbers import seeded
from gst.util.untrusted import DAMAGE, check_weights, plain, read_tensors, shown
from gst.util.writing import atomic_path

SCHEMA = 2
HELD_OUT = 0.2  # share of the configurations that an ensemble is calibrated on
SEEDS_APART = 1 << 20  # of members, so that models with neighbouring seeds have none in common
SMALLEST = 1e-9  # spread: members that agree entirely leave nothing to scale
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
        >>> runtimes, factors = model.predict_with_spread(graph)        # in the unit of the targets, and how far off
        >>> runtimes.shape, bool((factors >= 1).all())
        ((30,), True)
        >>> model.save("model.pt")
        >>> bool((CostModel.load("model.pt").predict(graph) == runtimes).all())
        True

    Args:
        channels, num_layers, num_opcodes, config_symbols, log_config: see `gst.nn.SAGE`.
        num_fresh, keep_probability: see `GraphSegmentTraining`.
        members: networks that differ in their seed alone. With two or more, a fifth of the configurations is held out
            to calibrate `predict_with_spread`.
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
        trained = [self._trained(graph) for graph in graphs]
        together = np.concatenate([log[chosen] for log, chosen in zip(logs, trained, strict=True)])
        if not len(together) or together.std() == 0:
            raise ValueError("all runtimes are equal: there is nothing to learn")
        mean, deviation = float(together.mean()), float(together.std())
        lessons = [
            Lesson(
                segment(graph, self.settings["max_nodes"]),
                torch.from_numpy(chosen.nonzero()[0]),
                torch.from_numpy((log[chosen] - mean) / deviation).float(),
            )
            for graph, log, chosen in zip(graphs, logs, trained, strict=True)
            if chosen.any()
        ]
        epoch_numbers = count()
        members = copy.deepcopy(self.members)
        histories = [
            member.learn(
                lessons, epochs, configs_per_step, learning_rate, lambda loss: progress(next(epoch_numbers), loss)
            )
            for member in members
        ]
        before = self.members, self.mean, self.deviation
        self.members, self.mean, self.deviation = members, mean, deviation
        try:
            self.calibration = self._calibrated(graphs, logs, trained) if len(members) > 1 else None
        except BaseException:
            self.members, self.mean, self.deviation = before
            raise
        return [
            {key: float(np.mean([each[key] for each in epoch])) for key in epoch[0]}
            for epoch in zip(*histories, strict=True)
        ]

    def predict(self, graph: Graph) -> Runtimes:
        """Return runtimes of all configurations of `graph` in the unit of the targets: geometric means over members."""
        return np.exp(self._logs(graph)[0])

    def predict_with_spread(self, graph: Graph, coverage: float = 0.68) -> tuple[Runtimes, Runtimes]:
        """Return runtimes as `predict`, and a factor >= 1 for each.

        The measured runtime lies between runtime / factor and runtime * factor with a probability of `coverage` or more
        (assumptions: see `Calibration`).

        Raises:
            ValueError: the model has one member, or too few configurations were held out for this coverage.
        """
        if self.settings["members"] == 1:
            raise ValueError("one network cannot disagree; make the model with CostModel(members=3) or more")
        logs, spreads = self._logs(graph)
        assert self.calibration is not None, "a fitted ensemble is calibrated"
        return np.exp(logs), np.exp(self.calibration.half_width(spreads, coverage))

    def save(self, path: Path | str) -> None:
        """Write a file for `load`, of numbers and tensors only."""
        calibration = self.calibration
        content = {
            "schema": SCHEMA,
            "settings": self.settings,
            "mean": self.mean,
            "deviation": self.deviation,
            "members": [{"encoder": one.encoder.state_dict(), "head": one.head.state_dict()} for one in self.members],
            "ratios": None if calibration is None else torch.from_numpy(calibration.ratios),
            "offset": None if calibration is None else calibration.offset,
        }
        with atomic_path(Path(path)) as file:
            torch.save(content, file)

    @staticmethod
    def load(path: Path | str) -> CostModel:
        """Read a file that `save` wrote; raise ValueError if it is missing, damaged, or of another version."""
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
                member.encoder.load_state_dict(state["encoder"])
                member.head.load_state_dict(state["head"])
            if content["ratios"] is not None:
                model.calibration = Calibration(content["ratios"].numpy(), content["offset"])
        except DAMAGE as error:
            raise ValueError(f"{path} is no saved cost model ({type(error).__name__}: {plain(error)})") from error
        return model

    def _trained(self, graph: Graph) -> Bool[np.ndarray, " configs"]:
        """Mark the configurations to train on: all, except those held out for calibration."""
        if self.settings["members"] == 1:
            return np.ones(graph.num_configs, bool)
        return ~held_out(graph, HELD_OUT)

    def _logs(self, graph: Graph) -> tuple[Runtimes, Runtimes]:
        """Return mean and standard deviation over the members of the logarithm of each runtime."""
        cut = segment(graph, self.settings["max_nodes"])
        scores = np.stack([member.scores(cut).double().numpy() for member in self.members])
        return scores.mean(0) * self.deviation + self.mean, scores.std(0) * self.deviation

    def _calibrated(
        self, graphs: Sequence[Graph], logs: Sequence[Runtimes], trained: Sequence[np.ndarray]
    ) -> Calibration:
        predictions = [self._logs(graph) for graph in graphs]
        spreads, learned = np.concatenate([spread for _, spread in predictions]), np.concatenate(trained)
        errors = np.concatenate(logs) - np.concatenate([mean for mean, _ in predictions])
        return Calibration.of(errors[~learned], spreads[~learned], float(spreads[learned].mean()))


@dataclass(frozen=True, eq=False)
class Lesson:
    """A graph with labelled configurations; labels are normalised logarithms of runtimes."""

    graph: SegmentedGraph
    configs: Int64[Tensor, " labelled"]
    labels: Float[Tensor, " labelled"]


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
                model.embed([lessons[0].graph], torch.zeros(1, 1, dtype=torch.long))
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
                if not loss.isfinite():
                    raise ValueError(
                        f"the loss became {loss.item()} in epoch {epoch} at graph {lesson.graph.name!r}; lower "
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
            for part in torch.randperm(len(lesson.labels), generator=self._generator).split(size)
        ]
        for k in torch.randperm(len(lists), generator=self._generator).tolist():
            yield lists[k]


@dataclass(frozen=True, eq=False)
class Calibration:
    """Normalised errors of held-out configurations, which scale spreads to intervals.

    With n held-out configurations, errors e_i and spreads s_i, q is the ceil((n + 1) coverage)-th smallest of
    e_i / (s_i + c). An interval of half width q (s + c) holds the runtime of a new configuration with probability at
    least the coverage if it is drawn as these were: not selected for its low prediction, nor of another graph.

    Examples:
        >>> calibration = Calibration.of(errors=np.array([0.1, -0.2, 0.4]), spreads=np.full(3, 0.5), offset=0.5)
        >>> calibration.half_width(spreads=np.array([0.5, 1.5]), coverage=0.75).tolist()
        [0.4, 0.8]

    Args:
        ratios: e_i / (s_i + c) of each configuration, ascending.
        offset: c, the mean spread of trained configurations, so that a tiny spread does not promise a tiny error.
    """

    ratios: Float64[np.ndarray, " held_out"]
    offset: float

    @staticmethod
    def of(
        errors: Float64[np.ndarray, " held_out"], spreads: Float64[np.ndarray, " held_out"], offset: float
    ) -> Calibration:
        """Calibrate by errors of the mean and spreads over the members, both of logarithms of runtimes."""
        offset = max(offset, SMALLEST)
        return Calibration(np.sort(np.abs(errors) / (spreads + offset)), offset)

    def half_width(self, spreads: Float64[np.ndarray, " configs"], coverage: float) -> Float64[np.ndarray, " configs"]:
        """Return the half widths q (s + c) of intervals; raise ValueError for too high a coverage."""
        if not 0.0 < coverage < 1.0:
            raise ValueError(f"coverage is {coverage}; it is a share of configurations, between 0 and 1")
        rank = ceil((len(self.ratios) + 1) * coverage)
        if rank > len(self.ratios):
            raise ValueError(
                f"a coverage of {coverage} needs {ceil(coverage / (1 - coverage))} held-out configurations, "
                f"{len(self.ratios)} were; ask for less, or fit on more configurations"
            )
        return self.ratios[rank - 1] * (spreads + self.offset)


def held_out(graph: Graph, share: float) -> Bool[np.ndarray, " configs"]:
    """Mark about `share` of the configurations by a hash of their content, whatever their order and number."""
    salt = blake2b(graph.node_features.tobytes(), digest_size=16).digest()
    hashes = [blake2b(features.tobytes(), digest_size=4, key=salt).digest() for features in graph.config_features]
    return np.frombuffer(b"".join(hashes), "<u4") < share * 2**32
