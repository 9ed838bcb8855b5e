"""The one reward of a search: what a plan takes as measured, else by the cost model, else by the simulator.

The cost model predicts the logarithm of measured / simulated runtime: before it has learned, the reward is the
simulated runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Protocol

import numpy as np
from jaxtyping import Float32, Float64, Int64

from gst.data.measured_plans import Profiled, plans_graph
from gst.graphs.segments import BLOCK_NODES, neighbours
from gst.lowering.plan import Plan, ranks
from gst.machine.devices import core_use
from gst.placement.objectives import Objective, SimulatedObjective
from gst.placement.task import Task

if TYPE_CHECKING:
    from gst.cost.rescoring import Change, Rescorer

PLANS_AT_ONCE = 64  # asked of the cost model; features of more than these are never held
LEAST_MEASUREMENTS = 8  # fewer do not correct the simulator
DEFAULT_ERROR = 0.1  # of the simulator alone, in logarithms: 4 to 12 % on the workloads of experiments/bench/simulator
COVERAGE = 0.68  # probability of the interval around a prediction
PENALTIES = np.logspace(-2, 4, 13)
EPOCHS, MORE_EPOCHS = 40, 10  # of a network that begins, and of one that goes on
FURTHEST = 2.0  # of a correction, in logarithms: plans unlike all that were measured would be off without bound
SAME = 1e-9  # logarithms of ratios that differ by less are equal

Answers = Float64[np.ndarray, " plans"]
Sums = Float64[np.ndarray, "plans sums"]


class Surrogate(Protocol):
    """A model of logarithms of measured / simulated runtimes, learned from all plans measured so far; returns the mean
    and the standard deviation for others."""

    def learn(self, plans: Sequence[Plan], simulated_ms: Answers, logs: Answers) -> None: ...

    def __call__(self, plans: Sequence[Plan], simulated_ms: Answers) -> tuple[Answers, Answers]: ...


class Reward:
    """An `Objective` that runs nothing: measured runtimes where there are some, others simulated and corrected by a
    surrogate fitted to the measured ones. All proposers of a search are rewarded by it, learned policies too.

    Args:
        surrogate: `LinearSurrogate(task)` if None.

    Examples:
        >>> from gst.placement.policies.generated_tasks import generated_task
        >>> task = generated_task(0, num_nodes=60, num_devices=2)
        >>> reward = Reward(task)
        >>> one, other = (task.plan(np.full(task.num_nodes, device)) for device in (0, 1))
        >>> reward.learn([one], np.array([7.0]))  # one measurement does not correct the simulator
        >>> round(float(reward([one])[0]), 6), reward([other]) == reward.simulated([other])
        (7.0, array([ True]))
    """

    def __init__(self, task: Task, surrogate: Surrogate | None = None) -> None:
        self.task = task
        self.simulated = SimulatedObjective(task)
        self.surrogate = LinearSurrogate(task) if surrogate is None else surrogate
        self._measured: dict[str, tuple[Plan, float, float]] = {}  # plan, simulated ms, logarithm of the ratio

    @property
    def num_measured(self) -> int:
        """Return the number of plans that were learned from."""
        return len(self._measured)

    def learn(self, plans: Sequence[Plan], measured_ms: Answers) -> None:
        """Add measurements to those of earlier calls, and fit the surrogate to all of them. A plan that failed (NaN) is
        left out; of a plan that comes again the later measurement counts.

        Raises:
            ValueError: there are not as many measurements as plans, or one is not positive.
        """
        if len(plans) != len(measured_ms):
            raise ValueError(f"{len(measured_ms)} measurements of {len(plans)} plans; give one for each")
        if (measured_ms <= 0).any():
            raise ValueError(f"a measurement is {np.nanmin(measured_ms)} ms; runtimes are positive, NaN = failed")
        ran = [(plan, ms) for plan, ms in zip(plans, measured_ms, strict=True) if np.isfinite(ms)]
        simulated = self.simulated([plan for plan, _ in ran])
        for (plan, ms), simulated_ms in zip(ran, simulated, strict=True):
            if np.isfinite(simulated_ms):
                self._measured[plan.key] = plan, float(simulated_ms), float(np.log(ms / simulated_ms))
        if ran and self.num_measured >= LEAST_MEASUREMENTS:
            learned_plans, ms, logs = zip(*self._measured.values(), strict=True)
            self.surrogate.learn(learned_plans, np.array(ms), np.array(logs))

    def __call__(self, plans: Sequence[Plan]) -> Answers:
        runtimes = self.with_spread(plans)[0]
        for number, plan in enumerate(plans if self._measured else ()):
            if (seen := self._measured.get(plan.key)) is not None:
                runtimes[number] = seen[1] * np.exp(seen[2])
        return runtimes

    def excess(self, plan: Plan) -> float:
        """See `SimulatedObjective.excess`."""
        return self.simulated.excess(plan)

    @property
    def predicted(self) -> Objective:
        """The same without measured runtimes, for searches that compare a plan with its neighbours: the least of many
        measured times is partly luck, and its neighbours, all predicted, would all seem slower."""
        return _Predicted(self)

    def with_spread(self, plans: Sequence[Plan]) -> tuple[Answers, Answers]:
        """Return predictions in milliseconds, and for each a factor >= 1: measured, it should lie between runtime /
        factor and runtime * factor with a probability of `COVERAGE`, if errors of logarithms are normally distributed.
        """
        simulated, logs, deviations = self._predicted(plans)
        return simulated * np.exp(logs), np.exp(NormalDist().inv_cdf((1 + COVERAGE) / 2) * deviations)

    def expected_improvement(self, plans: Sequence[Plan]) -> Answers:
        """Return by how much each plan is expected to lower the logarithm of the least measured runtime.

        Jones, Schonlau and Welch, Efficient Global Optimization, 1998, equation 15. It is 0 for a plan that fails, or
        that was measured.
        """
        simulated, logs, deviations = self._predicted(plans)
        least = np.nanmin(np.log(simulated), initial=np.inf)
        best = min((np.log(ms) + log for _, ms, log in self._measured.values()), default=least)
        below = best - np.log(simulated) - logs
        score = below / np.maximum(deviations, SAME)
        density = np.exp(-np.square(score) / 2) / np.sqrt(2 * np.pi)
        gains = np.nan_to_num(below * _normal_cdf(score) + deviations * density)
        return np.where([plan.key in self._measured for plan in plans], 0.0, np.maximum(gains, 0.0))

    def _predicted(self, plans: Sequence[Plan]) -> tuple[Answers, Answers, Answers]:
        """Return simulated milliseconds, the logarithms of their corrections, and the standard deviations of these."""
        simulated = np.asarray(self.simulated(plans), np.float64)
        logs, deviations = np.zeros(len(plans)), np.full(len(plans), DEFAULT_ERROR)
        ran = np.flatnonzero(np.isfinite(simulated))
        if len(ran) and self.num_measured >= LEAST_MEASUREMENTS:
            logs[ran], deviations[ran] = self.surrogate([plans[number] for number in ran.tolist()], simulated[ran])
        return simulated, np.clip(logs, -FURTHEST, FURTHEST), np.minimum(deviations, FURTHEST)


class _Predicted:
    def __init__(self, reward: Reward) -> None:
        self._reward, self.excess = reward, reward.excess

    def __call__(self, plans: Sequence[Plan]) -> Answers:
        return self._reward.with_spread(plans)[0]


class NoSurrogate:
    """Leaves the simulator as it is."""

    def learn(self, plans: Sequence[Plan], simulated_ms: Answers, logs: Answers) -> None:
        pass

    def __call__(self, plans: Sequence[Plan], simulated_ms: Answers) -> tuple[Answers, Answers]:
        return np.zeros(len(plans)), np.full(len(plans), DEFAULT_ERROR)


class LinearSurrogate:
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


class NetworkSurrogate:
    """The GST cost model, asked through a `Rescorer`; learning again goes on from the weights it has. Deviations are
    the disagreement of the members and the error on what was learned. It takes minutes where `LinearSurrogate` takes
    seconds, and a search of 50 measurements ends about as well by either (`experiments.bench.search_loop`).
    """

    def __init__(self, task: Task, seed: int = 0, members: int = 3) -> None:
        from gst.cost import CostModel  # with encoders and tables, which searches by other surrogates do without

        opcodes = int(task.graph.opcodes.max()) + 1
        self.model = CostModel(num_opcodes=opcodes, log_config=False, seed=seed, members=members)
        self._profiled = task.profiled
        self._features = PlanFeatures(self._profiled)
        self._rescorer: Rescorer | None = None
        self._base: Plan
        self._error = 0.0

    def learn(self, plans: Sequence[Plan], simulated_ms: Answers, logs: Answers) -> None:
        from gst.cost.rescoring import Rescorer

        self._mean_log = float(logs.mean())
        if np.ptp(logs) < SAME:
            return
        epochs = EPOCHS if self._rescorer is None else MORE_EPOCHS
        self.model.fit([plans_graph(self._profiled, plans, np.exp(logs))], epochs)
        best = plans[int(np.argmin(simulated_ms * np.exp(logs)))]
        if self._rescorer is None:
            self._rescorer = Rescorer(self.model, plans_graph(self._profiled, [best]))
        else:
            self._rescorer.rebase(self._features.change(self._base, best))
        self._base = best
        self._error = float(np.sqrt(np.square(self(plans, simulated_ms)[0] - logs).mean()))

    def __call__(self, plans: Sequence[Plan], simulated_ms: Answers) -> tuple[Answers, Answers]:
        if self._rescorer is None:  # all that was measured is off by the same factor
            return np.full(len(plans), self._mean_log), np.zeros(len(plans))
        parts = [plans[start : start + PLANS_AT_ONCE] for start in range(0, len(plans), PLANS_AT_ONCE)]
        predictions = [
            self._rescorer.logs([self._features.change(self._base, plan) for plan in part]) for part in parts
        ]
        logs, spreads = (np.concatenate(each) for each in zip(*predictions, strict=True))
        return logs, np.hypot(spreads, self._error)


class PlanFeatures:
    """Configuration features of plans as those of `plans_graph`, for some of the nodes alone."""

    def __init__(self, profiled: Profiled) -> None:
        self.profiled = profiled
        self._use = core_use(profiled.devices)
        self._share = profiled.times_us / max(profiled.times_us.mean(), 1e-9)
        self._thread = self._use.argmax(1)
        self._turns: tuple[np.ndarray | None, np.ndarray] | None = None
        self._outgoing, self._incoming = (
            neighbours(profiled.graph.edges, side, profiled.graph.num_nodes, BLOCK_NODES) for side in (0, 1)
        )

    def change(self, base: Plan, plan: Plan) -> Change:
        """Return the rows of `plan` that may differ from those of `base`: of nodes that moved, that read values of one
        that moved, or that run at another place in the order."""
        from gst.cost.rescoring import Change

        before = self._turns_of_base(base)
        later = before if _same_order(base.priority, plan.priority) else _later(plan)
        moved = base.placement != plan.placement
        touched = moved | (later != before)
        touched[self._outgoing.of(np.flatnonzero(moved))] = True
        nodes = np.flatnonzero(touched)
        return Change(nodes, self._rows(plan, nodes, later[nodes]))

    def _turns_of_base(self, base: Plan) -> Float64[np.ndarray, " nodes"]:
        if self._turns is None or not _same_order(self._turns[0], base.priority):
            self._turns = base.priority, _later(base)
        return self._turns[1]

    def _rows(
        self, plan: Plan, nodes: Int64[np.ndarray, " chosen"], later: Float64[np.ndarray, " chosen"]
    ) -> Float32[np.ndarray, "chosen channels"]:
        placed = plan.placement[nodes]
        here = placed[:, None] == np.arange(len(self._use))
        time = self._share[placed, nodes]
        reader = np.repeat(np.arange(len(nodes)), self._incoming.degrees(nodes))
        producers = self._incoming.of(nodes)
        crossing = self._thread[plan.placement[producers]] != self._thread[placed[reader]]
        sizes = self.profiled.output_bytes[producers[crossing]].astype(np.float64)
        received = np.bincount(reader[crossing], sizes, len(nodes))
        count = np.bincount(reader[crossing], minlength=len(nodes))
        columns = [here, self._use[placed] * time[:, None]]
        columns += [each[:, None] for each in (count, np.log1p(received), later)]
        return np.hstack(columns).astype(np.float32)


def _evidence(x: Sums, y: Answers, penalty: float) -> tuple[float, float, float]:
    """Return the log likelihood of centred `y`, up to a constant; the penalty; and the likeliest variance of the noise.
    Weights have the variance of the noise / penalty."""
    covariance = np.eye(len(x)) + x @ x.T / penalty  # of the measurements, in units of the noise
    variance = float(y @ np.linalg.solve(covariance, y)) / (len(y) - 1)
    variance = max(variance, SAME**2)
    return -len(y) / 2 * np.log(variance) - np.linalg.slogdet(covariance)[1] / 2, penalty, variance


def _normal_cdf(values: Answers) -> Answers:
    return np.array([NormalDist().cdf(value) if np.isfinite(value) else np.nan for value in values], np.float64)


def _later(plan: Plan) -> Float64[np.ndarray, " nodes"]:
    """Return how much later than in program order each node comes, as a share of the program."""
    nodes = np.arange(len(plan.placement))
    return np.zeros(len(nodes)) if plan.priority is None else (ranks(plan) - nodes) / len(nodes)


def _same_order(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    return one is other or (one is not None and other is not None and np.array_equal(one, other))


COST_MODELS: dict[str, Callable[[Task, int], Surrogate]] = {
    "linear": lambda task, seed: LinearSurrogate(task),
    "gst": NetworkSurrogate,
    "none": lambda task, seed: NoSurrogate(),
}
"""By name, what makes the cost model of a task with a seed: regression on sums of a plan, the GST network, or none."""
