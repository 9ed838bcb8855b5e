"""The end of a search: the best plans and the step itself, measured in turns, twice; and which of them is to run.

The fastest of many measured medians is fast in part by luck. So a plan is chosen by a first set of runs, and its time
is taken from a second one. What the user had before, the step as written, stays unless something else is faster beyond
noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gst.devices import Measurement, Plan
from gst.devices.execute.measure import median_interval
from gst.devices.execute.plain import COMPILED, PYTORCH
from gst.placement.planning import METHODS, Planned

NUM_BASELINES = 12  # that are measured at the end, of those that look best in simulation; and every method's plan
NUM_AGAIN = 3  # plans that are measured again


def finalists(planned: Mapping[str, Planned]) -> dict[str, Planned]:
    """The plans that are worth measuring: of the methods all, of the baselines the best by simulation, and of the
    devices alone (`single:*`) the best one.

    Examples:
        >>> slow, fast = (Planned(None, ms, 0.0, 0) for ms in (2.0, 1.0))
        >>> list(finalists({"single:cpu:0": slow, "single:cpu:1": fast, "heft": slow, "annealing": slow}))
        ['single:cpu:1', 'heft', 'annealing']
    """
    ms = {name: np.nan_to_num(each.expected_ms, nan=np.inf) for name, each in planned.items()}
    baselines = sorted((name for name in planned if name not in METHODS), key=lambda name: ms[name])
    singles = [name for name in baselines if name.startswith("single:")]
    others = [name for name in baselines if name not in singles]
    chosen = {*singles[:1], *others[:NUM_BASELINES]}
    return {name: each for name, each in planned.items() if name in METHODS or name in chosen}


@dataclass(frozen=True, eq=False)
class Finals:
    """Two sets of runs in turns, each by name of a plan, with `pytorch` and `compiled` among them.

    Args:
        first: of all plans.
        second: of the `NUM_AGAIN` fastest of the first set alone.
    """

    first: Mapping[str, Measurement]
    second: Mapping[str, Measurement]

    @property
    def best(self) -> str:
        """Name of the fastest plan of the first set, of those that ran in the second too."""
        in_order, again = fastest(self.first), set(fastest(self.second))
        return next((name for name in in_order if name in again), in_order[0])

    @property
    def winner(self) -> str:
        """`pytorch`, `compiled` or `best`: what is to run. Each takes the place of the one before it if its runs are
        faster beyond noise in both sets."""
        winner = PYTORCH
        for challenger in (COMPILED, self.best):
            if all(is_faster(runs[challenger], runs[winner]) for runs in (self.first, self.second)):
                winner = challenger
        return winner

    def figures(self) -> dict[str, Any]:
        """For a result: `winner` and, by the second set, `winner_ms`, `objective` (of the best plan), `pytorch_ms` and
        `compiled_ms`; None for what did not run."""
        ms = {name: None if np.isnan(each.median_ms) else each.median_ms for name, each in self.second.items()}
        best_ms = ms[self.best] if ms[self.best] is not None else self.first[self.best].median_ms
        return {
            "best": self.best, "objective": best_ms, "winner": self.winner, "winner_ms": ms[self.winner],
            "pytorch_ms": ms[PYTORCH], "compiled_ms": ms[COMPILED],
        }  # fmt: skip


def fastest(measurements: Mapping[str, Measurement], count: int | None = None) -> list[str]:
    """Names of plans that ran, the fastest median first; several names of one plan count as one."""
    ran = {name: each for name, each in measurements.items() if each.outcome == "ok" and each.plan_key is not None}
    keys = list(dict.fromkeys(ran[name].plan_key for name in sorted(ran, key=lambda name: ran[name].median_ms)))
    return [name for key in keys[:count] for name in ran if ran[name].plan_key == key]


def is_faster(one: Measurement, other: Measurement) -> bool:
    """Whether one is faster than the other beyond noise: the 95 % interval of the median difference of runs that took
    turns lies below 0. What failed is not faster than anything, and slower than what ran."""
    if one.outcome != "ok" or other.outcome != "ok":
        return one.outcome == "ok"
    differences = np.subtract(one.samples_ms, other.samples_ms)
    return median_interval(differences.tolist(), np.random.default_rng(0))[2] < 0


def by_name(
    plans: Mapping[str, Plan], measured: Sequence[Measurement], steps: Sequence[str] = (PYTORCH, COMPILED)
) -> dict[str, Measurement]:
    """Measurements of the distinct plans, in order, then of the steps, for every name."""
    keys = list(dict.fromkeys(plan.key for plan in plans.values()))
    by_key = dict(zip([*keys, *steps], measured, strict=True))
    return {**{name: by_key[plan.key] for name, plan in plans.items()}, **{name: by_key[name] for name in steps}}
