"""Machines left out one at a time: errors of every setting, the choice, and the spread for an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from experiments.reproductions.neusight.dataset import Case, Dataset
from experiments.reproductions.neusight.model import POWERS, Model, Settings
from experiments.reproductions.neusight.operators import CHIPS, operators_of

LEVEL = 0.9  # of an interval
Errors = Mapping[str, Mapping[frozenset[str], Mapping[str, np.ndarray]]]
"""Logarithms of predicted over measured time: setting, other machines left out, judged machine."""


def candidates() -> list[Settings]:
    """Without power and with both kinds of energy, with and without lanes, and two corners."""
    return [
        Settings(power, has_lanes, sharpness)
        for power in POWERS
        for has_lanes in (False, True)
        for sharpness in ((4.0,) if power == "none" else (4.0, 8.0))
    ]


def usable(dataset: Dataset) -> list[Case]:
    """Cases of one known GPU in eager mode whose operators were measured.

    Raises:
        ValueError: there is none.
    """
    cases = [
        each for each in dataset.cases if each.operations and not each.option and each.layers and each.machine in CHIPS
    ]
    if not cases:
        raise ValueError("no operators were measured on a known NVIDIA GPU; give neusight.tar.xz")
    return cases


def inference(cases: Sequence[Case], machine: str) -> list[Case]:
    """Its cases of inference.

    Raises:
        ValueError: there is none.
    """
    chosen = [each for each in cases if each.machine == machine and each.mode == "inf"]
    if not chosen:
        raise ValueError(f"{machine}: no operators were measured in inference; add its label/{machine}")
    return chosen


def errors_left_out(
    dataset: Dataset, cases: Sequence[Case], groups: Mapping[str, tuple[str, ...]], target: str,
    settings: Sequence[Settings],
) -> Errors:  # fmt: skip
    """Errors on every machine with no other, and with each other one left out as well; `target` is always left out.

    Args:
        groups: machine that is judged -> it and its twins, which are left out with it.
    """
    judged = {name: operators_of(inference(cases, name), dataset.machines) for name in groups}
    result: dict[str, dict[frozenset[str], dict[str, np.ndarray]]] = {}
    for each in settings:
        errors = result.setdefault(each.name(), {})
        for pair in sorted({tuple(sorted({one, other})) for one in groups for other in groups}):
            hidden = {target, *(twin for name in pair for twin in groups[name])}
            training = operators_of([case for case in cases if case.machine not in hidden], dataset.machines)
            model = Model(training, each)
            for name in pair:
                whole = judged[name].whole(model.predict(judged[name]))
                errors.setdefault(frozenset(pair) - {name}, {})[name] = np.log(whole / judged[name].whole_ms)
    return result


def choose(errors: Errors, settings: Sequence[Settings], without: str | None) -> Settings:
    """The setting with the smallest mean error on the machines left out, none of which is `without`."""
    return min(settings, key=lambda each: mean_error(of_left_out(errors, each, without)))


def of_left_out(errors: Errors, settings: Settings, without: str | None) -> dict[str, np.ndarray]:
    """Errors on each machine left out, of models that never saw `without` either."""
    hidden = frozenset() if without is None else frozenset({without})
    return dict(errors[settings.name()][hidden])


def mean_error(errors: Mapping[str, np.ndarray]) -> float:
    """Mean over machines of the mean relative error, in percent."""
    return float(np.mean([100 * np.abs(np.expm1(each)).mean() for each in errors.values()]))


def half_width(errors: Mapping[str, np.ndarray]) -> float:
    """Half the width of a 90 % interval, of the logarithm of a time: Student's t over the machines left out.

    Examples:
        >>> round(half_width({"a": np.array([0.1, 0.1]), "b": np.array([-0.1])}), 2)  # 2.92 times a tenth
        0.29
    """
    spread = np.sqrt(np.mean([(each**2).mean() for each in errors.values()]))
    return float(stats.t.ppf((1 + LEVEL) / 2, len(errors)) * spread)
