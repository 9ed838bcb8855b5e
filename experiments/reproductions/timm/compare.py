"""Models of timm step times against their controls: families, models and machines that were left out of training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from experiments.reproductions.timm.model import (
    Settings,
    efficiencies,
    folds_of,
    kind_of,
    predict,
    scores,
    train,
)
from experiments.reproductions.timm.programs import Rows
from experiments.reproductions.trees import train_trees
from gst.cost.step_time.rows import TERMS
from gst.files.writing import write_json
from gst.process.progress import bar

FOLDS = 5
LABELS = 10  # measured models of a machine that was left out
Predictor = Callable[[Rows, Rows, int], Float64[np.ndarray, " rows"]]


def _tables(train_rows: Rows, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    tables = sorted({each.setting for each in train_rows.measurements} | {each.setting for each in rows.measurements})
    first, second = (
        np.array([tables.index(each.setting) for each in part.measurements]) for part in (train_rows, rows)
    )
    return first, second


def roofline(train_rows: Rows, rows: Rows, seed: int) -> Float64[np.ndarray, " rows"]:
    """Sum over kernels of their time at peak rates, times the median ratio of the table."""
    first, second = _tables(train_rows, rows)
    ratio = train_rows.log_step - train_rows.columns[:, 0]
    everywhere = float(np.median(ratio))
    of = {table: float(np.median(ratio[first == table])) for table in np.unique(first)}
    return rows.columns[:, 0] + np.array([of.get(table, everywhere) for table in second])


def boosting_on_aggregates(train_rows: Rows, rows: Rows, seed: int) -> Float64[np.ndarray, " rows"]:
    """Gradient boosting of log time on parameters, floating-point operations, bytes, batch, image size and machine."""

    def columns(part: Rows) -> np.ndarray:
        sums = part.terms.reshape(len(part), TERMS, -1).sum(2)
        parameters = [each.parameters for each in part.measurements]
        batches = [each.batch for each in part.measurements]
        return np.column_stack([np.log(np.maximum(sums, 1e-9)), parameters, batches, part.columns[:, 3], part.setting])

    trees = train_trees(columns(train_rows), train_rows.log_step, np.ones(len(train_rows)), seed, trees=300, leaves=31)
    return trees.predict(columns(rows))


def least_squares(train_rows: Rows, rows: Rows, seed: int) -> Float64[np.ndarray, " rows"]:
    """Efficiencies of the classes of kernels by least squares in each table alone."""
    first, second = _tables(train_rows, rows)
    result = np.full(len(rows), np.nan)
    for table in np.unique(second):
        chosen = first == table
        if not chosen.any():
            kind = {
                kind_of(each.setting) for each, is_in in zip(rows.measurements, second == table, strict=True) if is_in
            }
            chosen = np.array([kind_of(each.setting) in kind for each in train_rows.measurements])
        if not chosen.any():
            chosen[:] = True
        weights = efficiencies(train_rows.terms[chosen], train_rows.log_step[chosen])
        result[second == table] = np.log(np.maximum(rows.terms[second == table] @ weights, 1e-6))
    return result


def ours_untrained_trees(train_rows: Rows, rows: Rows, seed: int) -> Float64[np.ndarray, " rows"]:
    """The model without its trees: efficiencies of each table drawn towards those of its kind."""
    return predict(train(train_rows, Settings(boosted=0), seed, calibrated=False), rows)[0]


def ours(train_rows: Rows, rows: Rows, seed: int) -> Float64[np.ndarray, " rows"]:
    """The model."""
    return predict(train(train_rows, Settings(), seed, calibrated=False), rows)[0]


METHODS: dict[str, Predictor] = {
    "boosting on aggregates": boosting_on_aggregates, "roofline, one scale per table": roofline,
    "least squares per table": least_squares, "efficiencies, tables together": ours_untrained_trees, "ours": ours,
}  # fmt: skip


def compare(rows: Rows, splits: list[str], seeds: int, path: Path | None) -> dict[str, Any]:
    """Scores of every method by split and seed; goes on from `path`, which is written after every method.

    Splits: `families`, `models`, `random`: 5 folds; `machines`: each machine left out, with no measurement of it
    (`none`) and with 10 measured models of each table, which set one scale for the table (`ten`).
    """
    result: dict[str, Any] = json.loads(path.read_text()) if path and path.exists() else {}
    result["command"] = f"python -m experiments.reproductions.timm compare --splits {','.join(splits)} --seeds {seeds}"
    for split in splits:
        for seed in range(seeds):
            for name, method in METHODS.items():
                done = result.setdefault(split, {}).setdefault(name, [])
                if len(done) <= seed:
                    run = _machines if split == "machines" else _folds
                    done.append(run(rows, split, method, seed, f"{split} {seed} {name}"))
                    if path:
                        write_json(path, result)
    for split in splits:
        for name, each in result[split].items():
            middle, tail = (np.mean([one[key] for one in each]) for key in ("median_error", "p90_error"))
            print(f"{split:10} {name:32} median {middle:5.1f} %   90th percentile {tail:5.1f} %")
    return result


def _folds(rows: Rows, split: str, method: Predictor, seed: int, desc: str) -> dict[str, Any]:
    groups = {
        "families": [each.family for each in rows.measurements],
        "models": [each.model for each in rows.measurements],
        "random": [str(place) for place in range(len(rows))],
    }  # fmt: skip
    if split not in groups:
        raise ValueError(f"split is {split!r}; choose {', '.join(groups)}, machines")
    folds = folds_of(np.array(groups[split]), FOLDS, seed)
    predicted = np.zeros(len(rows))
    for fold in bar(range(FOLDS), desc=desc):
        predicted[folds == fold] = method(rows.where(folds != fold), rows.where(folds == fold), seed)
    result = scores(rows, predicted)
    kinds = np.array([kind_of(each.setting) for each in rows.measurements])
    percent = 100 * np.abs(np.expm1(predicted - rows.log_step))
    return result | {"kinds": {kind: float(np.median(percent[kinds == kind])) for kind in sorted(set(kinds))}}


def _machines(rows: Rows, split: str, method: Predictor, seed: int, desc: str) -> dict[str, Any]:
    machine = np.array([each.setting.machine for each in rows.measurements])
    none, ten = np.zeros(len(rows)), np.zeros(len(rows))
    for name in bar(np.unique(machine), desc=desc):
        chosen = machine == name
        none[chosen] = method(rows.where(~chosen), rows.where(chosen), seed)
    tables = np.array([each.table for each in rows.measurements])
    random = np.random.default_rng(seed)
    is_label = np.zeros(len(rows), bool)
    for table in np.unique(tables):
        places = np.flatnonzero(tables == table)
        labels = random.choice(places, LABELS, replace=False)
        is_label[labels] = True
        ten[places] = none[places] + np.median(rows.log_step[labels] - none[labels])
    kept = rows.where(~is_label)
    return scores(rows, none) | {"ten": scores(kept, ten[~is_label])}
