"""Whole transformers on a GPU never measured: choice of settings, the model, and its controls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.reproductions.neusight.model import Model, Settings
from experiments.reproductions.neusight.operators import FAMILIES, FEATURES, Operators, operators_of
from gst.data.neusight import Case, Dataset
from gst.files.writing import write_json

TARGET = "NVIDIA_H100_80GB_HBM3"
LEFT_OUT = (
    ("NVIDIA_A100-PCIE-40GB", "NVIDIA_A100_80GB_PCIe"), ("NVIDIA_L4",), ("Tesla_V100-PCIE-32GB",),
)  # fmt: skip
"""Machines that are left out in turn to choose settings; the first of each is judged, its twin is left out as well."""
PUBLISHED = {"NeuSight": "neusight", "Habitat": "habitat", "Li et al.": "micro", "NeuSight's roofline": "roofline"}


class Candidate(NamedTuple):
    """What is chosen between: machines to learn from and settings.

    Args:
        name: in the results.
        vendors: beginnings of the names of machines to learn from.
        settings: of the model.
    """

    name: str
    vendors: tuple[str, ...]
    settings: Settings


def candidates() -> list[Candidate]:
    """Two choices of machines, four of what the network knows of a machine, two widths."""
    vendors = {"NVIDIA": ("NVIDIA", "Tesla"), "NVIDIA and AMD": ("NVIDIA", "Tesla", "AMD")}
    shape = FEATURES[:6]
    return [
        Candidate(f"{names}, {' '.join(rates) or 'shape alone'}, width {width}", starts,
                  Settings((*shape, *rates), width))
        for names, starts in vendors.items()
        for rates in ((), ("watts",), ("lanes",), ("balance",))
        for width in (4, 8)
    ]  # fmt: skip


def compare(
    dataset: Dataset, seeds: int, target: str = TARGET, left_out: Sequence[Sequence[str]] = LEFT_OUT,
    chosen_from: Sequence[Candidate] = (), json_path: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Choose settings without `target`, then judge the choice and its controls on inference of `target`.

    Args:
        dataset: as `gst.data.neusight.read_neusight` returns it.
        seeds: trainings of the chosen model.
        target: machine of which nothing is learnt.
        left_out: groups of machines; the first of each group is predicted without the group.
        chosen_from: candidates; all of `candidates` by default.
        json_path: the result is written here.

    Raises:
        ValueError: a machine has no operators measured in inference.
    """
    measured = [each for each in dataset.cases if each.operations and not each.option and each.layers]
    groups = {group[0]: tuple(group) for group in left_out}
    choice: dict[str, dict[str, float]] = {}
    all_candidates = list(chosen_from) or candidates()
    for each in all_candidates:
        errors = {}
        for name, group in groups.items():
            training, judged = _split(dataset, measured, (*group, target), name, each.vendors)
            whole = judged.whole(Model(training, each.settings, 0).predict(judged))
            errors[name] = float(100 * np.abs(whole / judged.whole_ms - 1).mean())
        choice[each.name] = {**errors, "mean": float(np.mean(list(errors.values())))}
        shown = ", ".join(f"{name} {error:.1f} %" for name, error in choice[each.name].items())
        print(f"{each.name:40} {shown}", flush=True)
    best = min(all_candidates, key=lambda each: choice[each.name]["mean"])
    print(f"chosen without {target}: {best.name}")
    machines = {}
    for name, group in {target: (target,), **{name: (*group, target) for name, group in groups.items()}}.items():
        training, judged = _split(dataset, measured, group, name, best.vendors)
        ours = _inference(measured, name)
        predictions = _predictions(training, judged, best.settings, seeds)
        for shown, column in PUBLISHED.items():
            times = [_published(dataset, case, column) for case in ours]
            if None not in times:
                predictions[f"{shown} (published)"] = [np.array(times, float)]
        machines[name] = {
            "cases": [f"{case.model} {case.length} x {case.batch}" for case in ours],
            "measured_ms": [case.time_ms for case in ours],
            "rows": {method: _row(times, judged.whole_ms) for method, times in predictions.items()},
        }
        for method, row in machines[name]["rows"].items():
            low, high = row["interval"]
            print(f"{name:24} {method:48} {row['mean']:6.1f} % ({low:.1f} to {high:.1f})", flush=True)
    result = {
        "target": target, "chosen": best.name, "choice": choice, "machines": machines,
        "neusight_on_all_its_cases": _all_published(dataset, target),
    }  # fmt: skip
    if json_path:
        write_json(json_path, result)
    return result


def _split(
    dataset: Dataset, measured: Sequence[Case], left_out: Sequence[str], judged: str, vendors: tuple[str, ...]
) -> tuple[Operators, Operators]:
    """Operators to learn from, and those of inference on the machine that is judged."""
    training = [each for each in measured if each.machine not in left_out and each.machine.startswith(vendors)]
    return operators_of(training, dataset.machines), operators_of(_inference(measured, judged), dataset.machines)


def _predictions(training: Operators, judged: Operators, settings: Settings, seeds: int) -> dict[str, list[np.ndarray]]:
    """Times of whole models by each method, once for each seed where it draws numbers."""
    roofline = judged.whole(judged.roofline_ms())
    scale = float(np.median(training.whole_ms / training.whole(training.roofline_ms())))
    return {
        "measured operators added up (no prediction)": [judged.whole(judged.measured_ms)],
        "roofline": [roofline],
        "roofline with one scale": [roofline * scale],
        "roofline with one scale for each family": [judged.whole(_by_family(training, judged))],
        "boosting without physics": [judged.whole(_boosting(training, judged, seed)) for seed in range(seeds)],
        "ours": [judged.whole(Model(training, settings, seed).predict(judged)) for seed in range(seeds)],
    }


def _row(predictions: Sequence[np.ndarray], whole_ms: np.ndarray) -> dict[str, Any]:
    """Mean error in percent with its 90 % interval over cases (10,000 bootstrap draws), of each seed and case."""
    errors = np.array([100 * np.abs(each / whole_ms - 1) for each in predictions])
    cases = errors.mean(0)
    draws = np.random.default_rng(0).integers(len(cases), size=(10_000, len(cases)))
    return {
        "mean": float(cases.mean()), "interval": np.percentile(cases[draws].mean(1), [5, 95]).tolist(),
        "seeds": errors.mean(1).tolist(), "cases": cases.tolist(),
    }  # fmt: skip


def _inference(cases: Sequence[Case], machine: str) -> list[Case]:
    chosen = [each for each in cases if each.machine == machine and each.mode == "inf"]
    if not chosen:
        raise ValueError(f"{machine}: no operators were measured in inference; add its label/{machine}")
    return chosen


def _by_family(training: Operators, judged: Operators) -> np.ndarray:
    """Roofline times the median ratio of its family."""
    families = [each.columns[:, : len(FAMILIES)].argmax(1) for each in (training, judged)]
    use = training.is_consistent[training.case]
    ratio = training.measured_ms / training.roofline_ms()
    scales = [
        np.median(ratio[use & (families[0] == family)]) if (use & (families[0] == family)).any() else 1.0
        for family in range(len(FAMILIES))
    ]
    return np.asarray(judged.roofline_ms() * np.array(scales)[families[1]])


def _boosting(training: Operators, judged: Operators, seed: int) -> np.ndarray:
    """Gradient-boosted trees of the logarithm of time on features and rates."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    use = training.is_consistent[training.case]
    trees = HistGradientBoostingRegressor(loss="absolute_error", random_state=seed)
    trees.fit(np.hstack([training.columns, training.rates])[use], np.log(training.measured_ms[use]))
    return np.asarray(np.exp(trees.predict(np.hstack([judged.columns, judged.rates]))))


def _published(dataset: Dataset, case: Case, column: str) -> float | None:
    """Time that `summary.csv` states for a case."""
    key = (case.machine, case.model, case.mode, str(case.length), str(case.batch), "")
    for row in dataset.published:
        if tuple(row[each] for each in ("device", "model_name", "mode", "seqlen", "batch", "option")) == key:
            return float(row[f"{column}_all_e2e_latency"])
    return None


def _all_published(dataset: Dataset, target: str) -> dict[str, float] | None:
    """NeuSight's mean error on all inference of `target` in `summary.csv`, and the number of cases."""
    rows = [row for row in dataset.published if (row["device"], row["mode"], row["option"]) == (target, "inf", "")]
    errors = [
        100 * abs(float(row["neusight_all_e2e_latency"]) / float(row["label_all_e2e_latency"]) - 1) for row in rows
    ]
    return {"mean": float(np.mean(errors)), "cases": len(errors)} if errors else None
