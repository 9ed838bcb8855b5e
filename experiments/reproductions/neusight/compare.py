"""Whole transformers on a GPU never measured: choice of settings, the model, its intervals, and its controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.reproductions.neusight.dataset import Case, Dataset
from experiments.reproductions.neusight.left_out import (
    Errors,
    candidates,
    choose,
    errors_left_out,
    half_width,
    inference,
    mean_error,
    of_left_out,
    usable,
)
from experiments.reproductions.neusight.model import Model, Settings, backward_ratios
from experiments.reproductions.neusight.network import Networks, Training
from experiments.reproductions.neusight.operators import FAMILIES, Operators, operators_of
from gst.util.writing import write_json

TARGET = "NVIDIA_H100_80GB_HBM3"
A100S = ("NVIDIA_A100-PCIE-40GB", "NVIDIA_A100_80GB_PCIe")
GROUPS = {
    A100S[0]: A100S, "NVIDIA_L4": ("NVIDIA_L4",), "Tesla_V100-PCIE-32GB": ("Tesla_V100-PCIE-32GB",),
    "Tesla_T4": ("Tesla_T4",), "Tesla_P100-PCIE-16GB": ("Tesla_P100-PCIE-16GB",), "Tesla_P4": ("Tesla_P4",),
}  # fmt: skip
"""Machines that are left out one at a time, with their twins."""
TRAINED = {TARGET: TARGET, A100S[1]: A100S[0], **{name: name for name in ("NVIDIA_L4", "Tesla_V100-PCIE-32GB")}}
"""Machines on which training was measured -> what is left out then."""
NEUSIGHT_LEARNT = (A100S[0], "Tesla_V100-PCIE-32GB", "Tesla_T4", "Tesla_P100-PCIE-16GB", "Tesla_P4")
"""GPUs of NeuSight's own training set (data/dataset/train/device_configs of its repository)."""
PUBLISHED = {"NeuSight": "neusight", "Habitat": "habitat", "Li et al.": "micro", "NeuSight's roofline": "roofline"}


class Study(NamedTuple):
    """Data and settings shared by all comparisons.

    Args:
        dataset, cases: measurements, and those of them that can be used.
        groups: machine that is left out -> it and its twins.
        target: machine that is always left out.
        settings: what is chosen between.
        errors: of them on machines left out.
        seeds: trainings of the controls that draw numbers.
    """

    dataset: Dataset
    cases: list[Case]
    groups: Mapping[str, tuple[str, ...]]
    target: str
    settings: list[Settings]
    errors: Errors
    seeds: int


def compare(
    dataset: Dataset, seeds: int, target: str = TARGET, groups: Mapping[str, tuple[str, ...]] = GROUPS,
    chosen_from: Sequence[Settings] = (), json_path: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Choose settings without `target`, then judge the choice and its controls on `target` and on machines left out.

    The settings of each machine left out are chosen on the others, by models that never saw it.

    Args:
        dataset: as `experiments.reproductions.neusight.dataset.read_neusight` returns it.
        seeds: trainings of the controls that draw numbers.
        target: machine of which nothing is learnt.
        groups: machine to be left out -> it and its twins.
        chosen_from: settings; all of `candidates` by default.
        json_path: the result is written here.

    Raises:
        ValueError: a machine has no operators measured in inference.
    """
    cases = usable(dataset)
    judged = {name: inference(cases, name) for name in (target, *groups)}
    settings = list(chosen_from) or candidates()
    errors = errors_left_out(dataset, cases, groups, target, settings)
    study = Study(dataset, cases, groups, target, settings, errors, seeds)
    trained = {name: [each for each in cases if each.machine == name and each.mode == "train"] for name in TRAINED}
    result = {
        "target": target, "neusight_learnt": list(NEUSIGHT_LEARNT),
        "choice": {
            each.name(): {name: mean_error({name: row}) for name, row in of_left_out(errors, each, None).items()}
            for each in settings
        },
        "machines": {name: _judgement(study, name, each) for name, each in judged.items()},
        "training": {
            name: _judgement(study, TRAINED[name], each)
            for name, each in trained.items()
            if each and TRAINED[name] in judged
        },
        "target_by_setting": _by_setting(study),
        "neusight_on_all_its_cases": _all_published(dataset, target),
    }  # fmt: skip
    if json_path:
        write_json(json_path, result)
    return result


def _judgement(study: Study, group: str, judged: Sequence[Case]) -> dict[str, Any]:
    """Errors of every method on `judged`, cases of one machine, when `group` and the target are left out."""
    without = None if group == study.target else group
    chosen = choose(study.errors, study.settings, without)
    width = half_width(of_left_out(study.errors, chosen, without))
    hidden = {study.target, *study.groups.get(group, ())}
    training = operators_of([each for each in study.cases if each.machine not in hidden], study.dataset.machines)
    operators = operators_of(judged, study.dataset.machines)
    if judged[0].mode == "inf":
        predictions = _predictions(training, operators, chosen, study.seeds)
    else:
        predictions = _steps(training, operators, chosen)
    for shown, column in PUBLISHED.items():
        times = [_published(study.dataset, case, column) for case in judged]
        if None not in times:
            predictions[f"{shown} (published)"] = [np.array(times, float)]
    away = np.abs(np.log(predictions["ours"][0] / operators.step_ms))
    result = {
        "chosen": chosen.name(),
        "cases": [f"{case.model} {case.length} x {case.batch}" for case in judged],
        "measured_ms": operators.step_ms.tolist(), "predicted_ms": predictions["ours"][0].tolist(),
        "interval_percent": [100 * float(np.expm1(sign * width)) for sign in (-1, 1)],
        "in_interval": float(100 * (away <= width).mean()),
        "rows": {method: _row(times, operators.step_ms) for method, times in predictions.items()},
    }  # fmt: skip
    for method, row in result["rows"].items():
        low, high = row["interval"]
        name = f"{judged[0].machine}, {judged[0].mode}"
        print(f"{name:30} {method:44} {row['mean']:6.1f} % ({low:.1f} to {high:.1f})", flush=True)
    return result


def _by_setting(study: Study) -> dict[str, float]:
    """Mean error on the target of every setting: how much hangs on the choice, which is made without them."""
    training = operators_of([each for each in study.cases if each.machine != study.target], study.dataset.machines)
    judged = operators_of(inference(study.cases, study.target), study.dataset.machines)
    return {
        each.name(): _row([judged.whole(Model(training, each).predict(judged))], judged.whole_ms)["mean"]
        for each in study.settings
    }


def _predictions(training: Operators, judged: Operators, settings: Settings, seeds: int) -> dict[str, list[np.ndarray]]:
    """Times of whole models in inference by each method, once for each seed where it draws numbers."""
    roofline = judged.whole(judged.roofline_ms())
    scale = float(np.median(training.whole_ms / training.whole(training.roofline_ms())))
    plain = settings._replace(power="none", has_lanes=False)
    return {
        "measured operators added up (no prediction)": [judged.whole(judged.forward_ms)],
        "roofline": [roofline],
        "roofline with one scale": [roofline * scale],
        "roofline with one scale for each family": [judged.whole(_by_family(training, judged))],
        "boosting without physics": [judged.whole(_boosting(training, judged, seed)) for seed in range(seeds)],
        "network for the efficiency": [
            judged.whole(Networks(training, Training(), seed).predict(judged)) for seed in range(seeds)
        ],
        "ours without power and lanes": [judged.whole(Model(training, plain).predict(judged))],
        "ours": [judged.whole(Model(training, settings).predict(judged))],
    }


def _steps(training: Operators, judged: Operators, settings: Settings) -> dict[str, list[np.ndarray]]:
    """Times of forward and backward pass of whole models."""
    ratios = backward_ratios(training)
    both = np.array([1 + ratios.get(each, 0.0) for each in judged.kinds])
    return {
        "measured operators added up (no prediction)": [judged.whole(judged.forward_ms + judged.backward_ms)],
        "ours": [judged.whole(Model(training, settings).predict(judged) * both)],
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


def _by_family(training: Operators, judged: Operators) -> np.ndarray:
    """Roofline times the median ratio of its family."""
    use = training.operators_count()[training.case]
    ratio = training.forward_ms / training.roofline_ms()
    scales = [
        np.median(ratio[use & (training.family == family)]) if (use & (training.family == family)).any() else 1.0
        for family in range(len(FAMILIES))
    ]
    return np.asarray(judged.roofline_ms() * np.array(scales)[judged.family])


def _boosting(training: Operators, judged: Operators, seed: int) -> np.ndarray:
    """Gradient-boosted trees of the logarithm of time on features and rates."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    use = training.operators_count()[training.case]
    trees = HistGradientBoostingRegressor(loss="absolute_error", random_state=seed)
    trees.fit(np.hstack([training.columns(), training.rates])[use], np.log(training.forward_ms[use]))
    return np.asarray(np.exp(trees.predict(np.hstack([judged.columns(), judged.rates]))))


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
