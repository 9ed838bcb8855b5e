"""How long a plan takes: one protocol, whether it is measured or predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from jaxtyping import Float64

from gst.cost import CostModel
from gst.data.measured_plans import Profiled, plans_graph
from gst.devices import AnyExecutor, LoadGate, Measurement, Plan, measure
from gst.devices.isolated import IsolatedExecutor, measure_plans


class Runtime(Protocol):
    """Runtimes of plans in milliseconds; NaN for a plan that failed."""

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]: ...


class MeasuredRuntime:
    """Runs plans on the devices, in turns, on quiet cores.

    Args:
        executor: entered; an `IsolatedExecutor` survives plans that crash or hang.
        repetitions, warmup: of each plan, see `gst.devices.measure`.
        gate: asked before every round.
    """

    def __init__(
        self, executor: AnyExecutor | IsolatedExecutor, repetitions: int = 7, warmup: int = 1,
        gate: LoadGate | None = None,
    ) -> None:  # fmt: skip
        self.executor, self.repetitions, self.warmup, self.gate = executor, repetitions, warmup, gate

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        return np.array([measurement.median_ms for measurement in self.measure(plans)])

    def measure(self, plans: Sequence[Plan]) -> list[Measurement]:
        """As a call, with everything that was seen."""
        if isinstance(self.executor, IsolatedExecutor):
            return measure_plans(self.executor, plans, self.repetitions, self.warmup, self.gate)
        labels = [f"{i}:{plan.key}" for i, plan in enumerate(plans)]
        runs: dict[str, Callable[[], object]] = {
            label: partial(self.executor.run, plan) for label, plan in zip(labels, plans, strict=True)
        }
        keys = {label: plan.key for label, plan in zip(labels, plans, strict=True)}
        seen = measure(runs, self.repetitions, self.warmup, self.gate, plan_keys=keys)
        return [seen[label] for label in labels]


class PredictedRuntime:
    """Asks the cost model about plans of a program on devices."""

    def __init__(self, model: CostModel, profiled: Profiled) -> None:
        self.model, self.profiled = model, profiled

    def __call__(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        return self.model.predict(plans_graph(self.profiled, plans)) / 1e6
