"""Cost models of plans, which learn in a search how runtimes differ from those that are simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from gst.lowering.plan import Plan
from gst.placement.fitted import FittedSimulator
from gst.placement.measured_plans import plan_features, plans_graph
from gst.placement.objectives import SAME, Answers, Learned, Surrogate
from gst.placement.task import Task
from gst.util.untrusted import DAMAGE, plain, read_object
from gst.util.writing import write_json

if TYPE_CHECKING:
    from gst.cost.rescoring import Rescorer

PLANS_AT_ONCE = 64  # asked of the cost model; features of more than these are never held
LEARNED = "learned_costs.json"  # learned parameters, from which searches of other programs start
EPOCHS, MORE_EPOCHS = 40, 10  # of a network that begins, and of one that goes on


class NetworkSurrogate(Surrogate):
    """The GST cost model, asked through a `Rescorer`; learning again goes on from the weights it has. Deviations are
    the disagreement of the members and the error on what was learned."""

    def __init__(self, task: Task, seed: int = 0, members: int = 3) -> None:
        from gst.cost import CostModel  # with encoders and tables, which searches by other surrogates do without

        opcodes = int(task.graph.opcodes.max()) + 1
        self.model = CostModel(num_opcodes=opcodes, log_config=False, seed=seed, members=members)
        self._profiled = task.profiled
        self._rescorer: Rescorer | None = None
        self._error = 0.0

    def learn(self, plans: Sequence[Plan], simulated_ms: Answers, logs: Answers) -> None:
        from gst.cost.rescoring import Rescorer

        self._mean_log = float(logs.mean())
        if np.ptp(logs) < SAME:
            return
        epochs = EPOCHS if self._rescorer is None else MORE_EPOCHS
        graph = plans_graph(self._profiled, plans, np.exp(logs))
        self.model.fit([graph], epochs)
        self._rescorer = self._rescorer or Rescorer(self.model, graph)
        self._error = float(np.sqrt(np.square(self(plans, simulated_ms)[0] - logs).mean()))

    def __call__(self, plans: Sequence[Plan], simulated_ms: Answers) -> tuple[Answers, Answers]:
        if self._rescorer is None:  # all that was measured is off by the same factor
            return np.full(len(plans), self._mean_log), np.zeros(len(plans))
        parts = [plans[start : start + PLANS_AT_ONCE] for start in range(0, len(plans), PLANS_AT_ONCE)]
        predictions = [self._rescorer.logs(plan_features(self._profiled, part)) for part in parts]
        logs, spreads = (np.concatenate(each) for each in zip(*predictions, strict=True))
        return logs, np.hypot(spreads, self._error)


class NetworkOnFitted(Surrogate):
    """The GST cost model of the leave-one-out residuals of a fitted simulator. Its predictions are weighted by their
    least-squares fit to residuals of plans that it had not learned from.

    Attributes:
        weight: of its predictions, 0 .. 1.
    """

    corrects: bool = True

    def __init__(self, task: Task, seed: int = 0, learned: Learned = MappingProxyType({})) -> None:
        self.fitted, self.network = FittedSimulator(task, learned), NetworkSurrogate(task, seed)
        self.least = self.fitted.least
        self.weight = 0.0
        self._learned: set[str] = set()  # keys of plans
        self._tested = np.zeros((2, 0))  # predictions for new plans, and their residuals

    def learn(self, plans: Sequence[Plan], simulated_ms: Answers, logs: Answers) -> None:
        self.fitted.learn(plans, simulated_ms, logs)
        residuals = self.fitted.leave_one_out_residuals()
        new = [number for number, plan in enumerate(plans) if plan.key not in self._learned]
        if self._learned and new:
            predictions = self.network.means([plans[number] for number in new], simulated_ms[new])
            self._tested = np.hstack([self._tested, [predictions, residuals[new]]])
            x, y = self._tested
            self.weight = float(np.clip(x @ y / max(float(x @ x), SAME), 0.0, 1.0))
        self._learned |= {plan.key for plan in plans}
        self.network.learn(plans, simulated_ms, residuals)

    def corrected(self, task: Task, generator: np.random.Generator | None = None) -> Task:
        return self.fitted.corrected(task, generator)

    def learned(self) -> Learned:
        return self.fitted.learned()

    def __call__(self, plans: Sequence[Plan], simulated_ms: Answers) -> tuple[Answers, Answers]:
        return self.means(plans, simulated_ms), self.fitted(plans, simulated_ms)[1]

    def means(self, plans: Sequence[Plan], simulated_ms: Answers) -> Answers:
        return self.weight * self.network.means(plans, simulated_ms) if self.weight else np.zeros(len(plans))


COST_MODELS: dict[str, Callable[[Task, int, Learned], Surrogate]] = {
    "fitted": lambda task, seed, learned: FittedSimulator(task, learned),
    "gst": NetworkOnFitted,
    "none": lambda *_: Surrogate(),
}
"""By name, what makes the cost model of a task with a seed and costs learned before: the simulator with fitted costs,
the GST network on what fitted costs leave, or none. The first two start warm."""


def save_costs(out: Path, learned: Learned, machine: Mapping[str, Any], devices: Sequence[str]) -> None:
    """Write costs to the directory of a search."""
    write_json(out / LEARNED, {"machine": dict(machine), "devices": list(devices), "costs": dict(learned)})


def load_costs(out: Path, machine: Mapping[str, Any], devices: Sequence[str]) -> Learned:
    """Read the costs in the directory of a search.

    Raises:
        ValueError: there are none, the file is damaged, or they are of another machine, or of none of the devices.

    Examples:
        >>> out = Path("out")
        >>> save_costs(out, {"cpu:0": (0.1, 0.05)}, {"cpu": "mine"}, ["cpu:0"])
        >>> load_costs(out, {"cpu": "mine"}, ["cpu:0", "cpu:1"])
        {'cpu:0': (0.1, 0.05)}
    """
    path = out / LEARNED
    if not path.exists():
        raise ValueError(f"there is no {path}; name the --out of a gst place that has measured, with fitted costs")
    try:
        record = read_object(path)
        then, known = dict(record["machine"]), list(map(str, record["devices"]))
        costs = {str(name): (float(mean), float(deviation)) for name, (mean, deviation) in record["costs"].items()}
        if not all(math.isfinite(mean) and 0 < deviation < math.inf for mean, deviation in costs.values()):
            raise ValueError("a cost is no number, or its deviation is not positive")
    except DAMAGE as error:
        raise ValueError(f"{path} cannot be read: {plain(error)}; place its program anew") from error
    for what in (each for each, value in machine.items() if then.get(each, value) != value):
        raise ValueError(f"{path} was learned with {what} {then[what]}, here it is {machine[what]}; start without it")
    if not set(known) & set(devices):
        raise ValueError(f"{path} was learned on {', '.join(known)}, and the devices are {', '.join(devices)}")
    return costs
