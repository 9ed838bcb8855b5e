"""A plan that was measured in a search, its record in the log of the search, and summaries of trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gst.cost.metrics import kendall_tau
from gst.execution.measure import Measurement
from gst.lowering.plan import Plan


@dataclass(frozen=True, eq=False)
class Trial:
    """A plan that was measured during the search.

    Args:
        origin: the baseline or method that proposed the plan, `mutation`, or `again`.
        round: 0 before the first fit.
        predicted_ms: by the surrogate, before the measurement.
    """

    plan: Plan
    origin: str
    round: int
    predicted_ms: float
    measurement: Measurement

    def to_dict(self) -> dict[str, Any]:
        """Return a record for a `Log`; NaN becomes None."""
        predicted = None if np.isnan(self.predicted_ms) else self.predicted_ms
        return {
            "origin": self.origin, "round": self.round, "predicted_ms": predicted,
            "measurement": self.measurement.to_dict(), "plan": self.plan.to_dict(),
        }  # fmt: skip

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Trial:
        """Read a record of `to_dict`."""
        plan, measurement = Plan.from_dict(record["plan"]), Measurement.from_dict(record["measurement"])
        predicted = float("nan") if record["predicted_ms"] is None else record["predicted_ms"]
        return Trial(plan, record["origin"], record["round"], predicted, measurement)


def ran(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials whose plan ran to the end, in the order measured."""
    return [trial for trial in trials if trial.measurement.outcome == "ok"]


def fastest(trials: Sequence[Trial]) -> list[Plan]:
    """Return plans by the median of all their runs, the fastest first."""
    runs: dict[str, list[float]] = {}
    plans = {trial.plan.key: trial.plan for trial in ran(trials)}
    for trial in ran(trials):
        runs.setdefault(trial.plan.key, []).extend(trial.measurement.samples_ms)
    return [plans[key] for key in sorted(runs, key=lambda key: float(np.median(runs[key])))]


def tau(trials: Sequence[Trial]) -> float:
    """Return Kendall's tau between predictions and the later measurements; NaN if there are fewer than two."""
    known = [trial for trial in ran(trials) if not np.isnan(trial.predicted_ms) and trial.origin != "again"]
    pairs = np.array([(trial.predicted_ms, trial.measurement.median_ms) for trial in known])
    return kendall_tau(pairs[:, 0], pairs[:, 1]) if len(pairs) > 1 else float("nan")


def brought(trials: Sequence[Trial]) -> dict[str, dict[str, float]]:
    """Return for each origin of plans the number `measured`, and the least median, `best_ms`."""
    times: dict[str, list[float]] = {}
    for trial in ran(trials):
        times.setdefault(trial.origin, []).append(trial.measurement.median_ms)
    return {name: {"measured": len(each), "best_ms": min(each)} for name, each in times.items() if name != "again"}


def report_rows(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return the trials as the report draws them; a plan measured again keeps its first origin."""
    first = {trial.plan.key: trial.origin for trial in reversed(trials)}
    rows = []
    for trial in trials:
        record = trial.to_dict()
        measured = {key: record["measurement"][key] for key in ("median_ms", "low_ms", "high_ms", "outcome")}
        rows.append({key: record[key] for key in ("round", "predicted_ms")} | measured)
        rows[-1] |= {"label": trial.plan.key[:8], "origin": first[trial.plan.key]}
    return rows
