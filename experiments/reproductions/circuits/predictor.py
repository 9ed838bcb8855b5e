"""The predictor that is shipped: networks that see the graph, statistics or counts, and boosted trees; and its file.

Each part orders recipes by itself; what is averaged are its predictions in units of their spread over the recipes of a
circuit, so that no part counts more for predicting larger differences. Level and spread are those of the networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from experiments.reproductions.circuits import recipes
from experiments.reproductions.circuits.features import COUNTS
from experiments.reproductions.circuits.model import SynthesisModel
from experiments.reproductions.circuits.training import Example, Schedule, predict, train_ensemble
from experiments.reproductions.timm.step_time.model import Trees
from experiments.reproductions.trees import train_trees
from gst.util.untrusted import DAMAGE, check_weights, plain, read_tensors, shown
from gst.util.writing import atomic_path

SCHEMA = 2
DEFAULT: dict[str, Any] = {"table": True, "estimate": "composite"}
"""How networks that see the graph are trained."""
KINDS = ("graph", "statistics", "counts")
LONGER = 3  # a step without a graph takes less than half the time, and gains from more of them

Logs = Float64[np.ndarray, " recipes"]
"""Log ratio of ANDs after the last command."""


class Predictor(NamedTuple):
    """Networks by what they see, and trees of counts and recipe for recipes of `num_commands` commands."""

    networks: dict[str, list[SynthesisModel]]
    trees: Trees
    num_commands: int

    def predict(self, example: Example) -> Logs:
        """For the recipes of a circuit. Recipes of another length than those trained on are left to the networks."""
        parts = [predict(models, example)[:, -1, 0] for models in self.networks.values()]
        if example.recipes.shape[1] == self.num_commands:
            return combined(parts, [self.trees.predict(rows([example]))])
        return combined(parts)


def combined(networks: Sequence[Logs], orders: Sequence[Logs] = ()) -> Logs:
    """Averages predictions of a circuit's recipes.

    Args:
        networks: what gives level and spread, and takes part in the order.
        orders: what takes part in the order alone, in any unit.

    Examples:
        >>> combined([np.array([0.1, 0.3]), np.array([0.3, 0.3])], [np.array([5.0, 9.0])]).round(3).tolist()
        [0.2, 0.3]
    """
    level = np.mean(networks, axis=0)
    order = np.sum([_standardised(each) for each in (*networks, *orders)], axis=0)
    return level.mean() + level.std() * _standardised(order)


def _standardised(values: Logs) -> Logs:
    spread = float(values.std())
    return (values - values.mean()) / (spread if spread > 1e-12 else 1.0)


def rows(examples: Sequence[Example]) -> Float64[np.ndarray, "rows columns"]:
    """Return counts of the circuit concatenated with its recipes."""
    return np.concatenate([
        np.c_[np.repeat(each.numbers[None, : len(COUNTS)], len(each.recipes), 0), recipes.columns(each.recipes)]
        for each in examples
    ])  # fmt: skip


def finals(examples: Sequence[Example], within: bool) -> Float64[np.ndarray, " rows"]:
    """Log ratios after the last command; `within`: less their mean in the circuit, in units of its spread."""
    logs = [each.logs[:, -1, 0] for each in examples]
    if within:
        logs = [(each - each.mean()) / example.spread for each, example in zip(logs, examples, strict=True)]
    return np.concatenate(logs)


def order_trees(examples: Sequence[Example], seed: int) -> Trees:
    """Trees told to order recipes within circuits, each node of which sees three tenths of the columns."""
    target = finals(examples, within=True)
    return train_trees(
        rows(examples), target, np.ones_like(target), seed, trees=400, leaves=15, rate=0.05, fewest=10, share=0.3
    )


def train_kind(
    kind: str, examples: Sequence[Example], seed: int, members: int, schedule: Schedule
) -> list[SynthesisModel]:
    """Networks that see one kind of thing; those without a graph take `LONGER` times the steps."""
    if kind == "graph":
        return train_ensemble(examples, seed, members, schedule, {}, DEFAULT)
    longer = replace(schedule, steps=LONGER * schedule.steps)
    return train_ensemble(examples, seed, members, longer, {"sees": kind}, {})


def train_predictor(examples: Sequence[Example], seed: int, members: int, schedule: Schedule) -> Predictor:
    """Train all parts, `members` networks of each kind."""
    networks = {kind: train_kind(kind, examples, seed, members, schedule) for kind in KINDS}
    return Predictor(networks, order_trees(examples, seed), examples[0].recipes.shape[1])


def save_predictor(predictor: Predictor, path: Path, record: dict[str, Any]) -> None:
    """Write a predictor, and what is told of it, as a file of numbers and tensors."""
    networks = [
        {
            "settings": models[0].settings,
            "members": [
                {
                    name: value
                    for name, value in model.state_dict().items()
                    if isinstance(value, Tensor) and not name.startswith("segments.table")
                }
                for model in models
            ],
        }
        for models in predictor.networks.values()
    ]
    trees = [torch.from_numpy(_small(array)) for array in predictor.trees[1:]]
    content = {
        "schema": SCHEMA, "networks": networks, "base": predictor.trees.base, "trees": trees,
        "num_commands": predictor.num_commands, "record": record,
    }  # fmt: skip
    with atomic_path(path) as file:
        torch.save(content, file)


def load_predictor(path: Path) -> Predictor:
    """Read what `save_predictor` wrote; nothing in the file is executed.

    Raises:
        ValueError: the file is missing, damaged, or of another version.
    """
    content = read_tensors(path)
    try:
        if content["schema"] != SCHEMA:
            raise ValueError(f"it has schema {shown(content['schema'])}, this version reads {SCHEMA}; train again")
        networks = {each["settings"]["sees"]: _networks(each) for each in content["networks"]}
        if not networks:
            raise ValueError("it holds no network")
        arrays = [each.numpy() for each in content["trees"]]
        wide = [each.astype(np.float64 if each.dtype.kind == "f" else np.int64) for each in arrays]
        return Predictor(networks, Trees(float(content["base"]), *wide), int(content["num_commands"]))
    except DAMAGE as error:
        raise ValueError(f"{path}: no checkpoint of circuits ({plain(error)})") from error


def _networks(content: dict[str, Any]) -> list[SynthesisModel]:
    models = []
    for state in content["members"]:
        settings = content["settings"]
        check_weights(lambda settings=settings: SynthesisModel(**settings), state, (settings["num_layers"],))  # type: ignore[misc]
        model = SynthesisModel(**settings)
        missing, unexpected = model.load_state_dict(state, strict=False)
        if unexpected or any(not name.startswith("segments._extra") for name in missing):
            raise ValueError(f"it lacks {missing[:3]} and has {unexpected[:3]}")
        models.append(model.eval())
    if not models:
        raise ValueError("it holds no network")
    return models


def _small(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64 if array.dtype.kind == "f" else np.int16 if abs(array).max() < 1 << 15 else np.int32)
