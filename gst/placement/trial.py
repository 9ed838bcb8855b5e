"""A plan that was measured in a search, and its record in the log of the search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

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
