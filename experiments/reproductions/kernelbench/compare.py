"""Eager or compiled, which is faster: trees over the kernels of both, and controls, on programs never seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

from experiments.reproductions.kernelbench.programs import Compared
from experiments.reproductions.kernelbench.timings import Timing
from experiments.reproductions.timm.step_time.estimate import estimate
from experiments.reproductions.timm.step_time.kernels import CLASSES
from experiments.reproductions.timm.step_time.rows import TERMS, Setting, row_of
from gst.util.progress import bar
from gst.util.writing import write_json

MACHINES = {"H100_Modal": "h100", "H100_PCIe_LambdaLabs": "h100-pcie"}
"""Rates of a host; any other host has those of an H100."""
FOLDS = 10
MATTERS = 0.1  # relative difference from which the choice counts
TORCH = 250  # version times 100, with which the programs were timed
DRAWS = 10_000  # of programs, for an interval
LEAST = 1e-3  # milliseconds that trees are told at least


class Rows(NamedTuple):
    """Programs on hosts whose kernels are known.

    Args:
        timings: one of each row.
        columns: what trees see: shares of kernel classes, times at peak rates and predicted, numbers of kernels.
        estimates: of `step_time.estimate`, eager and compiled: milliseconds, the least and the most of its interval.
    """

    timings: list[Timing]
    columns: Float64[np.ndarray, "rows columns"]
    estimates: Float64[np.ndarray, "rows 2 3"]


def rows_of(timings: Sequence[Timing], programs: Mapping[str, Compared]) -> Rows:
    """The timings of the known programs, with what a method may see of them."""
    chosen = [each for each in timings if each.program in programs]
    columns, estimates = [], []
    for each in bar(chosen, desc="estimates"):
        machine = MACHINES.get(each.host, "h100")
        compared = programs[each.program]
        seen: list[np.ndarray] = []
        both = []
        for is_compiled in (False, True):
            setting = Setting(machine, "infer", "fp32", False, TORCH, is_compiled)
            kernels = compared.compiled if is_compiled else compared.eager
            terms, described, _ = row_of(kernels, 1, 224, setting)
            by_class = terms.reshape(TERMS, len(CLASSES))
            both.append(estimate(compared.program, on=machine, is_compiled=is_compiled))
            seen += [by_class.sum(0) / by_class.sum(), described, np.log([max(both[-1].milliseconds, LEAST)])]
        columns.append(np.concatenate([*seen, seen[4][:1] - seen[1][:1]]))  # compiled against eager at peak rates
        estimates.append([(one.milliseconds, *one.interval) for one in both])
    return Rows(chosen, np.stack(columns), np.array(estimates))


def gain_of(timings: Sequence[Timing]) -> Float64[np.ndarray, " rows"]:
    """log of eager over compiled time: above 0 where compiling pays."""
    return np.log([each.eager / each.compiled for each in timings])


def trees(rows: Rows, seed: int) -> Float64[np.ndarray, " rows"]:
    """Gain of each row, predicted by randomized trees that learned from the other nine tenths of the programs."""
    from sklearn.ensemble import ExtraTreesRegressor

    names, program = np.unique([each.program for each in rows.timings], return_inverse=True)
    fold = (np.random.default_rng(seed).permutation(len(names)) % FOLDS)[program]
    gain = np.clip(gain_of(rows.timings), -1, 1)
    result = np.zeros(len(gain))
    for place in range(FOLDS):
        rest = fold != place
        if rest.any() and not rest.all():
            forest = ExtraTreesRegressor(100, min_samples_leaf=2, random_state=seed)
            result[~rest] = forest.fit(rows.columns[rest], gain[rest]).predict(rows.columns[~rest])
    return result


def scores(timings: Sequence[Timing], says_compiled: Bool[np.ndarray, " rows"]) -> dict[str, float]:
    """Return the percentage of right choices, and the extra time of the chosen variant over the faster one, in percent.

    Choices count if the times differ by more than `MATTERS`, over all and over those where eager is faster. Extra time
    is a geometric mean over all.

    Examples:
        >>> one, other = Timing("host", "a", 2.0, 1.0), Timing("host", "b", 1.0, 2.0)
        >>> scores([one, other], np.array([True, True]))
        {'right': 50.0, 'right_where_eager_is_faster': 0.0, 'longer': 41.4}
    """
    gain = gain_of(timings)
    ratio = np.exp(gain)
    counts = np.abs(ratio - 1) > MATTERS
    right = says_compiled == (gain > 0)
    eager = counts & (gain < 0)

    def percent(where: np.ndarray) -> float:
        return round(100 * float(right[where].mean()), 1) if where.any() else float("nan")

    longer = 100 * float(np.expm1(np.where(right, 0.0, np.abs(gain)).mean()))
    return {"right": percent(counts), "right_where_eager_is_faster": percent(eager), "longer": round(longer, 1)}


def interval_of_right(timings: Sequence[Timing], answers: Sequence[Bool[np.ndarray, " rows"]]) -> tuple[float, float]:
    """90 % interval of `right` of `scores`, percent, by drawing programs anew; of several answers the mean.

    Examples:
        >>> both = [Timing("host", "a", 2.0, 1.0), Timing("host", "b", 1.0, 2.0)]
        >>> interval_of_right(both, [np.array([True, True])])
        (0.0, 100.0)
    """
    gain = gain_of(timings)
    counts = np.abs(np.expm1(gain)) > MATTERS
    if not counts.any():
        return float("nan"), float("nan")
    right = np.mean([answer == (gain > 0) for answer in answers], axis=0)[counts]
    draws = np.random.default_rng(0).integers(len(right), size=(DRAWS, len(right)))
    low, high = np.percentile(100 * right[draws].mean(1), [5, 95])
    return round(float(low), 1), round(float(high), 1)


def compare(
    timings: Sequence[Timing], programs: Mapping[str, Compared], seeds: int, path: Path | None = None
) -> dict[str, Any]:
    """Scores of every method by host, and errors of `step_time.estimate` on the same programs.

    Programs whose kernels are not known count too: `compiled` is what every method but `always eager` says of them.
    """
    rows = rows_of(timings, programs)
    known = np.array([each.program in programs for each in timings])
    other = _other_host(timings)

    def with_rest(says_compiled: np.ndarray) -> np.ndarray:
        result = np.ones(len(timings), bool)
        result[known] = says_compiled
        return result

    drawn = [with_rest(trees(rows, seed) > 0) for seed in bar(range(seeds), desc="seeds")]
    methods = {
        "always compiled": [np.ones(len(timings), bool)],
        "always eager": [np.zeros(len(timings), bool)],
        "timm estimate, eager against compiled": [with_rest(rows.estimates[:, 0, 0] > rows.estimates[:, 1, 0])],
        "trees over kernels": drawn,
        "measured on the other host (no prediction)": [other],
    }
    hosts = np.array([each.host for each in timings])
    result: dict[str, Any] = {
        "command": f"python -m experiments.reproductions.kernelbench compare --programs KernelBench --seeds {seeds}",
        "programs": len({each.program for each in timings}), "captured": len(programs), "methods": {}, "step_time": {},
    }  # fmt: skip
    for host in sorted(set(hosts)):
        chosen = np.flatnonzero(hosts == host)
        part = [timings[place] for place in chosen]
        for name, answers in methods.items():
            each = [scores(part, answer[chosen]) for answer in answers]
            result["methods"].setdefault(name, {})[host] = {
                **{key: round(float(np.mean([one[key] for one in each])), 1) for key in each[0]},
                "interval_of_right": list(interval_of_right(part, [answer[chosen] for answer in answers])),
            }
        result["step_time"][host] = _errors(rows, host)
    if path:
        write_json(path, result)
    return result


def _other_host(timings: Sequence[Timing]) -> Bool[np.ndarray, " rows"]:
    gains: dict[str, dict[str, float]] = {}
    for each, gain in zip(timings, gain_of(timings), strict=True):
        gains.setdefault(each.program, {})[each.host] = gain
    return np.array([
        sum(gain for host, gain in gains[each.program].items() if host != each.host) >= 0 for each in timings
    ])  # fmt: skip


def _errors(rows: Rows, host: str) -> dict[str, dict[str, Any]]:
    """Errors of `step_time.estimate` by way, of all programs of a host and of each level."""
    levels = np.array([each.program.partition("/")[0] for each in rows.timings])
    of_host = np.array([each.host == host for each in rows.timings])
    return {
        name: {
            **_errors_of(rows, of_host, name, place),
            "levels": {
                level: _errors_of(rows, of_host & (levels == level), name, place)
                for level in sorted(set(levels[of_host]))
            },
        }
        for place, name in enumerate(("eager", "compiled"))
    }  # fmt: skip


def _errors_of(rows: Rows, chosen: np.ndarray, name: str, place: int) -> dict[str, float]:
    """Relative errors and how many times are within the intervals, percent; median of estimate over time."""
    times = np.array([getattr(each, name) for each in rows.timings])[chosen]
    middle, least, most = rows.estimates[chosen, place].T
    percent = 100 * np.abs(middle / times - 1)
    return {
        "programs": len(times),
        "median_error": round(float(np.median(percent)), 1),
        "p90_error": round(float(np.quantile(percent, 0.9)), 1),
        "coverage": round(100 * float(((least <= times) & (times <= most)).mean()), 1),
        "median_ratio": round(float(np.median(middle / times)), 2),
    }  # fmt: skip
