"""Search for the fastest plan by measurements, with a surrogate that corrects the simulator."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from gst.cost.metrics import kendall_tau
from gst.data.measured_plans import plans_graph
from gst.execution.measure import Log, Measurement
from gst.graphs.graph import Graph
from gst.lowering.plan import Plan
from gst.machine.devices import this_machine
from gst.placement.objectives import Budgeted, InProgramOrder, Measurer, Objective, Planned, restrict
from gst.placement.search.annealing import anneal
from gst.placement.search.random_plans import crossover, mutate
from gst.placement.search.surrogates import ScreenedObjective, Surrogate
from gst.placement.task import Task, check_same
from gst.util.progress import Progress, no_progress

AT_ONCE = 4  # plans that are timed alternately; the log holds them before the next four begin
NUM_TOP = 5  # the fastest plans so far, from which others are made
NUM_MUTATED = 256
RAN = "ran"  # key in a line of the log: the plan of the program that ran, where it differs from the proposed one
POLICY_COSTS = 8  # steps of annealing that take as long as one plan by the policy
NUM_AGAIN = 4  # of the fastest plans, measured again at the end: the fastest of many owes something to luck


@dataclass(frozen=True, eq=False)
class Trial:
    """A plan that was measured during the search.

    Args:
        origin: the baseline or method that proposed the plan, `mutation`, `uncertain`, or `again`.
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


@dataclass(frozen=True, eq=False)
class Proposal:
    """A plan that might be measured, and the method that proposes it."""

    plan: Plan
    origin: str


def as_is(plan: Plan) -> Plan:
    return plan


class Tuning(Protocol):
    """A policy that is tuned on an objective and asks it about plans (`FineTuning`)."""

    def run(self, objective: Budgeted, progress: Progress = no_progress) -> None: ...


@dataclass(eq=False)
class Search:
    """A search for the fastest plan of a task. Each round fits the surrogate, proposes plans by annealing and mutation,
    predicts all of them, and measures the promising and the uncertain ones. Every measurement is on disk before the
    next begins; a search that is started again on the same log continues it.

    Args:
        log: file to which trials are appended; its trials count as done.
        starts: plans by name, which are measured first.
        budget: plans to measure, `starts` included.
        evaluations: plans that annealing may ask the simulator about in each round, and as many the corrected one.
        rounds: fits of the surrogate.
        as_run: turns a plan of the task into one for the measurer, where these differ.
        surrogate: model of the simulator's error, fitted to measurements; `LinearSurrogate(task)` if None.
        tuning: a policy that also proposes plans in each round; none if None.
        on_fleet: plans run on other hosts; `gst.placement.fleet.cluster.kind_of_search` checks their kind of machine.
    """

    task: Task
    measurer: Measurer
    log: Log
    starts: Mapping[str, Plan]
    budget: int = 50
    evaluations: int = 2_000
    tasks: Sequence[str] = ("placement", "schedule")
    rounds: int = 4
    seed: int = 0
    progress: Progress = no_progress
    as_run: Callable[[Plan], Plan] = as_is
    surrogate: Surrogate | None = None
    tuning: Tuning | None = None
    on_fleet: bool = False
    num_screened: int = 0
    seconds: float = 0.0
    trials: list[Trial] = field(init=False)

    def __post_init__(self) -> None:
        records = self.log.read()
        self.trials = [Trial.from_dict(record) for record in records]
        self._generator = np.random.default_rng([self.seed, len(self.trials)])
        self.screen = ScreenedObjective(self.task, self.surrogate)
        decided = [name for name in self.tasks if name != "fusion"]
        self._settings = {"tasks": decided, "memory_limits": self.task.memories}
        for record, trial in zip(records, self.trials, strict=True):
            self._check(record, trial)

    def _check(self, record: Mapping[str, Any], trial: Trial) -> None:
        """Raise ValueError if a trial of the log is of another task, other settings or another machine."""
        then = {**record, "program": record.get("program"), "devices": list(trial.plan.devices)}
        now = {"program": self.task.key, "devices": list(self.task.names), **self._settings}
        check_same(self.log.path, then, now)
        if not self.on_fleet:
            check_same(self.log.path, trial.measurement.machine, this_machine())

    def run(self) -> Plan:
        """Spend the budget, and return the plan with the lowest median.

        Raises:
            ValueError: no plan ran.
        """
        started = time.perf_counter()
        self._measure(self._first(), 0)
        reserve = NUM_AGAIN if self.budget > 3 * NUM_AGAIN else 0
        for number in range(1, self.rounds + 1):
            left = self.budget - reserve - len(self.trials)
            if left <= 0 or len(self.task.devices) < 2:
                break
            self.progress("learning", number - 1, self.rounds)
            self.screen.learn([t.plan for t in self._ran()], np.array([t.measurement.median_ms for t in self._ran()]))
            self._measure(self._candidates(-(-left // (self.rounds + 1 - number)), number), number)
        again = max(0, min(NUM_AGAIN, self.budget - len(self.trials)))
        self._measure([Proposal(plan, "again") for plan in self._fastest(again)], self.rounds)
        self.seconds += time.perf_counter() - started
        return self.best()

    def planned(self) -> Planned:
        """Run the search, and return its best plan with the simulated runtime."""
        plan = self.run()
        return Planned(plan, float(self.screen.simulated([plan])[0]), self.seconds, len(self.trials))

    def best(self) -> Plan:
        """Return the plan with the lowest median of all its runs, among those measured again if there are any.

        Raises:
            ValueError: no plan ran.
        """
        fastest = self._fastest()
        if not fastest:
            reasons = {trial.measurement.reason for trial in self.trials}
            raise ValueError(
                f"no plan ran on {', '.join(self.task.names)}: {'; '.join(sorted(reasons)) or 'none tried'}"
            )
        count = Counter(trial.plan.key for trial in self._ran())
        return next((plan for plan in fastest if count[plan.key] > 1), fastest[0])

    def _fastest(self, count: int | None = None) -> list[Plan]:
        """Return plans by the median of all their runs, the fastest first."""
        runs: dict[str, list[float]] = {}
        plans = {trial.plan.key: trial.plan for trial in self._ran()}
        for trial in self._ran():
            runs.setdefault(trial.plan.key, []).extend(trial.measurement.samples_ms)
        in_order = sorted(runs, key=lambda key: float(np.median(runs[key])))
        return [plans[key] for key in in_order[:count]]

    def tau(self) -> float:
        """Return Kendall's tau between predictions and the later measurements; NaN if there are fewer than two."""
        ran = [trial for trial in self._ran() if not np.isnan(trial.predicted_ms) and trial.origin != "again"]
        pairs = np.array([(trial.predicted_ms, trial.measurement.median_ms) for trial in ran])
        return kendall_tau(pairs[:, 0], pairs[:, 1]) if len(pairs) > 1 else float("nan")

    def dataset(self) -> Graph | None:
        """Return the plans that ran and their runtimes in ns; None if none did."""
        good = self._ran()
        runtimes = np.array([trial.measurement.median_ms for trial in good]) * 1e6
        return plans_graph(self.task.profiled, [trial.plan for trial in good], runtimes) if good else None

    def report_rows(self) -> list[dict[str, Any]]:
        """Return the trials as the report draws them; a plan measured again keeps its first origin."""
        first = {trial.plan.key: trial.origin for trial in reversed(self.trials)}
        rows = []
        for trial in self.trials:
            record = trial.to_dict()
            measured = {key: record["measurement"][key] for key in ("median_ms", "low_ms", "high_ms", "outcome")}
            label, origin = trial.plan.key[:8], first[trial.plan.key]
            rows.append({key: record[key] for key in ("round", "predicted_ms")} | measured)
            rows[-1] |= {"label": label, "origin": origin}
        return rows

    def _ran(self) -> list[Trial]:
        """Return the trials whose plan ran to the end, in the order measured."""
        return [trial for trial in self.trials if trial.measurement.outcome == "ok"]

    def _first(self) -> list[Proposal]:
        """Return `starts`, the fastest in simulation first, as far as half of the budget goes."""
        measured_keys = {trial.plan.key for trial in self.trials}
        plans = {plan.key: Proposal(plan, name) for name, plan in self.starts.items()}
        expected = dict(zip(plans, self.screen.simulated([each.plan for each in plans.values()]), strict=True))
        in_order = sorted(plans, key=lambda key: (np.isnan(expected[key]), expected[key]))
        chosen = [plans[key] for key in in_order[: max(1, self.budget // 2)] if key not in measured_keys]
        return chosen[: max(0, self.budget - len(self.trials))]

    def _candidates(self, count: int, number: int) -> list[Proposal]:
        """Return plans without a measurement: the fastest predicted ones, and for one in six an uncertain one."""
        measured_keys = {trial.plan.key for trial in self.trials}
        pool = {each.plan.key: each for each in self._proposed(number) if each.plan.key not in measured_keys}
        self.num_screened += len(pool)
        keys = list(pool)
        if not keys:
            return []
        predicted_ms, factor = self.screen.with_spread([pool[key].plan for key in keys])
        order = np.argsort(np.where(np.isnan(predicted_ms), np.inf, predicted_ms), kind="stable").tolist()
        num_uncertain = count // 6
        chosen = order[: count - num_uncertain]
        promising = order[count - num_uncertain : max(len(order) // 2, count)]
        uncertain = sorted(promising, key=lambda i: -factor[i])[:num_uncertain]
        return [pool[keys[i]] for i in chosen] + [Proposal(pool[keys[i]].plan, "uncertain") for i in uncertain]

    def _proposed(self, number: int) -> list[Proposal]:
        top = self._fastest(NUM_TOP)
        proposed = self._annealed("the simulator", self.screen.simulated, self.seed + 2 * number, top[:1])
        proposed += self._annealed("the cost model", self.screen, self.seed + 2 * number + 1, top)
        sources = top + [each.plan for each in proposed[-NUM_TOP:]]
        if self.tuning is not None:
            tune = partial(self.tuning.run, progress=self.progress)
            built = self._improved("policy", tune, self.screen, self.evaluations // POLICY_COSTS)
            proposed += built
            sources += [each.plan for each in built[-1:]]
        mutated = [self._neighbour(sources) for _ in range(NUM_MUTATED)]
        return proposed + [Proposal(restrict(plan, self.tasks), "mutation") for plan in mutated]

    def _annealed(self, by: str, runtime: Objective, seed: int, start: Sequence[Plan]) -> list[Proposal]:
        def report(what: str, done: int, total: int) -> None:
            self.progress(f"annealing by {by}", done, total)

        def search(budgeted: Budgeted) -> None:
            anneal(self.task, budgeted, seed, report, start)

        return self._improved("annealing", search, runtime, self.evaluations)

    def _improved(
        self, origin: str, search: Callable[[Budgeted], None], runtime: Objective, evaluations: int
    ) -> list[Proposal]:
        """Return the last improvements of a method."""
        budgeted = Budgeted(runtime if "schedule" in self.tasks else InProgramOrder(runtime), evaluations)
        search(budgeted)
        self.num_screened += budgeted.num_asked
        return [Proposal(restrict(plan, self.tasks), origin) for plan in budgeted.improvements[-32:]]

    def _neighbour(self, plans: Sequence[Plan]) -> Plan:
        if self._generator.random() < 0.3:
            return crossover(self.task, plans, self._generator)
        return mutate(self.task, plans[int(self._generator.integers(len(plans)))], self._generator)

    def _measure(self, candidates: Sequence[Proposal], number: int) -> None:
        """Measure a few plans at a time, alternately, and log each result as soon as it is there."""
        several = [candidates[start : start + AT_ONCE] for start in range(0, len(candidates), AT_ONCE)]
        predicted = [self.screen([each.plan for each in few]) for few in several]
        batches = [[self.as_run(each.plan) for each in few] for few in several]
        for position, measurements in self.measurer.measure_batches(batches):
            for each, ran, predicted_ms, measurement in zip(
                several[position], batches[position], predicted[position], measurements, strict=True
            ):
                trial = Trial(each.plan, each.origin, number, float(predicted_ms), measurement)
                as_run = {} if ran is each.plan else {RAN: ran.to_dict()}
                self.log.append({"program": self.task.key, **self._settings, **trial.to_dict(), **as_run})
                self.trials.append(trial)
            self.progress("measuring", len(self.trials), self.budget)
