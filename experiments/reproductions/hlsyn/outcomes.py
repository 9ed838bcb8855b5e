"""Validity of HLSyn designs and the resources that they use: boosted trees on analytical counts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64
from scipy.stats import kendalltau, rankdata

from experiments.reproductions.hlsyn.cycles.candidates import costliest_loops, family
from experiments.reproductions.hlsyn.cycles.cycles import LOOP_FEATURES, PROGRAM_FEATURES, Estimate, estimate, facts
from experiments.reproductions.hlsyn.cycles.resources import RESOURCES, resources
from experiments.reproductions.hlsyn.source import HlsKernel, canonical
from experiments.reproductions.hlsyn.splits import by_group
from experiments.reproductions.timm.step_time.model import Trees
from experiments.reproductions.trees import train_trees
from gst.util.progress import bar
from gst.util.writing import write_json

LEAST = 0.01  # of a resource, added before the logarithm; the data round to it
SUMS = [PROGRAM_FEATURES.index(name) for name in ("narrow_load", "loops", "operations", "is_new_tool", "log_parallel",
                                                  "log_flattened", "arrays", "most_elements")]  # fmt: skip
ANALYTICAL = len(PROGRAM_FEATURES) + 2 * len(LOOP_FEATURES)  # column at which `RESOURCE_FEATURES` begin


class Outcomes(NamedTuple):
    """Every design of several programs, synthesised or not.

    Args:
        columns: `PROGRAM_FEATURES`, `LOOP_FEATURES` of the two costliest loops, and `RESOURCE_FEATURES`.
        is_valid: it was synthesised and fits.
        usage: fraction of each of `RESOURCES`; NaN where it was not synthesised.
        group: program of each design, a number into `names`.
        names: of the programs, `v18/atax`.
    """

    columns: Float32[np.ndarray, "designs columns"]
    is_valid: Bool[np.ndarray, " designs"]
    usage: Float64[np.ndarray, "designs 4"]
    group: Int64[np.ndarray, " designs"]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.group)

    def where(self, chosen: Bool[np.ndarray, " designs"]) -> Outcomes:
        """The chosen designs."""
        return Outcomes(self.columns[chosen], self.is_valid[chosen], self.usage[chosen], self.group[chosen], self.names)


def outcomes_of(kernels: Sequence[HlsKernel], broken: dict[str, str] | None = None) -> Outcomes:
    """All designs of `kernels`.

    Args:
        broken: where it is given, a kernel that cannot be estimated is left out, and its label and what is wrong with
            it are written here, instead of an error for all.

    Raises:
        ValueError: there is no design.
    """
    rows: list[tuple[np.ndarray, bool, tuple[float, ...], int]] = []
    names: list[str] = []
    for kernel in bar(kernels, desc="outcomes"):
        try:
            found = list(_rows(kernel, len(names)))
        except (ValueError, ArithmeticError, LookupError, RecursionError) as error:
            if broken is None:
                raise
            broken[kernel.label] = f"no estimate: {type(error).__name__}: {error}"
            continue
        names.append(kernel.label)
        rows += found
    if not rows:
        raise ValueError("there is no design whose outcome could be predicted")
    columns, valid, usage, group = zip(*rows, strict=True)
    return Outcomes(np.stack(columns), np.array(valid), np.array(usage), np.array(group), tuple(names))


def _rows(kernel: HlsKernel, group: int) -> list[tuple[np.ndarray, bool, tuple[float, ...], int]]:
    known = facts(kernel.kernel)
    met: dict[tuple, np.ndarray] = {}
    result: list[tuple[np.ndarray, bool, tuple[float, ...], int]] = []
    for design in kernel.designs:
        key = tuple(sorted(canonical(kernel.kernel, design.point).items()))
        if key not in met:
            each: Estimate = estimate(kernel.kernel, design.point, kernel.tool, known)
            counts = resources(kernel.kernel, design.point, kernel.tool, known).features
            met[key] = np.concatenate([each.program, costliest_loops(each), counts])
        is_done = np.isfinite(design.cycles)
        result.append((met[key], design.is_valid, design.resources if is_done else (np.nan,) * 4, group))
    return result


class OutcomeModel(NamedTuple):
    """Trees for validity (log odds), and for what the analytical estimate of each of `RESOURCES` gets wrong."""

    validity: Trees
    usage: tuple[Trees, ...]

    def predict(
        self, outcomes: Outcomes
    ) -> tuple[Float64[np.ndarray, " designs"], Float64[np.ndarray, "designs 4"]]:  # fmt: skip
        """Probability that each design is valid, and log2 of (fraction of each resource + `LEAST`)."""
        usage = [trees.predict(columns_of(outcomes)) for trees in self.usage]
        odds = self.validity.predict(validity_columns(outcomes))
        return 1 / (1 + np.exp(-odds)), analytical(outcomes) + np.stack(usage, axis=1)


def columns_of(outcomes: Outcomes) -> Float32[np.ndarray, "designs columns"]:
    """`PROGRAM_FEATURES` and `RESOURCE_FEATURES`."""
    return np.delete(outcomes.columns, np.s_[len(PROGRAM_FEATURES) : ANALYTICAL], axis=1)


def validity_columns(outcomes: Outcomes) -> Float32[np.ndarray, "designs columns"]:
    """Sums over whole designs and `RESOURCE_FEATURES`; more columns made validity of other families worse."""
    return np.hstack([outcomes.columns[:, SUMS], outcomes.columns[:, ANALYTICAL:]])


def analytical(outcomes: Outcomes) -> Float64[np.ndarray, "designs 4"]:
    """log2 of (fraction of each resource + `LEAST`) by the analytical estimate."""
    logs = outcomes.columns[:, ANALYTICAL : ANALYTICAL + len(RESOURCES)].astype(np.float64)
    result: np.ndarray = np.log2(np.exp2(logs) - 0.001 + LEAST)
    return result


def target_of(outcomes: Outcomes) -> Float64[np.ndarray, "designs 4"]:
    """log2 of (fraction of each resource + `LEAST`) as measured; NaN where a design was not synthesised."""
    result: np.ndarray = np.log2(outcomes.usage + LEAST)
    return result


def weights_of(outcomes: Outcomes) -> Float64[np.ndarray, " designs"]:
    """A program weighs as the root of its designs."""
    result: np.ndarray = np.bincount(outcomes.group)[outcomes.group] ** -0.5
    return result


def train_outcomes(outcomes: Outcomes, seed: int) -> OutcomeModel:
    """Train on all designs; resources on those that were synthesised.

    Raises:
        ValueError: no design was synthesised, or all are valid, or none is.
    """
    done = np.isfinite(outcomes.usage[:, 0])
    if not done.any() or outcomes.is_valid.all() or not outcomes.is_valid.any():
        raise ValueError("validity is learned from designs of which some are valid and some are not; give all of HLSyn")
    columns, weight = columns_of(outcomes), weights_of(outcomes)
    missing = (target_of(outcomes) - analytical(outcomes))[done]
    return OutcomeModel(
        train_trees(validity_columns(outcomes), outcomes.is_valid.astype(np.int64), weight, seed, loss="log_loss"),
        tuple(train_trees(columns[done], missing[:, each], weight[done], seed) for each in range(len(RESOURCES))),
    )


def outcome_scores(
    outcomes: Outcomes, probability: Float64[np.ndarray, " designs"], usage: Float64[np.ndarray, "designs 4"]
) -> dict[str, Any]:
    """Scores of validity and of each resource.

    `validity`: area under the ROC curve over all designs and the mean of it over programs, balanced accuracy, and Brier
    score; None where designs are all valid, or none is. `resources`: rmse of log2 (fraction + `LEAST`) over designs
    that were synthesised, and the mean of tau over programs whose designs differ.
    """
    programs = [outcomes.group == each for each in np.unique(outcomes.group)]
    areas = [area for rows in programs if (area := roc_area(outcomes.is_valid[rows], probability[rows])) is not None]
    rates = [
        float(((probability[outcomes.is_valid == kind] >= 0.5) == kind).mean())
        for kind in (True, False) if (outcomes.is_valid == kind).any()
    ]  # fmt: skip
    result: dict[str, Any] = {
        "validity": {
            "auc": roc_area(outcomes.is_valid, probability),
            "auc_in_program": float(np.mean(areas)) if areas else None,
            "balanced_accuracy": float(np.mean(rates)) if len(rates) == 2 else None,
            "brier": float(np.mean((probability - outcomes.is_valid) ** 2)),
            "designs": len(outcomes),
        },
        "resources": {},
    }  # fmt: skip
    target, done = target_of(outcomes), np.isfinite(outcomes.usage[:, 0])
    for place, name in enumerate(RESOURCES):
        taus = [
            float(np.nan_to_num(kendalltau(usage[rows & done, place], target[rows & done, place]).statistic))
            for rows in programs if (rows & done).any() and np.ptp(target[rows & done, place]) > 0
        ]  # fmt: skip
        error = (usage - target)[done, place]
        result["resources"][name] = {
            "rmse": float(np.sqrt(np.mean(error**2))) if done.any() else None,
            "tau": float(np.mean(taus)) if taus else None,
        }
    return result


def roc_area(truth: Bool[np.ndarray, " rows"], score: Float64[np.ndarray, " rows"]) -> float | None:
    """Area under the ROC curve: how often a row that is true has the higher score, ties counting half; None if all rows
    are alike.

    Examples:
        >>> roc_area(np.array([True, False, True]), np.array([0.9, 0.5, 0.5]))
        0.75
    """
    positive, negative = int(truth.sum()), int((~truth).sum())
    if not positive or not negative:
        return None
    ranks = rankdata(score)[truth].sum() - positive * (positive + 1) / 2
    return float(ranks / (positive * negative))


def outcome_table(outcomes: Outcomes, seeds: int, path: Path | None) -> dict[str, Any]:
    """Scores of `outcome_scores` on five folds of families, of ours and its controls, and their means over seeds.

    Controls: the mean of the other families, boosting on sums over whole designs, and, for resources, the analytical
    estimate alone. Written to `path` after each seed.
    """
    runs: dict[str, list[dict[str, Any]]] = {}
    command = f"python -m experiments.reproductions.hlsyn outcomes --seeds {seeds}"
    result: dict[str, Any] = {"command": command, "designs": len(outcomes), "valid": int(outcomes.is_valid.sum())}
    for seed in range(seeds):
        folds = by_group([family(outcomes.names[each].split("/")[-1]) for each in outcomes.group], 5, seed)
        shape = (len(outcomes), 1 + len(RESOURCES))
        rows = {name: np.zeros(shape) for name in ("mean of other families", "boosting on aggregates", "ours")}
        for fold in range(5):
            learned, rest = outcomes.where(folds != fold), outcomes.where(folds == fold)
            model = train_outcomes(learned, seed)
            predictions = (_mean(learned, rest), _sums(learned, rest, seed), model.predict(rest))
            for row, (chance, usage) in zip(rows.values(), predictions, strict=True):
                row[folds == fold] = np.column_stack([chance, usage])
        rows["analytical estimate alone"] = np.column_stack(
            [rows["mean of other families"][:, 0], analytical(outcomes)]
        )
        for name, row in rows.items():
            score = outcome_scores(outcomes, row[:, 0], row[:, 1:])
            runs.setdefault(name, []).append(score)
            print(name, score, flush=True)
        result["rows"] = {name: _means(each) | {"seeds": each} for name, each in runs.items()}
        if path:
            write_json(path, result)
    return result


def _means(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means of nested numbers; None where any is."""
    return {
        key: _means([run[key] for run in runs]) if isinstance(value, dict)
        else None if any(run[key] is None for run in runs) else float(np.mean([run[key] for run in runs]))
        for key, value in runs[0].items()
    }  # fmt: skip


def _mean(learned: Outcomes, rest: Outcomes) -> tuple[np.ndarray, np.ndarray]:
    weight, done = weights_of(learned), np.isfinite(learned.usage[:, 0])
    usage = np.average(target_of(learned)[done], axis=0, weights=weight[done])
    return np.full(len(rest), np.average(learned.is_valid, weights=weight)), np.tile(usage, (len(rest), 1))


def _sums(learned: Outcomes, rest: Outcomes, seed: int) -> tuple[np.ndarray, np.ndarray]:
    weight, done = weights_of(learned), np.isfinite(learned.usage[:, 0])
    columns, asked = learned.columns[:, SUMS], rest.columns[:, SUMS]
    target = target_of(learned)
    odds = train_trees(columns, learned.is_valid.astype(np.int64), weight, seed, loss="log_loss").predict(asked)
    usage = [
        train_trees(columns[done], target[done, each], weight[done], seed).predict(asked)
        for each in range(len(RESOURCES))
    ]
    return 1 / (1 + np.exp(-odds)), np.stack(usage, axis=1)
