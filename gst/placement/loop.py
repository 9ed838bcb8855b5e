"""The loop: proposers propose plans, the cost model predicts all of them, devices measure a few, and all learn."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gst.cost.metrics import kendall_tau
from gst.execution.measure import Log, Measurement
from gst.graphs.graph import Graph
from gst.lowering.plan import Plan, says_no_memory
from gst.machine.devices import this_machine
from gst.placement.fitted import FittedSimulator
from gst.placement.measured_plans import plans_graph
from gst.placement.methods import METHODS, proposers
from gst.placement.objectives import InProgramOrder, Measurer, Planned, Reward, SearchReward, Surrogate, restrict
from gst.placement.task import Task, check_same
from gst.util.progress import Progress, no_progress

AT_ONCE = 4  # plans that are timed alternately; the log holds them before the next four begin
NUM_TOP = 5  # the fastest plans so far, from which others are made
RAN = "ran"  # key in a line of the log: the plan of the program that ran, where it differs from the proposed one
NUM_AGAIN = 4  # of the fastest plans, measured again at the end: the fastest of many owes something to luck


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
    predicted = [trial for trial in ran(trials) if not np.isnan(trial.predicted_ms) and trial.origin != "again"]
    pairs = np.array([(trial.predicted_ms, trial.measurement.median_ms) for trial in predicted])
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


@dataclass(frozen=True, eq=False)
class Proposal:
    """A plan that might be measured, and the method that proposes it."""

    plan: Plan
    origin: str


@dataclass(eq=False)
class Loop:
    """A search for the fastest plan of a task. Each round fits the cost model, lets all proposers ask the reward about
    plans, predicts what they propose, and measures those that may be fastest (`Reward.chosen`), one of each proposer
    among them. Every measurement is on disk before the next begins. A search that is started again on the same log
    makes the same proposals, takes what was measured of them from the log, and goes on as if it had never stopped.

    Args:
        log: file to which trials are appended. Its trials count as done, also those that this search would not propose.
        starts: plans by name, which are measured first.
        budget: plans to measure, `starts` included.
        evaluations: plans that a proposer may ask the reward about in each round, on average: shares follow what each
            brought.
        rounds: fits of the cost model, at most.
        as_run: turns a plan of the task into one for the measurer, where these differ.
        surrogate: the cost model, one of `gst.placement.cost_models`; `FittedSimulator(task)` if None.
        methods: some of `gst.placement.methods.METHODS`; mutation is always among the proposers.
        on_fleet: plans run on other hosts; `gst.placement.fleet.cluster.kind_of_search` checks their kind of machine.

    Attributes:
        trials: all measurements, in order.
        num_screened: plans that were predicted.
        seconds: of the search.
    """

    task: Task
    measurer: Measurer
    log: Log
    starts: Mapping[str, Plan]
    budget: int = 50
    evaluations: int = 2_000
    tasks: Sequence[str] = ("placement", "schedule")
    rounds: int = 8
    seed: int = 0
    progress: Progress = no_progress
    as_run: Callable[[Plan], Plan] = lambda plan: plan
    surrogate: Surrogate | None = None
    methods: Sequence[str] = ("annealing",)
    on_fleet: bool = False
    trials: list[Trial] = field(init=False, default_factory=list)
    num_screened: int = field(init=False, default=0)
    seconds: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._logged: dict[str, list[Trial]] = {}
        self.reward = Reward(self.task, self.surrogate or FittedSimulator(self.task))
        decided = [name for name in self.tasks if name != "fusion"]
        self._proposers = proposers(self.methods, self.task, self.seed, decided, self.reward)
        self._settings = {"tasks": decided, "memory_limits": self.task.memories}

    @property
    def left(self) -> int:
        """Number of plans that may still be measured."""
        return max(0, self.budget - len(self.trials))

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
            ValueError: no plan ran, or the log is of another search.
        """
        started = time.perf_counter()
        self._read_log()
        self._measure(self._first(), 0)
        reserve = NUM_AGAIN if self.budget > 3 * NUM_AGAIN else 0
        rounds = min(self.rounds, math.ceil((self.left - reserve) / AT_ONCE)) if len(self.task.devices) > 1 else 0
        for number in range(1, rounds + 1):
            self.progress("learning", number - 1, rounds)
            self._learn()
            count = math.ceil(max(0, self.left - reserve) / (rounds + 1 - number))
            self._measure(self._chosen(count), number)
        again = fastest(self.trials)[: min(NUM_AGAIN, self.left)]
        self._measure([Proposal(plan, "again") for plan in again], rounds)
        self.seconds = time.perf_counter() - started
        return self.best()

    def _read_log(self) -> None:
        for record in self.log.read():
            trial = Trial.from_dict(record)
            self._check(record, trial)
            self._logged.setdefault(trial.plan.key, []).append(trial)

    def planned(self) -> Planned:
        """Run the search, and return its best plan with the simulated runtime."""
        plan = self.run()
        return Planned(plan, float(self.reward.prior([plan])[0]), self.seconds, len(self.trials))

    def best(self) -> Plan:
        """Return the plan with the lowest median of all its runs, among those measured again if there are any.

        Raises:
            ValueError: no plan ran.
        """
        plans = fastest(self.trials)
        if not plans:
            reasons = {trial.measurement.reason for trial in self.trials}
            raise ValueError(
                f"no plan ran on {', '.join(self.task.names)}: {'; '.join(sorted(reasons)) or 'none tried'}"
            )
        count = Counter(trial.plan.key for trial in ran(self.trials))
        return next((plan for plan in plans if count[plan.key] > 1), plans[0])

    def dataset(self) -> Graph | None:
        """Return the plans that ran and their runtimes in ns; None if none did."""
        good = ran(self.trials)
        runtimes = np.array([trial.measurement.median_ms for trial in good]) * 1e6
        return plans_graph(self.task.profiled, [trial.plan for trial in good], runtimes) if good else None

    def _learn(self) -> None:
        """Tell the reward what was measured so far, and for which plans memory was short."""
        good = ran(self.trials)
        short = [each.plan for each in self.trials if says_no_memory(each.measurement.reason)]
        self.reward.learn([each.plan for each in good], np.array([each.measurement.median_ms for each in good]), short)

    def _first(self) -> list[Proposal]:
        """Return `starts`, the fastest in simulation first, as far as half of the budget goes."""
        plans = {plan.key: Proposal(plan, name) for name, plan in self.starts.items()}
        expected = dict(zip(plans, self.reward.simulated([each.plan for each in plans.values()]), strict=True))
        in_order = sorted(plans, key=lambda key: (np.isnan(expected[key]), expected[key]))
        in_order = [key for key in in_order if np.isfinite(expected[key])] or in_order
        return [plans[key] for key in in_order[: min(max(1, self.budget // 2), self.budget)]]

    def _chosen(self, count: int) -> list[Proposal]:
        """Return plans to measure: the best of each proposer, then the others by `Reward.chosen`."""
        measured = {trial.plan.key for trial in self.trials}
        pool = {each.plan.key: each for each in reversed(self._proposed()) if each.plan.key not in measured}
        self.num_screened += len(pool)
        proposals = list(pool.values())
        if not proposals:
            return []
        generator = np.random.default_rng([self.seed, len(self.trials)])
        chosen = self.reward.chosen([each.plan for each in proposals], count, generator)
        in_order = [proposals[number] for number in chosen]
        first = {each.origin: each for each in reversed(in_order)}
        firsts = [each for each in in_order if each is first[each.origin]] if count > len(first) else []
        return (firsts + [each for each in in_order if each not in firsts])[:count]

    def _proposed(self) -> list[Proposal]:
        """Let every proposer ask the reward about its share of plans."""
        proposed: list[Proposal] = []
        top, shares = fastest(self.trials)[:NUM_TOP], self.shares()
        asked, measured = self.evaluations * len(shares), {trial.plan.key for trial in self.trials}
        task = self.reward.corrected()
        for name, propose in self._proposers:
            method = METHODS.get(name)  # none for mutation, which asks nothing
            reward = self.reward.predicted if method and method.is_local else self.reward
            reward = reward if "schedule" in self.tasks else InProgramOrder(reward)
            count = max(int(shares.get(name, 0) * asked), 1) // (method.cost if method else 1)
            about = SearchReward(reward, count, measured)
            sources = top + [each.plan for each in proposed[-NUM_TOP:]]
            plans = propose(task, about, sources if name == "mutation" else top, self.progress)
            self.num_screened += about.num_asked
            proposed += [Proposal(restrict(plan, self.tasks), name) for plan in plans]
        return proposed

    def shares(self) -> dict[str, float]:
        """Return the share of the evaluations that each proposer gets: one more than the number of its plans that were
        the fastest when they were measured, over the sum (the rule of succession of Laplace)."""
        wins, best = dict.fromkeys(self.methods, 1), math.inf
        for trial in ran(self.trials):
            if trial.measurement.median_ms < best:
                best = trial.measurement.median_ms
                if trial.round and trial.origin in wins:
                    wins[trial.origin] += 1
        return {name: count / sum(wins.values()) for name, count in wins.items()}

    def _measure(self, candidates: Sequence[Proposal], number: int) -> None:
        """Measure a few plans at a time, alternately, and log each result as soon as it is there; the log may have it
        already."""
        new = []
        for each in candidates:
            if logged := self._logged.get(each.plan.key):
                self.trials.append(logged.pop(0))
            else:
                new.append(each)
        if new:
            self.trials += [trial for several in self._logged.values() for trial in several]
            self._logged.clear()
            new = new[: self.left]
        several = [new[start : start + AT_ONCE] for start in range(0, len(new), AT_ONCE)]
        predicted = [self.reward.means([each.plan for each in few]) for few in several]
        batches = [[self.as_run(each.plan) for each in few] for few in several]
        for position, measurements in self.measurer.measure_batches(batches):
            for each, as_run, predicted_ms, measurement in zip(
                several[position], batches[position], predicted[position], measurements, strict=True
            ):
                trial = Trial(each.plan, each.origin, number, float(predicted_ms), measurement)
                other = {} if as_run is each.plan else {RAN: as_run.to_dict()}
                self.log.append({"program": self.task.key, **self._settings, **trial.to_dict(), **other})
                self.trials.append(trial)
            least = min((each.measurement.median_ms for each in ran(self.trials)), default=math.nan)
            self.progress(f"measuring, best {least:.2f} ms", len(self.trials), self.budget)
