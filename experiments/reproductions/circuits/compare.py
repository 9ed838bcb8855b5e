"""Variants of Graph Segment Training, controls and baselines on designs never seen, and on recipes never seen."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64

from experiments.reproductions.circuits.cones import write_cones
from experiments.reproductions.circuits.features import COUNTS
from experiments.reproductions.circuits.files import CircuitFile, cache, circuit_files
from experiments.reproductions.circuits.labels import read_labels
from experiments.reproductions.circuits.recipes import LETTERS
from experiments.reproductions.circuits.training import (
    WHOLE,
    Example,
    Schedule,
    examples_of,
    mean_score,
    predict,
    score,
    train_ensemble,
)
from gst.devices import machine_record
from gst.files.writing import write_json
from gst.process.progress import bar

CONES = 10  # of each circuit
DEFAULT: dict[str, Any] = {"table": True, "estimate": "regression"}
"""How the shipped model is trained."""

VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "GST-One": ({}, {"omit_rest": True}),
    "GST": ({}, {}),
    "GST+E": ({}, {"table": True}),
    "GST+ED": ({}, {"table": True, "keep_probability": 0.5}),
    "GST+E, difference": ({}, {"table": True, "estimate": "difference"}),
    "GST+E, regression": ({}, DEFAULT),
    "whole graph": ({}, {}),
    "OpenABC-D's form, whole graph": ({"published": True}, {}),
    "four networks": ({}, DEFAULT),
    "four networks that see statistics, no graph": ({"sees": "statistics"}, {}),
    "four networks that see counts, no graph": ({"sees": "counts"}, {}),
}
"""Settings of the model and arguments of the estimator."""

Predictions = dict[str, Float64[np.ndarray, " recipes"]]
"""Log ratio of ANDs after the last command, by name of the circuit."""


def labelled_files(data: Path) -> list[CircuitFile]:
    """Circuits and the output cones of each, which are written to the cache."""
    files = circuit_files(data)
    return [*files, *write_cones(files, cache() / "cones", CONES)]


def recipe_columns(recipes: Int64[np.ndarray, "recipes commands"]) -> Float64[np.ndarray, "recipes columns"]:
    """A recipe for trees and linear models: each command at each place, and how often, how late and how often among
    the last five each command comes."""
    places = np.eye(len(LETTERS))[recipes]
    late = np.linspace(0, 1, recipes.shape[1])[:, None]
    return np.concatenate([places.reshape(len(recipes), -1), places.sum(1), (places * late).sum(1),
                           places[:, -5:].sum(1)], axis=1)  # fmt: skip


def _rows(examples: Sequence[Example]) -> Float64[np.ndarray, "rows columns"]:
    """Counts of the circuit beside its recipes."""
    return np.concatenate([
        np.c_[np.repeat(each.numbers[None, : len(COUNTS)], len(each.recipes), 0), recipe_columns(each.recipes)]
        for each in examples
    ])  # fmt: skip


def _finals(examples: Sequence[Example], within: bool) -> Float64[np.ndarray, " rows"]:
    """Log ratios after the last command; `within`: less their mean in the circuit, in units of its spread."""
    finals = [each.logs[:, -1, 0] for each in examples]
    if within:
        pairs = zip(finals, examples, strict=True)
        finals = [(logs - logs.mean()) / each.spread for logs, each in pairs]
    return np.concatenate(finals)


def boosting(train: Sequence[Example], test: Sequence[Example], seed: int, within: bool) -> Predictions:
    """Gradient boosted trees on counts, depth and recipe."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(
        max_iter=200, learning_rate=0.05, max_leaf_nodes=15, min_samples_leaf=10, random_state=seed
    )
    model.fit(_rows(train), _finals(train, within))
    return {each.name: model.predict(_rows([each])) for each in test}


def recipe_effects(train: Sequence[Example], test: Sequence[Example], seed: int) -> Predictions:
    """Ridge regression of the order within circuits on the recipe alone: the same order for all circuits."""
    columns = np.concatenate([recipe_columns(each.recipes) for each in train])
    centre, penalty = columns.mean(0), 30.0
    x = columns - centre
    weights = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ _finals(train, within=True))
    return {each.name: (recipe_columns(each.recipes) - centre) @ weights for each in test}


BASELINES: dict[str, Callable[[Sequence[Example], Sequence[Example], int], Predictions]] = {
    "boosting": lambda train, test, seed: boosting(train, test, seed, within=False),
    "boosting, order within circuits": lambda train, test, seed: boosting(train, test, seed, within=True),
    "recipe alone": recipe_effects,
}
ORDER_ONLY = ("boosting, order within circuits", "recipe alone")  # which predict no ratio


def by_design(examples: Sequence[Example], seed: int, seeds: int) -> tuple[list[Example], list[Example]]:
    """What is learned from and what is tested: of the designs one in `seeds`, another part for each seed, and of these
    the circuits themselves. Versions and cones of a design stay together."""
    designs = sorted({each.design for each in examples})
    order = np.random.default_rng(0).permutation(len(designs))
    held = {designs[k] for k in order[seed::seeds]}
    train = [each for each in examples if each.design not in held]
    return train, [each for each in examples if each.design in held and "+" not in each.name]


def by_recipe(examples: Sequence[Example], seed: int, seeds: int) -> tuple[list[Example], list[Example]]:
    """As `by_design`, of the recipes: all circuits are learned from, with the other recipes."""
    recipes = sorted({tuple(row) for each in examples for row in each.recipes.tolist()})
    order = np.random.default_rng(1).permutation(len(recipes))
    held = {recipes[k] for k in order[seed::seeds]}
    train, test = [], []
    for each in examples:
        is_held = np.array([tuple(row) in held for row in each.recipes.tolist()])
        parts = [replace(each, recipes=each.recipes[rows], logs=each.logs[rows]) for rows in (~is_held, is_held)]
        if len(parts[0].recipes) > 1:
            train.append(parts[0])
        if len(parts[1].recipes) > 1 and "+" not in each.name:
            test.append(parts[1])
    return train, test


def compare(data: Path, labels: Path, seeds: int, steps: int, path: Path) -> None:
    """Write the table of all methods to `path`, after each seed."""
    torch.set_num_threads(1)
    files, counts = labelled_files(data), read_labels(labels)
    cut, whole = (examples_of(files, counts, size) for size in (500, WHOLE))
    tasks = {"designs": (by_design, [*BASELINES, *VARIANTS]), "recipes": (by_recipe, [*BASELINES, *(
             name for name in VARIANTS if "four" in name)])}  # fmt: skip
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {
        task: {name: [] for name in names} for task, (_, names) in tasks.items()
    }
    circuits: dict[str, dict[str, Any]] = {}
    with bar(total=seeds * sum(len(names) for _, names in tasks.values())) as progress:
        for seed in range(seeds):
            for task, (split, names) in tasks.items():
                for name in names:
                    progress.set_description(f"seed {seed}, {task}, {name}")
                    examples = whole if "whole graph" in name else cut
                    train, test = split(examples, seed, seeds)
                    scores, seconds = _run(name, train, test, seed, Schedule(steps))
                    row = mean_score(scores) | {"seconds": seconds}
                    if name in ORDER_ONLY:
                        row["error"] = None
                    runs[task][name].append(row)
                    if task == "designs":
                        for circuit, each in scores.items():
                            circuits.setdefault(circuit, {})[name] = each["tau"]
                    progress.update()
            result = {
                **{task: {name: _row(each) for name, each in rows.items()} for task, rows in runs.items()},
                "circuits": circuits, "seeds": seed + 1, "steps": steps,
                "labels": sum(len(each.recipes) for each in cut), "examples": len(cut),
                "designs_in_all": len({each.design for each in cut}), "machine": machine_record(),
                "command": f"python -m experiments.reproductions.circuits compare --seeds {seeds} --steps {steps}",
            }  # fmt: skip
            write_json(path, result)
    for task, rows in runs.items():
        for name, each in rows.items():
            print(f"{task:8} {name:32} tau {_row(each)['tau_mean']:.3f} +- {_row(each)['tau_deviation']:.3f}")


def _run(
    name: str, train: Sequence[Example], test: Sequence[Example], seed: int, schedule: Schedule
) -> tuple[dict[str, dict[str, Any]], float]:
    """Scores of the circuits of `test`, and the seconds of training and predicting."""
    started = time.perf_counter()
    if name in BASELINES:
        predictions = BASELINES[name](train, test, seed)
    else:
        models = train_ensemble(train, seed, 4 if "four" in name else 1, schedule, *VARIANTS[name])
        predictions = {each.name: predict(models, each)[:, -1, 0] for each in test}
    scores = {each.name: score(predictions[each.name], each) for each in test}
    return scores, time.perf_counter() - started


def _row(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    taus, errors = [run["tau"] for run in runs], [run["error"] for run in runs if run["error"] is not None]
    return {
        "tau_mean": statistics.mean(taus), "tau_deviation": statistics.stdev(taus) if len(taus) > 1 else 0.0,
        "taus": taus, "error": statistics.mean(errors) if errors else None,
        "seconds": statistics.median(run["seconds"] for run in runs),
    }  # fmt: skip
