"""The gate sees other processes, not this one."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

from gst.machine.devices import usable_cores
from gst.machine.load import LoadGate, LoadMeter, read_busy, repeated_while_busy
from gst.util.progress import Progress


class Clock:
    """A clock and counters moved by hand; `others`: share of all cores that others take while we sleep."""

    def __init__(self, others: list[float]) -> None:
        self.now, self.busy, self.own, self.others = 0.0, 0.0, 0.0, others

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.busy += seconds * len(usable_cores()) * self.others.pop(0)

    def gate(self, patience_s: float, progress: Progress = lambda *_: None) -> LoadGate:
        return LoadGate(0.15, patience_s, 0.1, lambda: (self.busy, self.own), self.sleep, lambda: self.now, progress)


def test_the_gate_opens_when_others_stop() -> None:
    clock = Clock([0.9, 0.5, 0.05, 0.9])
    spent, quiet = clock.gate(10).wait()
    assert quiet and abs(spent - 0.3) < 1e-9 and len(clock.others) == 1


def test_patience_ends() -> None:
    spent, quiet = Clock([1.0] * 9).gate(0.5).wait()
    assert not quiet and 0.5 <= spent < 0.7


def test_a_measurement_is_repeated_while_others_are_busy_as_long_as_patience_lasts() -> None:
    @dataclass
    class Measured:
        load: float | None

    def loads(
        measured: list[float | None], others: list[float], patience_s: float = 1.0, takes_s: float = 0.0
    ) -> list[float | None]:
        left, clock = iter(measured), Clock(others)

        def measure() -> Measured:
            clock.now += takes_s
            return Measured(next(left))

        return [each.load for each in repeated_while_busy(measure, clock.gate(patience_s))]

    assert loads([0.1, 0.0], []) == [0.1], "quiet enough"
    assert loads([None, 0.0], []) == [None], "nothing is known of it"
    assert loads([0.9, 0.2, 0.5, 0.0], [0.5, 0.0, 0.0]) == [0.9, 0.2, 0.5], "three times at most"
    assert loads([0.9, 0.0], [0.5] * 20) == [0.9], "the cores did not become quiet"
    assert loads([0.9, 0.8, 0.0], [0.5] * 7 + [0.0] + [0.5] * 20, patience_s=1.0) == [0.9, 0.8], "0.8 s are gone"
    assert loads([0.9, 0.8, 0.0], [0.0] * 9, takes_s=0.5) == [0.9, 0.8], "a third would end too late"
    assert loads([0.9, 0.0], [], takes_s=1.5) == [0.9], "so would a second"


def test_what_this_process_uses_is_not_load() -> None:
    clock = Clock([])
    meter = LoadMeter(lambda: (clock.busy, clock.own), lambda: clock.now)
    clock.now, clock.busy, clock.own = 1.0, 1.5, 1.0
    assert abs(meter.share() - 0.5 / len(usable_cores())) < 1e-9
    clock.own = 1.5
    assert meter.share() == 0.0


BUSY = "import time; end = time.time() + 60\nwhile time.time() < end: pass"
STARTS_IT = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=-3).pid)"


def seen_of_others() -> LoadMeter:
    time.sleep(0.3)
    meter = LoadMeter()
    time.sleep(0.5)
    return meter


def test_a_busy_neighbour_is_seen_on_this_machine() -> None:
    """Started by a process that has ended, it is no child of this one."""
    started = subprocess.run([sys.executable, "-c", STARTS_IT, BUSY], stdout=subprocess.PIPE, text=True, check=True)
    try:
        meter = seen_of_others()
        assert meter.share() > 0.4 / len(usable_cores())
        assert 1 < meter.stretch() <= 2 and meter.spent() < meter.elapsed(), "a budget lasts longer"
    finally:
        os.kill(int(started.stdout), signal.SIGKILL)


def test_a_busy_child_is_no_neighbour() -> None:
    def of_children() -> float:
        return read_busy()[1] - time.process_time()

    before, grown = of_children(), 0.0
    with subprocess.Popen([sys.executable, "-c", BUSY]) as child:
        try:
            deadline = time.monotonic() + 60
            while (grown := of_children() - before) <= 0.1 and time.monotonic() < deadline:
                time.sleep(0.1)
            assert grown > 0.1
        finally:
            child.kill()


@pytest.mark.parametrize(("share", "spent_s", "stretch"), [(0.0, 10, 1), (0.25, 7.5, 4 / 3), (0.84, 5, 2), (1.0, 5, 2)])
def test_a_budget_lasts_longer_by_the_share_that_others_take_and_at_most_twice(
    share: float, spent_s: float, stretch: float
) -> None:
    clock = Clock([share])
    meter = LoadMeter(lambda: (clock.busy, clock.own), lambda: clock.now)
    clock.sleep(10.0)
    assert abs(meter.spent() - spent_s) < 1e-9 and abs(meter.stretch() - stretch) < 1e-9
