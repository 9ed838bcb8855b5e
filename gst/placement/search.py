"""The loop: measure, learn the cost model, propose, screen, measure the promising, and at the end measure afresh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gst.cost import CostModel
from gst.cost.metrics import kendall_tau
from gst.data.measured_plans import plans_graph
from gst.devices import Log, Measurement, Plan
from gst.graph import Graph
from gst.placement.baselines import crossover, mutate, portfolio
from gst.placement.policy import PlacementPolicy, distinct
from gst.placement.runtime import MeasuredRuntime, PredictedRuntime, Progress
from gst.placement.task import Task


@dataclass(frozen=True, eq=False)
class Trial:
    """A plan that was measured during the search.

    Args:
        origin: `baseline`, `mutation`, `policy` or `random`.
        round: 0 before there was a cost model.
        predicted_ms: what the cost model said before the plan was measured; NaN in round 0.
    """

    plan: Plan
    origin: str
    round: int
    predicted_ms: float
    measurement: Measurement

    def to_dict(self) -> dict[str, Any]:
        predicted = None if np.isnan(self.predicted_ms) else self.predicted_ms
        return {
            "origin": self.origin, "round": self.round, "predicted_ms": predicted,
            "measurement": self.measurement.to_dict(), "plan": self.plan.to_dict(),
        }  # fmt: skip

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Trial:
        predicted = record["predicted_ms"]
        return Trial(
            Plan.from_dict(record["plan"]), record["origin"], record["round"],
            float("nan") if predicted is None else predicted, Measurement.from_dict(record["measurement"]),
        )  # fmt: skip


@dataclass(eq=False)
class Search:
    """A search for the fastest plan of a task. Every measurement is on disk before the next begins; a search that is
    started again on the same log goes on with what is there.

    Args:
        task: what is placed where.
        runtime: measures.
        log: where trials are appended; trials of it are taken over.
        budget: plans to measure, baselines included.
        rounds: how often the cost model is learned anew.
        seed: of everything that is drawn.
        progress: told what is going on.
    """

    task: Task
    runtime: MeasuredRuntime
    log: Log
    budget: int = 40
    rounds: int = 3
    seed: int = 0
    progress: Progress = lambda what, done, total: None
    model: CostModel | None = None
    history: list[dict[str, float]] = field(default_factory=list)
    num_screened: int = 0

    def __post_init__(self) -> None:
        records = self.log.read()
        self.trials = [Trial.from_dict(record) for record in records]
        self._generator = np.random.default_rng([self.seed, len(self.trials)])
        for record, trial in zip(records, self.trials, strict=True):
            if record.get("program") != self.task.key or trial.plan.devices != self.task.names:
                raise ValueError(
                    f"{self.log.path} holds plans of another program or other devices; search into another directory"
                )

    def run(self) -> Plan:
        """Spend the budget; returns the plan with the lowest median during the search."""
        self._first_round()
        for number in range(1, self.rounds + 1):
            left = self.budget - len(self.trials)
            if left <= 0:
                break
            self._learn()
            self._measure(self._candidates(-(-left // (self.rounds + 1 - number))), number)
        self._learn()
        return self.best().plan

    def best(self) -> Trial:
        """The trial with the lowest median.

        Raises:
            ValueError: no plan ran.
        """
        good = self._ran()
        if not good:
            reasons = {trial.measurement.reason for trial in self.trials}
            raise ValueError(
                f"no plan ran on {', '.join(self.task.names)}: {'; '.join(sorted(reasons)) or 'none tried'}"
            )
        return min(good, key=lambda trial: trial.measurement.median_ms)

    def tau(self) -> float:
        """Kendall's tau between predictions and the measurements made after them; NaN without two of them."""
        pairs = [(t.predicted_ms, t.measurement.median_ms) for t in self._ran()]
        said = np.array([pair for pair in pairs if not np.isnan(pair[0])])
        return kendall_tau(said[:, 0], said[:, 1]) if len(said) > 1 else float("nan")

    def dataset(self) -> Graph:
        """All plans that ran and their runtimes in ns."""
        good = self._ran()
        runtimes = np.array([trial.measurement.median_ms for trial in good]) * 1e6
        return plans_graph(self.task.profiled, [trial.plan for trial in good], runtimes)

    def _ran(self) -> list[Trial]:
        """The trials whose plan ran to the end, in the order measured."""
        return [trial for trial in self.trials if trial.measurement.outcome == "ok"]

    def _first_round(self) -> None:
        """The baselines, then neighbours and mixtures of them until a third of the budget is spent."""
        known = {trial.plan.key for trial in self.trials}
        baselines = distinct(list(portfolio(self.task).values()))
        if self.budget < len(baselines):
            raise ValueError(f"a budget of {self.budget} plans does not cover the {len(baselines)} baselines; raise it")
        self._measure([(plan, "baseline", np.nan) for plan in baselines if plan.key not in known], 0)
        known |= {plan.key for plan in baselines}
        wanted = self.budget // 3 - len(self.trials) if len(self.task.devices) > 1 else 0
        tried = distinct([self._neighbour(baselines) for _ in range(8 * max(wanted, 0))])
        mixed = [plan for plan in tried if plan.key not in known][: max(wanted, 0)]
        self._measure([(plan, "mutation", np.nan) for plan in mixed], 0)

    def _neighbour(self, plans: Sequence[Plan]) -> Plan:
        if self._generator.random() < 0.3:
            return crossover(self.task, plans, self._generator)
        return mutate(self.task, plans[int(self._generator.integers(len(plans)))], self._generator)

    def _learn(self) -> None:
        if len({trial.measurement.median_ms for trial in self._ran()}) < 2:
            return
        self.model = CostModel(
            num_opcodes=int(self.task.graph.opcodes.max()) + 1, log_config=False, seed=self.seed
        )
        epochs = 120
        self.history = self.model.fit(
            [self.dataset()],
            epochs,
            progress=lambda epoch, loss: self.progress("learning", epoch + 1, epochs),
        )

    def _candidates(self, count: int) -> list[tuple[Plan, str, float]]:
        """Plans nobody measured: the best predicted of the policy's and of mutations, and one in six at random."""
        if self.model is None or len(self.task.devices) < 2:
            return []
        predicted = PredictedRuntime(self.model, self.task.profiled)
        known = {trial.plan.key for trial in self.trials}
        ranked = sorted(self._ran(), key=lambda trial: trial.measurement.median_ms)
        top = [trial.plan for trial in ranked[:5]]

        self.progress("policy", 0, 2)
        policy = PlacementPolicy(self.task, seed=int(self._generator.integers(2**31)))
        policy.imitate(top[0])
        drawn, said = policy.learn(predicted)
        pool = {plan.key: (plan, "policy", value) for plan, value in zip(drawn, said, strict=True)}
        self.progress("policy", 1, 2)
        mutated = distinct([self._neighbour(top) for _ in range(256)])
        pool |= {plan.key: (plan, "mutation", value) for plan, value in zip(mutated, predicted(mutated), strict=True)}
        self.num_screened += len(drawn) + len(mutated)
        self.progress("policy", 2, 2)
        fresh = [entry for key, entry in pool.items() if key not in known]
        by_origin = [sorted((e for e in fresh if e[1] == o), key=lambda e: e[2]) for o in ("policy", "mutation")]
        num_random = count // 6
        half = (count - num_random) // 2
        chosen = [*by_origin[0][:half], *by_origin[1][: count - num_random - half]]
        rest = [(plan, "random", value) for plan, _, value in by_origin[1][len(by_origin[1]) // 4 :]]
        picks = self._generator.permutation(len(rest))[: count - len(chosen)]
        return chosen + [rest[i] for i in picks]

    def _measure(self, candidates: Sequence[tuple[Plan, str, float]], number: int, at_once: int = 4) -> None:
        """Measure a few plans at a time, in turns, and write down each."""
        for start in range(0, len(candidates), at_once):
            few = candidates[start : start + at_once]
            seen = self.runtime.measure([plan for plan, _, _ in few])
            for (plan, origin, predicted), measurement in zip(few, seen, strict=True):
                trial = Trial(plan, origin, number, float(predicted), measurement)
                self.log.append({"program": self.task.key, **trial.to_dict()})
                self.trials.append(trial)
            self.progress("measuring", len(self.trials), self.budget)
