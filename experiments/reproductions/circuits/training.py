"""Examples made of labels, and the training and scoring of models of recipes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from embedding_cache import EmbeddingTable
from experiments.reproductions.circuits import recipes as recipe_letters
from experiments.reproductions.circuits.circuit import Circuit
from experiments.reproductions.circuits.features import COUNTS, circuit_counts, circuit_graph, circuit_statistics
from experiments.reproductions.circuits.files import CircuitFile
from experiments.reproductions.circuits.labels import Trajectory
from experiments.reproductions.circuits.model import SynthesisModel
from gst.cost.metrics import kendall_tau
from gst.graphs.segments import SegmentedGraph, segment
from gst.util.progress import bar

MAX_NODES = 500  # of a segment
WHOLE = 1 << 30  # of a graph that is not cut
LEAST_SPREAD = 2e-3  # of the log ratio over the recipes of a circuit: less is a matter of single ANDs


@dataclass(frozen=True, eq=False)
class Example:
    """A circuit with labelled recipes.

    Args:
        graph: cut into segments.
        numbers: `circuit_counts`, then `circuit_statistics`.
        recipes: numbers of their commands.
        logs: log ratios of ANDs and levels to those of the circuit, after each command.
    """

    name: str
    design: str
    graph: SegmentedGraph
    numbers: Float64[np.ndarray, " numbers"]
    recipes: Int64[np.ndarray, "recipes commands"]
    logs: Float64[np.ndarray, "recipes commands 2"]

    @property
    def spread(self) -> float:
        """Standard deviation over recipes of the log ratio of ANDs at the end."""
        return max(float(self.logs[:, -1, 0].std()), LEAST_SPREAD)


def describe(circuit: Circuit, max_nodes: int = MAX_NODES) -> tuple[SegmentedGraph, Float64[np.ndarray, " numbers"]]:
    """The segmented graph of a circuit, and its counts and statistics."""
    graph = circuit_graph(circuit)
    return segment(graph, max_nodes), np.r_[circuit_counts(circuit), circuit_statistics(graph)]


def example(file: CircuitFile, labels: Mapping[str, Trajectory], max_nodes: int = MAX_NODES) -> Example:
    """An example of labels by recipe; recipes have one length."""
    counts = np.stack(list(labels.values())).astype(np.float64)
    logs = np.log(np.maximum(counts[:, 1:], 1) / np.maximum(counts[:, :1], 1))
    graph, numbers = describe(file.read(), max_nodes)
    return Example(file.name, file.design, graph, numbers, recipe_letters.numbers(list(labels)), logs)


def examples_of(
    files: Sequence[CircuitFile], labels: Mapping[tuple[str, str], Trajectory | None], max_nodes: int = MAX_NODES
) -> list[Example]:
    """An example of each circuit that has two labels or more; of files with the same content the first.

    Raises:
        ValueError: no circuit has labels.
    """
    of_circuit: dict[str, dict[str, Trajectory]] = defaultdict(dict)
    for (digest, recipe), counts in labels.items():
        if counts is not None:
            of_circuit[digest][recipe] = counts
    distinct = {file.digest: file for file in reversed(files)}
    chosen = [file for file in files if distinct[file.digest] is file and len(of_circuit[file.digest]) > 1]
    if not chosen:
        raise ValueError(f"none of {len(files)} circuits has labels; make some with the command label")
    return [example(file, of_circuit[file.digest], max_nodes) for file in bar(chosen, desc="circuits")]


@dataclass(frozen=True)
class Schedule:
    """Steps of a training.

    Args:
        circuits: of a step.
        recipes: of each circuit of a step; of one with fewer labels some come twice.
        level_weight: of the error of levels relative to that of ANDs.
        absolute_weight: of the error of log ratios themselves relative to that of their order.
    """

    steps: int = 300
    circuits: int = 16
    recipes: int = 8
    learning_rate: float = 1e-2
    weight_decay: float = 1e-2
    level_weight: float = 0.1
    absolute_weight: float = 0.3


def train(
    model: SynthesisModel, examples: Sequence[Example], schedule: Schedule, seed: int,
    progress: Callable[[float], None] = lambda loss: None,
) -> None:  # fmt: skip
    """Train on examples; circuits with more labels are drawn more often, by the square root of their number."""
    generator = np.random.default_rng(seed)
    numbers = torch.from_numpy(np.stack([each.numbers for each in examples])).float()
    width = len(model.mean)
    model.mean.copy_(numbers[:, :width].mean(0))
    model.deviation.copy_(numbers[:, :width].std(0).clamp(min=1e-3))
    chances = np.sqrt([len(each.recipes) for each in examples])
    chances /= chances.sum()
    model.train()
    if model.segments is not None:  # lazy layers get their widths
        model.segments.embed([examples[0].graph], torch.zeros(1, 1, dtype=torch.int64))
    optimizer = torch.optim.AdamW(model.parameters(), schedule.learning_rate, weight_decay=schedule.weight_decay)
    decay = torch.optim.lr_scheduler.OneCycleLR(optimizer, schedule.learning_rate, schedule.steps)
    for _ in range(schedule.steps):
        chosen = generator.choice(len(examples), min(schedule.circuits, len(examples)), replace=False, p=chances)
        parts = [
            generator.choice(n := len(examples[k].recipes), schedule.recipes, replace=n < schedule.recipes)
            for k in chosen
        ]
        recipes = torch.from_numpy(np.stack([examples[k].recipes[part] for k, part in zip(chosen, parts, strict=True)]))
        logs = np.stack([examples[k].logs[part] for k, part in zip(chosen, parts, strict=True)])
        spreads = torch.tensor([examples[k].spread for k in chosen], dtype=torch.float32)
        predicted = model([examples[k].graph for k in chosen], numbers[chosen], recipes)
        truth = torch.from_numpy(logs).float()
        if model.settings["published"]:
            loss = torch.nn.functional.mse_loss(predicted[:, :, -1], truth[:, :, -1])
        else:
            loss = trajectory_loss(predicted, truth, spreads, schedule)
        if not loss.isfinite():
            raise ValueError("the loss is no longer a finite number; lower the learning rate")
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        decay.step()
        progress(float(loss.detach()))
    model.eval()


def trajectory_loss(predicted: Tensor, logs: Tensor, spreads: Tensor, schedule: Schedule) -> Tensor:
    """Errors after each command, the last one counting as much as all others together: of differences between recipes
    of a circuit in units of their spread, and of the log ratios themselves in tenths."""
    length = logs.shape[2]
    weights = torch.full((length,), 0.5 / max(1, length - 1))
    weights[-1] = 0.5

    def error(difference: Tensor, unit: Tensor) -> Tensor:
        huber = torch.nn.functional.smooth_l1_loss(difference / unit, torch.zeros_like(difference), reduction="none")
        return (huber * weights).sum(2).mean()

    centred = predicted - predicted.mean(1, keepdim=True) - (logs - logs.mean(1, keepdim=True))
    order = error(centred[..., 0], spreads[:, None, None])
    absolute = [error((predicted - logs)[..., k], torch.tensor(0.1)) for k in (0, 1)]
    return order + schedule.absolute_weight * (absolute[0] + schedule.level_weight * absolute[1])


@torch.no_grad()
def predict(models: Sequence[SynthesisModel], example: Example) -> Float64[np.ndarray, "recipes commands 2"]:
    """Log ratios of ANDs and levels after each command, from all segments: means over networks."""
    numbers, recipes = torch.from_numpy(example.numbers).float()[None], torch.from_numpy(example.recipes)[None]
    each = [model.eval()([example.graph], numbers, recipes)[0].double().numpy() for model in models]
    return np.mean(each, axis=0)


def train_ensemble(
    examples: Sequence[Example], seed: int, members: int, schedule: Schedule, settings: dict[str, Any],
    estimator: dict[str, Any],
) -> list[SynthesisModel]:  # fmt: skip
    """Networks that differ in seeds, each with a table of its own if `estimator` says `table=True`."""
    models = []
    with bar(total=members * schedule.steps, desc="training", unit="step") as progress:
        for member in range(members):
            torch.manual_seed(1_000 * seed + member)
            chosen = dict(estimator)
            if chosen.pop("table", False):
                chosen["table"] = EmbeddingTable(1, settings.get("channels", 16))
            model = SynthesisModel(num_statistics=len(examples[0].numbers) - len(COUNTS), **settings, **chosen)
            train(model, examples, schedule, 1_000 * seed + member, lambda loss: progress.update() and None)
            models.append(model)
    return models


def score(logs: Float64[np.ndarray, " recipes"], example: Example) -> dict[str, float | None]:
    """Kendall's tau of the ANDs at the end, None where all labels are equal, and the mean error of the number of ANDs
    relative to the label."""
    labels = example.logs[:, -1, 0]
    tau = None if np.ptp(labels) == 0 else 0.0 if np.ptp(logs) == 0 else kendall_tau(logs, labels)
    return {"tau": tau, "error": float(np.abs(np.expm1(logs - labels)).mean())}


def mean_score(scores: dict[str, dict[str, Any]]) -> dict[str, float | None]:
    """Means over circuits; of tau over those with an order."""
    taus = [each["tau"] for each in scores.values() if each["tau"] is not None]
    errors = [each["error"] for each in scores.values()]
    return {"tau": float(np.mean(taus)) if taus else None, "error": float(np.mean(errors)) if errors else None}
