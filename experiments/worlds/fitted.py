"""The control of learned cost models: a simulator whose ten physical parameters are fitted to the same measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float64

from gst.lowering.plan import Plan
from gst.placement.fitted import kinds_of
from gst.placement.objectives import Answers, SimulatedObjective, Surrogate
from gst.placement.task import Task
from gst.programs.features import KINDS

PARAMETERS = (*KINDS, "link latency", "link rate", "launch", "switch")
"""Logarithms of factors, but the last two: microseconds that are added to each operation, and between two of them."""

WIDTHS = np.array([0.5] * (len(PARAMETERS) - 2) + [4.0, 1.0])  # standard deviations of the prior
ERROR = 0.02  # of a measurement, in logarithms
STEPS, STEP = 4, 0.05  # of Gauss and Newton; of differences, in widths
LEAST_ERROR = 0.01


class TenParameters(Surrogate):
    """A surrogate (`gst.placement.objectives.Surrogate`): the maximum a posteriori of the parameters by Gauss-Newton
    steps. Deviations are the error on what was fitted.

    Examples:
        >>> len(PARAMETERS)
        10
    """

    def __init__(self, task: Task) -> None:
        self._task, self._kinds = task, kinds_of(task)
        self.parameters = np.zeros(len(PARAMETERS))
        self._deviation = ERROR
        self._fitted = SimulatedObjective(task)

    def learn(self, plans: Sequence[Plan], simulated_ms: Answers, logs: Answers) -> None:
        """Fit the parameters to logarithms of measured / simulated runtimes."""
        want = np.log(simulated_ms) + logs
        weight = np.diag(1 / WIDTHS**2)
        for _ in range(STEPS):
            here = self._logs(self.parameters, plans)
            slopes = np.stack(
                [
                    (self._logs(self.parameters + STEP * width * unit, plans) - here) / (STEP * width)
                    for width, unit in zip(WIDTHS, np.eye(len(WIDTHS)), strict=True)
                ], 1,
            )  # fmt: skip
            right = slopes.T @ (want - here) / ERROR**2 - weight @ self.parameters
            step = np.linalg.solve(slopes.T @ slopes / ERROR**2 + weight, right)
            self._move(step, plans, want)
        self._fitted = SimulatedObjective(self._of(self.parameters))
        error = np.sqrt(np.mean((self._logs(self.parameters, plans) - want) ** 2))
        self._deviation = max(float(error), LEAST_ERROR)

    def __call__(self, plans: Sequence[Plan], simulated_ms: Answers) -> tuple[Answers, Answers]:
        return np.zeros(len(plans)), np.full(len(plans), self._deviation)

    def corrected(self, task: Task, generator: np.random.Generator | None = None) -> Task:
        fitted = self._fitted.task
        return replace(task, costs=replace(fitted.costs, devices=task.devices), contention=fitted.contention)

    def _move(self, step: Float64[np.ndarray, " parameters"], plans: Sequence[Plan], want: Answers) -> None:
        """Go as far along a step as it lowers the loss."""
        here = self._loss(self.parameters, plans, want)
        for share in (1.0, 0.5, 0.25):
            if self._loss(self.parameters + share * step, plans, want) < here:
                self.parameters = self.parameters + share * step
                return

    def _loss(self, parameters: Float64[np.ndarray, " parameters"], plans: Sequence[Plan], want: Answers) -> float:
        off = (self._logs(parameters, plans) - want) / ERROR
        return float(off @ off + np.sum((parameters / WIDTHS) ** 2))

    def _logs(self, parameters: Float64[np.ndarray, " parameters"], plans: Sequence[Plan]) -> Answers:
        simulator = self._of(parameters).simulator
        return np.log(simulator.makespans(plans) / 1e3)

    def _of(self, parameters: Float64[np.ndarray, " parameters"]) -> Task:
        """Return the task with other costs."""
        task, count = self._task, len(KINDS)
        factors = np.exp(parameters[: count + 2])
        computed = task.costs.computed & (task.costs.times_us.min(0) > 0)
        launch, switch = parameters[-2:]
        times_us = np.maximum(task.costs.times_us * factors[self._kinds] + launch * computed, 0.0)
        costs = replace(
            task.costs, times_us=times_us, latency_us=task.costs.latency_us * factors[count],
            bytes_per_us=task.costs.bytes_per_us * factors[count + 1],
        )  # fmt: skip
        delays = task.contention._replace(switch_us=max(task.contention.switch_us + float(switch), 0.0))
        return replace(task, costs=costs, contention=delays)
