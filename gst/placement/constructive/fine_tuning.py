"""The constructive policy on a program's own task: its plan, and plans of weights fine-tuned on that task alone."""

from __future__ import annotations

from functools import partial

import numpy as np
from jaxtyping import Float32, Float64, Int64

from gst.devices import Plan
from gst.devices.plan import priority_of
from gst.placement.baselines.list_kernels import place_the_rest
from gst.placement.baselines.list_schedules import task_scheduled
from gst.placement.baselines.units import limits_bytes, smallest_units
from gst.placement.constructive.network import Weights, load_weights
from gst.placement.constructive.rollout import roll_out, window_of
from gst.placement.constructive.tables import tables_of_arrays
from gst.placement.evolution import Evolving, evolved
from gst.placement.objective import Budgeted
from gst.placement.scheduling.arrays import edge_lists
from gst.placement.scheduling.list_schedule import places
from gst.placement.task import Task
from gst.process.progress import Progress, no_progress

PAIRS = 8  # of opposite noises at a step
MOST_STEPS = 50  # of fine-tuning, as GO's
FAILED = 2.0  # times the slowest of a step: a plan that does not fit


class TaskRollouts:
    """Plans that the policy builds for a task, one for each vector of weights.

    Operations that take time or read values are placed; inputs and constants go where the first that reads them is.
    Links never queue and lanes of one accelerator do not slow each other down while a plan is built; whoever judges the
    plan may know better.

    Args:
        task: what is placed where; devices may share cores.
    """

    def __init__(self, task: Task) -> None:
        self._task, self._all, self._parts = task, task_scheduled(task), smallest_units(task)
        arrays, use = self._all.arrays, self._all.use
        self._kept = kept = np.flatnonzero(task.costs.computed)
        number = np.full(task.num_nodes, -1)
        number[kept] = np.arange(len(kept))
        edges = number[task.costs.edges]
        self._unit, groups = np.unique(self._parts.of[kept], return_inverse=True)
        self._arrays = arrays._replace(
            **edge_lists(edges[:, (edges >= 0).all(0)], len(kept), by_node=True)._asdict(),
            times=np.ascontiguousarray(arrays.times[:, kept]), amounts=arrays.amounts[kept],
            groups=groups.astype(np.int64), sizes=self._parts.load_bytes[self._unit], limits=limits_bytes(task),
        )  # fmt: skip
        apart = ~np.eye(len(use), dtype=bool)
        links = (arrays.fixed[apart].mean(), arrays.per_amount[apart].mean()) if len(use) > 1 else (0.0, 0.0)
        transfers = links[0] + links[1] * self._arrays.amounts
        self._tables = tables_of_arrays(self._arrays, transfers, use, is_view_free=True)
        self._window = window_of(len(use))

    def __call__(self, weights: Weights) -> Plan | None:
        """None if the memories do not hold what the weights build."""
        home, order = np.empty(len(self._kept), np.int64), np.empty(len(self._kept), np.int64)
        state = np.ones(1, np.uint64)
        span = roll_out(self._arrays, self._tables, weights, self._window, False, False, state, home, order)
        return self._plan(home, order) if np.isfinite(span) else None

    def _plan(self, home: Int64[np.ndarray, " computed"], order: Int64[np.ndarray, " computed"]) -> Plan | None:
        placement, device = np.full(self._task.num_nodes, -1), np.full(self._parts.count, -1)
        placement[self._kept] = home
        device[self._parts.of[self._kept]] = home
        rest = self._all.arrays._replace(groups=self._parts.of, sizes=self._parts.load_bytes)
        place_the_rest(placement, rest, places(self._parts.times_us, limits_bytes(self._task), device))
        if (placement < 0).any():
            return None
        others = np.flatnonzero(~self._task.costs.computed)
        return self._task.plan(placement, priority_of(np.concatenate([others, self._kept[order]])))


class FineTuning:
    """Weights of the policy that follow one task: evolution strategies whose members are judged by an objective, as GO
    is fine-tuned on a graph by policy gradient (Zhou et al., Transferable Graph Optimizers, 2020, section 4.3).

        tuning = FineTuning(task, seed=0)
        tuning.run(Budgeted(simulated, 500))      # and again, as the simulator is corrected by measurements

    Args:
        task: what is placed where.
        seed: of the noise.
        weights: to begin with; those that come with the package if None.
    """

    def __init__(self, task: Task, seed: int = 0, weights: Weights | None = None) -> None:
        begin = load_weights() if weights is None else weights
        nothing = np.zeros_like(begin)
        self._rollouts = TaskRollouts(task)
        self._state = Evolving(weights=begin, average=begin, first=nothing, second=nothing)
        self._generator = np.random.default_rng([seed, 31])

    def run(self, objective: Budgeted, progress: Progress = no_progress) -> None:
        """Ask the objective about the plan of the weights, then about those of each step's members, until nothing is
        left or `MOST_STEPS` steps are done; it remembers the best."""
        self._ask(objective, self._state.average[None])
        steps = min(MOST_STEPS, objective.left // (2 * PAIRS))
        for step in range(steps):
            progress("fine-tuning the policy", step, steps)
            logs = partial(self._logs, objective)
            self._state = evolved(self._state, logs, PAIRS, self._generator, step / steps)
        self._ask(objective, self._state.average[None])

    def _logs(
        self, objective: Budgeted, weights: Float32[np.ndarray, "members weights"]
    ) -> Float64[np.ndarray, "one members"]:
        took = self._ask(objective, weights)
        return np.log(np.where(np.isfinite(took), took, FAILED * np.nanmax(took, initial=1.0)))[None]

    def _ask(
        self, objective: Budgeted, weights: Float32[np.ndarray, "members weights"]
    ) -> Float64[np.ndarray, " members"]:
        """What the objective says of the plan of each row; NaN where there is none."""
        plans = [self._rollouts(row) for row in weights]
        took = np.full(len(plans), np.nan)
        built = [number for number, plan in enumerate(plans) if plan is not None]
        took[built] = objective([plan for plan in plans if plan is not None])
        return took


def fine_tune(task: Task, objective: Budgeted, seed: int = 0, progress: Progress = no_progress) -> None:
    """The constructive policy, fine-tuned on a task within the objective's budget.

    Examples:
        >>> from gst.placement.objective import SimulatedObjective
        >>> from gst.placement.policies.generated_tasks import generated_task
        >>> task = generated_task(0, num_nodes=60, num_devices=2)
        >>> objective = Budgeted(SimulatedObjective(task), budget=100)
        >>> fine_tune(task, objective)
        >>> objective.num_asked
        98
    """
    FineTuning(task, seed).run(objective, progress)
