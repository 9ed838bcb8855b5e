"""Training of the model of step times (`step_time.model`): efficiencies of kernel classes by table (least
squares), trees on what they leave over, and the widths of intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64

from experiments.reproductions.timm.networks import examples_of, train_network
from experiments.reproductions.timm.programs import Rows
from experiments.reproductions.timm.step_time.kernels import CLASSES
from experiments.reproductions.timm.step_time.model import Model, Trees, kind_of, network_times, tree_columns
from experiments.reproductions.timm.step_time.rows import PRODUCTS as WITH_PRODUCTS
from experiments.reproductions.timm.step_time.rows import TERMS
from experiments.reproductions.trees import train_trees
from gst.util.progress import bar

COVERED = 0.9  # share of measurements that an interval should hold
TOWARDS_POOL = 1e-3  # weight of the pull of a table's efficiencies towards those of all tables of its kind
MOST = 20.0  # times longer than at peak rates that a class may take; without it, resizes took thousands
ROUNDS = 6  # of reweighting: least squares that approach least absolute relative errors


class Settings(NamedTuple):
    """Sizes of a model.

    Args:
        boosted: sets of trees, whose corrections are averaged.
        trees: of each set.
        networks: over kernels, whose times are averaged.
        folds: of families that are left out one at a time to set the width of intervals.
    """

    boosted: int = 2
    trees: int = 300
    networks: int = 2
    folds: int = 3


def predict(model: Model, rows: Rows) -> tuple[Float64[np.ndarray, " rows"], Float64[np.ndarray, " rows"]]:
    """log of milliseconds of each row, and half the width of its interval."""
    return model.predict([each.setting for each in rows.measurements], *rows[1:4], rows.programs)


def train(rows: Rows, settings: Settings, seed: int, calibrated: bool = True) -> Model:
    """Train on all of `rows`.

    Args:
        calibrated: set the widths of intervals by predictions of families, and of machines, that were left out, which
            takes `settings.folds` trainings and one for each machine, without networks; otherwise they are 1.
    """
    tables = sorted({each.setting for each in rows.measurements})
    table = np.array([tables.index(each.setting) for each in rows.measurements])
    kinds = np.array([kind_of(each) for each in tables])
    pools = {"": efficiencies(rows.terms, rows.log_step)}
    weights = np.zeros((len(tables), rows.terms.shape[1]))
    for kind in sorted(set(kinds)):
        chosen = kinds[table] == kind
        pools[kind] = efficiencies(rows.terms[chosen], rows.log_step[chosen])
        for place in np.flatnonzero(kinds == kind):
            chosen = table == place
            weights[place] = efficiencies(rows.terms[chosen], rows.log_step[chosen], pools[kind])
    model = Model(tables, weights, pools, [], [], [], {"": 1.0, "new machine": 1.0})
    boosted = _corrections(rows, rows.terms * weights[table], settings, seed)
    networks, corrected = [], []
    if settings.networks:
        examples = examples_of(rows)
        networks = [train_network(rows, examples, tables, seed + each) for each in range(settings.networks)]
        own = {setting: [place] for place, setting in enumerate(tables)}
        weighted = network_times(networks, rows.programs, [each.setting for each in rows.measurements], own)
        corrected = _corrections(rows, weighted, settings, seed)
    model = model._replace(boosted=boosted, networks=networks, corrected=corrected)
    return model._replace(widths=_widths(rows, settings, seed)) if calibrated else model


def save(model: Model, path: Path) -> None:
    """Write a file that `step_time.model.load` reads without unpickling."""

    def small(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.int32 if array.dtype.kind == "i" else np.float32))

    torch.save(
        {
            "settings": [tuple(each) for each in model.settings], "weights": small(model.weights),
            "pools": {str(kind): small(each) for kind, each in model.pools.items()},
            "widths": {str(kind): each for kind, each in model.widths.items()},
            "trees": [(each.base, [small(array) for array in each[1:]]) for each in model.boosted],
            "networks": [[small(array) for array in each] for each in model.networks],
            "corrected": [(each.base, [small(array) for array in each[1:]]) for each in model.corrected],
        }, path,
    )  # fmt: skip


def _corrections(rows: Rows, weighted: Float64[np.ndarray, "rows terms"], settings: Settings, seed: int) -> list[Trees]:
    """Sets of trees that correct the logarithm of the sum of `weighted`, milliseconds by term and class."""
    residual = rows.log_step - np.log(np.maximum(weighted.sum(1), 1e-6))
    columns = tree_columns(weighted, rows.columns, rows.setting)
    return [
        train_trees(
            columns, residual, np.ones(len(rows)), seed + member, trees=settings.trees, leaves=16, rate=0.05, fewest=30,
            share=0.3, loss="absolute_error",
        )
        for member in range(settings.boosted)
    ]  # fmt: skip


def efficiencies(
    terms: Float64[np.ndarray, "rows terms"], log_step: Float64[np.ndarray, " rows"],
    pool: Float64[np.ndarray, " terms"] | None = None,
) -> Float64[np.ndarray, " terms"]:  # fmt: skip
    """Weights >= 0 with the least absolute relative error, drawn towards `pool`, without it weakly towards 1.3.

    All weights are bounded, those of launches and of parameters more closely, and only products have a term of
    floating-point operations: otherwise these terms stand for elements, and the efficiencies of one machine say
    nothing about another.
    """
    from scipy.optimize import lsq_linear

    upper = _most() if terms.shape[1] == TERMS * len(CLASSES) else np.full(terms.shape[1], np.inf)
    ratios = terms / np.exp(log_step)[:, None]
    pull = TOWARDS_POOL if pool is not None else TOWARDS_POOL / 10
    scale = np.sqrt((ratios**2).mean(0)) + 1e-12
    prior = np.diag(np.sqrt(pull * len(ratios)) * scale)
    target = prior @ (pool if pool is not None else np.full(len(scale), 1.3))
    share = np.ones(len(ratios))
    for _ in range(ROUNDS):
        # the triangle of a QR decomposition has the same solution and as few rows as there are weights
        system = np.linalg.qr(np.column_stack([np.concatenate([ratios * share[:, None], prior]),
                                               np.concatenate([share, target])]), mode="r")  # fmt: skip
        weights = lsq_linear(system[:, :-1], system[:, -1], (0, upper), method="bvls", max_iter=500).x
        share = np.sqrt(0.1 / (np.abs(ratios @ weights - 1) + 0.02))
    return weights


def _most() -> Float64[np.ndarray, " terms"]:
    most = np.full((TERMS, len(CLASSES)), MOST)
    most[0, [place for place in range(len(CLASSES)) if place not in WITH_PRODUCTS]] = 1e-6
    most[2], most[3] = 10.0, 10.0
    return most.ravel()


def _widths(rows: Rows, settings: Settings, seed: int) -> dict[str, float]:
    """Return the 90 % quantiles of errors of log time: by kind of table for new families, and for held-out machines."""
    few = settings._replace(boosted=1, networks=0)
    families = np.array([each.family for each in rows.measurements])
    folds = folds_of(families, settings.folds, seed)
    errors = np.zeros(len(rows))
    for fold in bar(range(settings.folds), desc="families left out"):
        model = train(rows.where(folds != fold), few, seed + fold, calibrated=False)
        rest = rows.where(folds == fold)
        errors[folds == fold] = np.abs(predict(model, rest)[0] - rest.log_step)
    kinds = np.array([kind_of(each.setting) for each in rows.measurements])
    widths = {kind: float(np.quantile(errors[kinds == kind], COVERED)) for kind in sorted(set(kinds))}
    machines = np.array([each.setting.machine for each in rows.measurements])
    unseen = []
    for machine in bar(sorted(set(machines)), desc="machines left out"):
        if len(set(machines)) > 1:
            rest = rows.where(machines == machine)
            model = train(rows.where(machines != machine), few, seed, calibrated=False)
            unseen.append(np.abs(predict(model, rest)[0] - rest.log_step))
    return widths | {"new machine": float(np.quantile(np.concatenate(unseen), COVERED)) if unseen else 1.0}


def folds_of(groups: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """The fold of each row; a group is in one of them."""
    names, place = np.unique(groups, return_inverse=True)
    return (np.random.default_rng(seed).permutation(len(names)) % folds)[place]


def scores(rows: Rows, log_step: np.ndarray, width: np.ndarray | None = None) -> dict[str, Any]:
    """`median_error` and `p90_error` (relative, %), `coverage` of the intervals, `families`; the same by machine."""

    def of(chosen: np.ndarray) -> dict[str, Any]:
        error = log_step[chosen] - rows.log_step[chosen]
        percent = 100 * np.abs(np.expm1(error))
        covered = None if width is None else float((np.abs(error) <= width[chosen]).mean())
        names = {each.family for each, is_in in zip(rows.measurements, chosen, strict=True) if is_in}
        return {"median_error": float(np.median(percent)), "p90_error": float(np.quantile(percent, 0.9)),
                "coverage": covered, "families": len(names), "measurements": int(chosen.sum())}  # fmt: skip

    machine = np.array([each.setting.machine for each in rows.measurements])
    return of(np.ones(len(rows), bool)) | {"machines": {str(each): of(machine == each) for each in np.unique(machine)}}
