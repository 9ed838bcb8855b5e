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
from jaxtyping import Float64

from experiments.reproductions.circuits import recipes
from experiments.reproductions.circuits.cones import write_cones
from experiments.reproductions.circuits.files import CircuitFile, cache, circuit_files
from experiments.reproductions.circuits.labels import read_labels
from experiments.reproductions.circuits.predictor import DEFAULT, combined, finals, order_trees, rows, train_kind
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
from gst.machine.devices import machine_record
from gst.util.progress import bar
from gst.util.writing import write_json

CONES = 10  # of each circuit
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "GST-One": ({}, {"estimate": "fresh"}),
    "GST": ({}, {}),
    "GST+E": ({}, {"table": True, "estimate": "dropout"}),
    "GST+ED": ({}, {"table": True, "keep_probability": 0.5}),
    "GST+E, difference": ({}, {"table": True, "estimate": "difference"}),
    "GST+E, composite": ({}, DEFAULT),
    "whole graph": ({}, {}),
    "OpenABC-D's form, whole graph": ({"published": True}, {}),
}
"""Settings of the model and arguments of the estimator."""

PARTS = {
    "four networks": "graph", "four networks that see statistics, no graph": "statistics",
    "four networks that see counts, no graph": "counts",
}  # fmt: skip
"""Networks of the predictor that is shipped, by what they see."""
TREES = "trees, order within circuits"
PREDICTOR = "networks and trees, averaged"

Predictions = dict[str, Float64[np.ndarray, " recipes"]]
"""Log ratio of ANDs after the last command, by name of the circuit."""


def labelled_files(data: Path) -> list[CircuitFile]:
    """Circuits and the output cones of each, which are written to the cache."""
    files = circuit_files(data)
    return [*files, *write_cones(files, cache() / "cones", CONES)]


def boosting(train: Sequence[Example], test: Sequence[Example], seed: int, within: bool) -> Predictions:
    """Gradient boosted trees on counts, depth and recipe."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(
        max_iter=200,
        learning_rate=0.05,
        max_leaf_nodes=15,
        min_samples_leaf=10,
        early_stopping=False,
        random_state=seed,
    )
    model.fit(rows(train), finals(train, within))
    return {each.name: model.predict(rows([each])) for each in test}


def recipe_effects(train: Sequence[Example], test: Sequence[Example], seed: int) -> Predictions:
    """Ridge regression of the order within circuits on the recipe alone: the same order for all circuits."""
    columns = np.concatenate([recipes.columns(each.recipes) for each in train])
    centre, penalty = columns.mean(0), 30.0
    x = columns - centre
    weights = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ finals(train, within=True))
    return {each.name: (recipes.columns(each.recipes) - centre) @ weights for each in test}


def tree_orders(train: Sequence[Example], test: Sequence[Example], seed: int) -> Predictions:
    """The trees of the predictor that is shipped."""
    trees = order_trees(train, seed)
    return {each.name: trees.predict(rows([each])) for each in test}


BASELINES: dict[str, Callable[[Sequence[Example], Sequence[Example], int], Predictions]] = {
    "boosting": lambda train, test, seed: boosting(train, test, seed, within=False),
    "boosting, order within circuits": lambda train, test, seed: boosting(train, test, seed, within=True),
    "recipe alone": recipe_effects,
    TREES: tree_orders,
}
ORDER_ONLY = ("boosting, order within circuits", "recipe alone", TREES)  # which predict no ratio


def by_design(examples: Sequence[Example], seed: int, seeds: int) -> tuple[list[Example], list[Example]]:
    """Split circuits by design: the test part is one in `seeds` designs, another part for each seed.

    Versions and cones of a design stay together; only circuits themselves are tested.
    """
    designs = sorted({each.design for each in examples})
    order = np.random.default_rng(0).permutation(len(designs))
    held = {designs[k] for k in order[seed::seeds]}
    train = [each for each in examples if each.design not in held]
    return train, [each for each in examples if each.design in held and "+" not in each.name]


def by_recipe(examples: Sequence[Example], seed: int, seeds: int) -> tuple[list[Example], list[Example]]:
    """As `by_design`, of the recipes: all circuits are learned from, with the other recipes."""
    all_recipes = sorted({tuple(row) for each in examples for row in each.recipes.tolist()})
    order = np.random.default_rng(1).permutation(len(all_recipes))
    held = {all_recipes[k] for k in order[seed::seeds]}
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
    shipped = [*PARTS, PREDICTOR]
    tasks = {
        "designs": (by_design, [*BASELINES, *VARIANTS, *shipped]), "recipes": (by_recipe, [*BASELINES, *shipped]),
    }  # fmt: skip
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {
        task: {name: [] for name in names} for task, (_, names) in tasks.items()
    }
    circuits: dict[str, dict[str, Any]] = {}
    with bar(total=seeds * sum(len(names) for _, names in tasks.values())) as progress:
        for seed in range(seeds):
            for task, (split, names) in tasks.items():
                made: dict[str, Predictions] = {}
                for name in names:
                    progress.set_description(f"seed {seed}, {task}, {name}")
                    examples = whole if "whole graph" in name else cut
                    train, test = split(examples, seed, seeds)
                    scores, seconds = _run(name, train, test, seed, Schedule(steps), made)
                    row = mean_score(scores) | {"seconds": seconds}
                    if name in ORDER_ONLY:
                        row["error"] = None
                    runs[task][name].append(row)
                    if task == "designs":
                        for circuit, each in scores.items():
                            circuits.setdefault(circuit, {})[name] = each["tau"]
                    progress.update()
            result = {
                **{task: {name: _row(each) for name, each in methods.items()} for task, methods in runs.items()},
                "circuits": circuits, "seeds": seed + 1, "steps": steps,
                "labels": sum(len(each.recipes) for each in cut), "examples": len(cut),
                "designs_in_all": len({each.design for each in cut}), "machine": machine_record(),
                "command": f"python -m experiments.reproductions.circuits compare --seeds {seeds} --steps {steps}",
            }  # fmt: skip
            write_json(path, result)
    for task, methods in runs.items():
        for name, each in methods.items():
            print(f"{task:8} {name:32} tau {_row(each)['tau_mean']:.3f} +- {_row(each)['tau_deviation']:.3f}")


def _run(
    name: str, train: Sequence[Example], test: Sequence[Example], seed: int, schedule: Schedule,
    made: dict[str, Predictions],
) -> tuple[dict[str, dict[str, Any]], float]:  # fmt: skip
    """Scores of the circuits of `test`, and the seconds of training and predicting. Predictions are put into `made`,
    from which those of the predictor are averaged."""
    started = time.perf_counter()
    if name in BASELINES:
        made[name] = BASELINES[name](train, test, seed)
    elif name == PREDICTOR:
        for each in test:
            parts = [made[part][each.name] for part in PARTS]
            made.setdefault(name, {})[each.name] = combined(parts, [made[TREES][each.name]])
    else:
        if name in PARTS:
            models = train_kind(PARTS[name], train, seed, 4, schedule)
        else:
            models = train_ensemble(train, seed, 1, schedule, *VARIANTS[name])
        made[name] = {each.name: predict(models, each)[:, -1, 0] for each in test}
    scores = {each.name: score(made[name][each.name], each) for each in test}
    return scores, time.perf_counter() - started


def _row(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    taus, errors = [run["tau"] for run in runs], [run["error"] for run in runs if run["error"] is not None]
    return {
        "tau_mean": statistics.mean(taus), "tau_deviation": statistics.stdev(taus) if len(taus) > 1 else 0.0,
        "taus": taus, "error": statistics.mean(errors) if errors else None,
        "seconds": statistics.median(run["seconds"] for run in runs),
    }  # fmt: skip
