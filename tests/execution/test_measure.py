"""Measurements take turns, survive a failing callable, and say how sure they are."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gst.execution.measure import LEAST_ROUNDS, Log, Measurement, measure, median_interval
from gst.machine.devices import usable_cores
from gst.machine.load import LoadGate


def test_callables_take_turns_after_their_warm_up() -> None:
    calls: list[str] = []
    rounds: list[tuple[int, int]] = []
    found = measure(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")},
        repetitions=3,
        warmup=2,
        progress=lambda done, total: rounds.append((done, total)),
    )
    assert [sorted(calls[each : each + 2]) for each in range(0, 10, 2)] == [["a", "b"]] * 5
    assert rounds == [(number, 5) for number in range(1, 6)]
    assert found["a"].repetitions == len(found["a"].samples_ms) == 3


def test_no_round_begins_after_the_seconds_once_the_least_are_timed() -> None:
    now = 0.0

    def quarter() -> float:
        nonlocal now
        now += 0.25
        return 250.0

    measured = partial(measure, repetitions=100, warmup=1, time_of=lambda run: run(), clock=lambda: now)
    assert measured({"quarter": quarter}, seconds=3.0)["quarter"].repetitions == 12
    assert measured({"quarter": quarter}, seconds=0.0)["quarter"].repetitions == LEAST_ROUNDS


def test_interval_of_a_known_sample() -> None:
    samples = np.random.default_rng(0).normal(100, 10, 400).tolist()
    median, low, high = median_interval(samples, np.random.default_rng(1))
    assert low < median < high
    assert high - low == pytest.approx(2 * 1.96 * 1.2533 * 10 / 20, rel=0.35)  # standard error of a median
    assert median_interval([5.0], np.random.default_rng(0)) == (5.0, 5.0, 5.0)


def test_a_failing_callable_is_an_outcome() -> None:
    tries: list[int] = []

    def fail() -> None:
        tries.append(1)
        raise RuntimeError("no memory")

    found = measure({"bad": fail, "good": lambda: None}, repetitions=3, warmup=1)
    assert found["bad"].outcome == "failed" and found["bad"].reason == "RuntimeError: no memory"
    assert np.isnan(found["bad"].median_ms) and len(tries) == 1
    assert found["good"].outcome == "ok" and found["good"].repetitions == 3


def test_a_measurement_survives_the_log(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("no memory")

    found = measure({"bad": fail, "good": lambda: None}, repetitions=3)
    log = Log(tmp_path / "log.jsonl")
    for each in found.values():
        log.append(each.to_dict())
    bad, good = (Measurement.from_dict(record) for record in log.read())
    assert good == found["good"] and np.isnan(bad.median_ms) and bad.reason == found["bad"].reason


class Machine:
    """A clock, and cores of which others take a share while a round runs."""

    def __init__(self) -> None:
        self.now = self.busy = 0.0

    def run(self, seconds: float, share: float) -> float:
        self.now += seconds
        self.busy += seconds * share * len(usable_cores())
        return 1e3 * seconds * (1 + share)

    def gate(self, patience_s: float) -> LoadGate:
        return LoadGate(0.15, patience_s, 0.0, lambda: (self.busy, 0.0), pytest.fail, lambda: self.now)


def test_a_round_that_others_spoil_is_repeated_up_to_the_patience() -> None:
    def samples(shares: list[float], patience_s: float, seconds: float = 0.5) -> tuple[float, ...]:
        machine, loads = Machine(), iter([0.0, *shares])
        gate = machine.gate(patience_s)
        run = {"a": lambda: machine.run(seconds, next(loads)), "b": lambda: 1.0}
        measured = measure(run, 3, 1, gate, time_of=lambda call: call())
        assert len(measured["b"].samples_ms) == 3, "rounds are whole"
        return measured["a"].samples_ms

    assert samples([0.0, 0.9, 0.9, 0.2, 0.0], 1.0) == (500.0, 600.0, 500.0), "the spoilt ones are dropped"
    assert samples([0.9, 0.9, 0.9, 0.9], 0.5) == (950.0, 950.0, 950.0), "patience ends after one"
    assert samples([0.9, 0.9, 0.9], 0.0) == (950.0, 950.0, 950.0), "without any"
    assert samples([0.9, 0.9, 0.9], 1.0, seconds=0.01) == (19.0, 19.0, 19.0), "too short to be judged"


def test_the_gate_is_asked_before_every_round_and_its_patience_is_for_all() -> None:
    class Busy:
        """Other processes take all cores, always."""

        def __init__(self) -> None:
            self.now = 0.0

        def clock(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += seconds

        def read(self) -> tuple[float, float]:
            return 100 * self.now, 0.0

    busy = Busy()
    impatient = LoadGate(patience_s=0.0, read=pytest.fail)  # it does not look
    assert measure({"a": lambda: None}, repetitions=1, gate=impatient)["a"].outcome == "ok"
    gate = LoadGate(patience_s=1.0, read=busy.read, sleep=busy.sleep, clock=busy.clock)
    found = measure({"a": lambda: None}, repetitions=10, gate=gate)["a"]
    assert not found.quiet and found.repetitions == 10
    assert 1.0 <= busy.now < 1.3
