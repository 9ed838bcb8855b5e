"""Models of timm step times against their controls: families, models and machines that were left out of training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from experiments.reproductions.timm.model import (
    COVERED,
    Settings,
    efficiencies,
    folds_of,
    kind_of,
    predict,
    scores,
    train,
)
from experiments.reproductions.timm.programs import Rows
from experiments.reproductions.timm.step_time.kernels import CLASSES
from experiments.reproductions.timm.step_time.machines import machine_of
from experiments.reproductions.timm.step_time.model import NETWORK
from experiments.reproductions.timm.step_time.rows import TERMS
from experiments.reproductions.trees import train_trees
from gst.util.progress import bar
from gst.util.writing import write_json

FOLDS = 5
PULL = 10.0  # labels that the prior of a slope of 0 is worth
SHOWN = 250  # measurements of a machine in the picture
LABELS = 10  # measured models of a machine that was left out
Predicted = dict[str, Float64[np.ndarray, " rows"]]
Predictor = Callable[[Rows, Rows, int], Float64[np.ndarray, " rows"] | Predicted]


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


def ours(train_rows: Rows, rows: Rows, seed: int) -> Predicted:
    """The model with one network, and its two halves alone."""
    model = train(train_rows, Settings(networks=1), seed, calibrated=False)
    both, classes = (predict(each, rows)[0] for each in (model, model._replace(networks=[])))
    network = (both - (1 - NETWORK) * classes) / NETWORK
    return {"efficiencies of classes, trees": classes, "network on kernels, trees": network, "ours": both}


METHODS: dict[str, Predictor] = {
    "boosting on aggregates": boosting_on_aggregates, "roofline, one scale per table": roofline,
    "least squares per table": least_squares, "ours": ours,
}  # fmt: skip


def compare(rows: Rows, splits: list[str], seeds: int, path: Path | None) -> dict[str, Any]:
    """Scores of every method by split and seed; goes on from `path`, which is written after every method.

    Splits: `families`, `models`, `random`: 5 folds; `training`: as families, learned from rows of all modes and judged
    on those of training; `machines`: each machine left out, with no measurement of it (`none`) and with 10 measured
    models of each table, which set one scale for the table (`ten`).
    """
    result: dict[str, Any] = json.loads(path.read_text()) if path and path.exists() else {}
    result["command"] = f"python -m experiments.reproductions.timm compare --splits {','.join(splits)} --seeds {seeds}"
    for split in splits:
        for seed in range(seeds):
            for name, method in METHODS.items():
                if len(result.setdefault(split, {}).get(name, [])) <= seed:
                    run = _machines if split == "machines" else _folds
                    for part, score in run(rows, split, method, seed, f"{split} {seed} {name}").items():
                        points = score.pop("points", None)
                        if split == "families" and part == "ours" and not seed:
                            result["points"] = points
                        result[split].setdefault(part or name, []).append(score)
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
        "training": [each.family for each in rows.measurements],
        "models": [each.model for each in rows.measurements],
        "random": [str(place) for place in range(len(rows))],
    }  # fmt: skip
    if split not in groups:
        raise ValueError(f"split is {split!r}; choose {', '.join(groups)}, machines")
    folds = folds_of(np.array(groups[split]), FOLDS, seed)
    predicted: Predicted = {}
    for fold in bar(range(FOLDS), desc=desc):
        _put(predicted, method(rows.where(folds != fold), rows.where(folds == fold), seed), folds == fold)
    if split == "training":
        chosen = rows.is_mode("train")
        rows, folds = rows.where(chosen), folds[chosen]
        predicted = {name: log_step[chosen] for name, log_step in predicted.items()}
    kinds = np.array([kind_of(each.setting) for each in rows.measurements])
    result = {}
    for name, log_step in predicted.items():
        width = _widths_of_others(np.abs(log_step - rows.log_step), folds, kinds)
        percent = 100 * np.abs(np.expm1(log_step - rows.log_step))
        of_kind = {kind: float(np.median(percent[kinds == kind])) for kind in sorted(set(kinds))}
        result[name] = scores(rows, log_step, width) | {"kinds": of_kind, "points": _points(rows, log_step, seed)}
    return result


def _points(rows: Rows, log_step: Float64[np.ndarray, " rows"], seed: int) -> dict[str, list[list[float]]]:
    """Measured and predicted milliseconds of some rows of each machine, for a picture."""
    machine = np.array([each.setting.machine for each in rows.measurements])
    drawn = np.random.default_rng(seed).permutation(len(rows))
    pairs = np.exp(np.column_stack([rows.log_step, log_step]))
    return {
        str(name): [[float(f"{each:.4g}") for each in pairs[place]] for place in drawn[machine[drawn] == name][:SHOWN]]
        for name in np.unique(machine)
    }


def _put(predicted: Predicted, part: Float64[np.ndarray, " rows"] | Predicted, chosen: np.ndarray) -> None:
    for name, each in (part if isinstance(part, dict) else {"": part}).items():
        predicted.setdefault(name, np.zeros(len(chosen)))[chosen] = each


def _widths_of_others(error: np.ndarray, folds: np.ndarray, kinds: np.ndarray) -> Float64[np.ndarray, " rows"]:
    """Half the width of an interval that holds 90 % of the rows of a kind in the other folds."""
    result = np.zeros(len(error))
    for fold in np.unique(folds):
        for kind in np.unique(kinds[folds == fold]):
            others = (folds != fold) & (kinds == kind)
            width = np.quantile(error[others if others.any() else folds != fold], COVERED)
            result[(folds == fold) & (kinds == kind)] = width
    return result


def _by_labels(
    rows: Rows, predicted: Float64[np.ndarray, " rows"], chosen: np.ndarray, is_label: np.ndarray, tables: np.ndarray
) -> Float64[np.ndarray, " chosen"]:
    """Return corrections to the predictions of a machine: shrunken slopes on `_bounds`, and a median of each table."""
    bounds = _bounds(rows)[chosen]
    bounds = (bounds - bounds.mean(0)) / (bounds.std(0) + 1e-9)
    residual, labels, table = (rows.log_step - predicted)[chosen], is_label[chosen], tables[chosen]
    centred, target = bounds.copy(), residual.copy()
    for each in np.unique(table):
        of_table = table == each
        centred[of_table] -= bounds[of_table & labels].mean(0)
        target[of_table] -= np.median(residual[of_table & labels])
    system = centred[labels].T @ centred[labels] + PULL * np.eye(bounds.shape[1])
    result = bounds @ np.linalg.solve(system, centred[labels].T @ target[labels])
    for each in np.unique(table):
        of_table = table == each
        result[of_table] += np.median((residual - result)[of_table & labels])
    return np.asarray(result)


def _bounds(rows: Rows) -> Float64[np.ndarray, "rows 3"]:
    """Return ratios that bound a program: products to bytes, time to kernels, share of depthwise convolutions."""
    terms = rows.terms.reshape(len(rows), TERMS, -1)
    depthwise = terms[:, :2, CLASSES.index("conv depthwise")].sum(1) / np.maximum(terms[:, :3].sum((1, 2)), 1e-9)
    return np.column_stack([rows.columns[:, 4], rows.columns[:, 0] - rows.columns[:, 1], depthwise])


def _machines(rows: Rows, split: str, method: Predictor, seed: int, desc: str) -> dict[str, Any]:
    machine = np.array([each.setting.machine for each in rows.measurements])
    predicted: Predicted = {}
    for name in bar(np.unique(machine), desc=desc):
        _put(predicted, method(rows.where(machine != name), rows.where(machine == name), seed), machine == name)
    tables = np.array([each.table for each in rows.measurements])
    random = np.random.default_rng(seed)
    is_label = np.zeros(len(rows), bool)
    for table in np.unique(tables):
        is_label[random.choice(np.flatnonzero(tables == table), LABELS, replace=False)] = True
    place = np.array([machine_of(name).is_cpu for name in machine])
    result = {}
    for name, none in predicted.items():
        ten = none.copy()
        for each in np.unique(machine):
            ten[machine == each] += _by_labels(rows, none, machine == each, is_label, tables)
        whole, kept = np.ones(len(rows), bool), ~is_label
        result[name] = {
            part: scores(
                rows.where(chosen),
                log_step[chosen],
                _widths_of_others(np.abs(log_step - rows.log_step)[chosen], machine[chosen], place[chosen].astype(str)),
            )
            for part, log_step, chosen in (
                ("all", none, whole),
                ("gpus", none, ~place),
                ("cpus", none, place),
                ("ten", ten, kept),
                ("ten gpus", ten, kept & ~place),
                ("ten cpus", ten, kept & place),
            )
            if chosen.any()
        }
        result[name] = result[name].pop("all") | result[name]
    return result
