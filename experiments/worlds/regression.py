"""Linear regression on sums over the operations of a plan: a cost model to compare fitted costs with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from gst.lowering.plan import Plan
from gst.machine.devices import core_use
from gst.placement.objectives import SAME, Answers, Surrogate
from gst.placement.task import Task

PENALTIES = np.logspace(-2, 4, 13)

Sums = Float64[np.ndarray, "plans sums"]


class LinearSurrogate(Surrogate):
    """Bayesian linear regression on a dozen sums over the operations of a plan, in units of its simulated runtime: of
    each device the time and the number of operations on it, the time of the core that has least to do, values and bytes
    that cross threads; and the logarithm of the simulated runtime itself.

    The penalty on the weights is that under which the measurements are likeliest; deviations are those of its posterior
    and its noise (MacKay, Bayesian Interpolation, 1992).
    """

    def __init__(self, task: Task) -> None:
        self._profiled = task.profiled
        self._computed = task.costs.computed
        self._use = core_use(task.devices)

    def learn(self, plans: Sequence[Plan], simulated_ms: Answers, logs: Answers) -> None:
        sums = self._sums(plans, simulated_ms)
        self._middle, self._scale = sums.mean(0), np.maximum(sums.std(0), 1e-9)
        self._mean = float(logs.mean())
        x, y = (sums - self._middle) / self._scale, logs - self._mean
        _, penalty, self._variance = max(_evidence(x, y, each) for each in PENALTIES.tolist())
        self._inverse = np.linalg.inv(x.T @ x + penalty * np.eye(x.shape[1]))
        self._weights = self._inverse @ x.T @ y

    def __call__(self, plans: Sequence[Plan], simulated_ms: Answers) -> tuple[Answers, Answers]:
        x = (self._sums(plans, simulated_ms) - self._middle) / self._scale
        leverage = np.einsum("ij,jk,ik->i", x, self._inverse, x)
        return self._mean + x @ self._weights, np.sqrt(self._variance * (1 + leverage))

    def _sums(self, plans: Sequence[Plan], simulated_ms: Answers) -> Sums:
        """Return sums of bytes at 10 GB/s, of operations and values at 1 us each."""
        return np.stack([self._of_plan(plan, ms * 1e3) for plan, ms in zip(plans, simulated_ms, strict=True)])

    def _of_plan(self, plan: Plan, simulated_us: float) -> Float64[np.ndarray, " sums"]:
        placement, num_devices = plan.placement, len(self._use)
        time = np.bincount(placement, self._profiled.times_us[placement, np.arange(len(placement))], num_devices)
        count = np.bincount(placement, self._computed, num_devices)
        producers, consumers = self._profiled.graph.edges
        thread = self._use.argmax(1)[placement]
        crossing = producers[thread[producers] != thread[consumers]]
        moved = self._profiled.output_bytes[crossing].sum() / 1e4
        sums = np.r_[time, count, (time @ self._use).min(), len(crossing), moved]
        return np.r_[sums / max(simulated_us, 1e-3), np.log(max(simulated_us, 1e-3))]


def _evidence(x: Sums, y: Answers, penalty: float) -> tuple[float, float, float]:
    """Return the log likelihood of centred `y`, up to a constant; the penalty; and the likeliest variance of the noise.
    Weights have the variance of the noise / penalty."""
    covariance = np.eye(len(x)) + x @ x.T / penalty  # of the measurements, in units of the noise
    variance = float(y @ np.linalg.solve(covariance, y)) / (len(y) - 1)
    variance = max(variance, SAME**2)
    return -len(y) / 2 * np.log(variance) - np.linalg.slogdet(covariance)[1] / 2, penalty, variance
