"""The ways to run a whole model that are worth having: compared with the model on fresh inputs, timed in turns."""

from __future__ import annotations

import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from gst.execution.measure import LEAST_ROUNDS, Measurement, measure, median_interval
from gst.execution.plain import COMPILED, PYTORCH, SPIN_S, rested
from gst.machine.devices import machine_record
from gst.util.progress import Progress, no_progress
from gst.whole_model.guards import Guard
from gst.whole_model.whole import AHEAD, Function, OnAccelerator, Way, difference, ways, whole_run

LOOKS = 3  # runs of each way before only those that may win are timed in earnest
MAY_WIN = 1.25  # times the fastest of the first look, at most
SCALES = 1.3  # times as long on one core as on all: then no way is compiled for one core
AUTOTUNE_S = 240.0  # that must be left, for the compiler to measure kernels
SEED = 0  # of the inputs on which outputs are compared
MOST_ROUNDS = 25  # of each set of runs at the end
ATTEMPTS, NEAR = 2, 1.03  # sets with twice as many runs, while a way looks faster by more than 3 % and may be luck
TIMES = ("median_ms", "low_ms", "high_ms")


class GuardedRun:
    """Runs a model one way where a call is what it was made for, and otherwise the model itself, with one warning.

    Args:
        model: as written, for calls of another kind.
        guard: what tells.
        run: called as the model is.
    """

    def __init__(self, model: Function, guard: Guard, run: Function) -> None:
        self.model, self.guard, self.run = model, guard, run
        self._has_warned = False

    def __call__(self, *inputs: Any) -> Any:
        reason = self.guard.reason(inputs)
        if reason is None:
            return self.run(*inputs)
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"gst: {reason}; such calls run the model as written (said once). Place the model anew for them",
                stacklevel=2,
            )
        return self.model(*inputs)

    def timed(self, inputs: Sequence[Any]) -> Callable[[], Any]:
        """What is timed: a call with inputs, which are the examples in its memory for what runs on an accelerator."""
        if not isinstance(self.run, OnAccelerator):
            return partial(self, *inputs)
        there = self.run.examples()
        return lambda: self(*there.values)  # holds them


@dataclass(frozen=True, eq=False)
class Candidates:
    """Ways to run a model whole, the simplest first.

    Args:
        runs: by name, those that compute what the model does.
        reasons: by name, why others are left out.
        first_ms: the least of a few runs in turns, of those in `runs`.
    """

    runs: Mapping[str, GuardedRun]
    reasons: Mapping[str, str]
    first_ms: Mapping[str, float]

    @property
    def best_ms(self) -> float:
        """Of the fastest, at first look."""
        return min(self.first_ms.values())

    def serious(self) -> tuple[dict[str, GuardedRun], dict[str, str]]:
        """Those that may win, with the model as written and as compiled, to compare; and why others may not."""
        kept = {
            name: run
            for name, run in self.runs.items()
            if name in (PYTORCH, COMPILED) or self.first_ms[name] <= MAY_WIN * self.best_ms
        }
        slow = {name: f"left out: {ms:.2f} ms at first look" for name, ms in self.first_ms.items() if name not in kept}
        return kept, {**self.reasons, **slow}


@dataclass(frozen=True, eq=False)
class Subject:
    """What ways are made and compared of.

    Args:
        function: a model or a step, as written.
        inputs: what it is called with.
        ways: in which it may be run, the simplest first.
        make: what runs it one way, called as `function` is; compiled by a first call.
        wrong: how its outputs differ from those of `function`; None if they agree.
        guard: what tells whether a call is like `inputs`, for a way.
    """

    function: Function
    inputs: Sequence[Any]
    ways: Sequence[Way]
    make: Callable[[Way], Function]
    wrong: Callable[[Function], str | None]
    guard: Callable[[Way], Guard]


def candidates(
    model: nn.Module,
    inputs: Sequence[Any],
    cores: int,
    seconds: float = math.inf,
    compiled: bool = True,
    progress: Progress = no_progress,
    stops: bool = False,
) -> Candidates:
    """Make the ways to run a model whole and look at each; see `tried`.

    Args:
        model: in the mode in which it is to run.
        inputs: what it is called with.
        cores: of the devices that it may use.

    Examples:
        >>> import torch
        >>> found = candidates(nn.ReLU(), (torch.ones(2),), cores=1, compiled=False)
        >>> list(found.runs)[0], found.reasons["compiled"]
        ('pytorch', 'left out, as asked')
    """
    subject = Subject(
        model, inputs, ways(model, inputs, cores), lambda way: whole_run(model, way, inputs),
        lambda run: difference(run, model, inputs, SEED),
        lambda way: Guard(model if way.kind != PYTORCH else None, inputs, way.holds_weights),
    )  # fmt: skip
    return tried(subject, seconds, compiled, progress, stops)


def tried(
    subject: Subject, seconds: float = math.inf, compiled: bool = True, progress: Progress = no_progress,
    stops: bool = False,
) -> Candidates:  # fmt: skip
    """Make ways, what promises most first, and look at each.

    Args:
        subject: of which.
        seconds: no way is begun after half of them. Ctrl-C ends it too, with what there is.
        compiled: whether anything is compiled.
        progress: told which way is made.
        stops: whether what is being compiled is stopped after the seconds. That is for processes of ours alone: modules
            that are being imported then stay broken.
    """
    started = time.perf_counter()
    runs: dict[str, GuardedRun] = {}
    reasons: dict[str, str] = {}
    took: dict[str, float] = {}
    inputs = subject.inputs
    try:
        for number, way in enumerate(sorted(subject.ways, key=_promise)):
            spent = time.perf_counter() - started
            late = "" if spent <= seconds / 2 else "no time to compile it"
            if way.measures_kernels and seconds - spent < AUTOTUNE_S:
                late = f"it takes minutes; give {AUTOTUNE_S:g} seconds or more"
            if reason := _left_out(way, compiled, late, took):
                reasons[way.name] = reason
                continue
            so_far = f", {min(took.values()):.1f} ms so far" if took else ""
            progress(f"trying {way.name}{so_far}", number, len(subject.ways))
            try:
                with stopped_after(seconds - spent if stops and way.compiles else math.inf):
                    run = subject.make(way)
                if way.kind != PYTORCH and (wrong := subject.wrong(run)):
                    reasons[way.name] = f"gives other outputs: {wrong}"
                    continue
            except TimeIsUp:
                reasons[way.name] = f"left out: not compiled within {seconds - spent:.0f} s"
                continue
            except Exception as error:  # whatever a compiler raises
                first = (str(error).strip().splitlines() or ["no message"])[0]
                reasons[way.name] = f"{type(error).__name__}: {first[:200]}"
                if way.name == PYTORCH:
                    raise
                continue
            runs[way.name] = GuardedRun(subject.function, subject.guard(way), run)
            took[way.name] = _least_ms({way.name: runs[way.name]}, inputs)[way.name]
    except KeyboardInterrupt:
        if PYTORCH not in runs:
            raise
    reasons |= {way.name: "left out: stopped before it" for way in subject.ways if way.name not in {**runs, **reasons}}
    in_order = {way.name: runs[way.name] for way in subject.ways if way.name in runs}
    progress("looking at each way to run it", 0, 1)
    return Candidates(in_order, reasons, _least_ms(in_order, inputs))


class TimeIsUp(KeyboardInterrupt):
    """Ends what takes too long, as Ctrl-C would."""


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Raise `TimeIsUp` in what runs within, after so many seconds; never outside of the main thread, where the system
    has no alarms, or where one is set that comes before. A later one is set again.

    Examples:
        >>> try:
        ...     with stopped_after(0.01):
        ...         time.sleep(10)
        ... except TimeIsUp:
        ...     print("stopped")
        stopped
    """
    can_stop = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if math.isinf(seconds) or not can_stop or 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= seconds:
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise TimeIsUp

    begun, before = time.perf_counter(), signal.signal(signal.SIGALRM, stop)
    # Again every second: where it is raised while an object is destroyed, Python goes on all the same.
    left, _ = signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3), 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.perf_counter() - begun), 1e-3))


def _promise(way: Way) -> tuple[bool, ...]:
    """What is tried first (False before True): nothing to compile, then the fastest as a rule, then what a user would
    try."""
    order = way.kind != PYTORCH, way.compiles, way.measures_kernels, way.threads is not None, way.channels_last
    return *order, way.kind != AHEAD, way.kind != COMPILED


def _left_out(way: Way, compiled: bool, late: str, took: Mapping[str, float]) -> str:
    if not way.compiles:
        return ""
    if not compiled:
        return "left out, as asked"
    if late:
        return f"left out: {late}"
    one = took.get(Way(PYTORCH, 1).name)
    if way.threads == 1 and one is not None and one > SCALES * took[PYTORCH]:
        return f"left out: one thread takes {one / took[PYTORCH]:.1f} times as long as written"
    return ""


def _least_ms(runs: Mapping[str, GuardedRun], inputs: Sequence[Any]) -> dict[str, float]:
    measured = measure({name: run.timed(inputs) for name, run in runs.items()}, LOOKS, 1, time_of=rested)
    return {name: min(each.samples_ms, default=math.inf) for name, each in measured.items()}


# The choice ----------------------------------------------------------------------------------------------------------


def is_faster(one: Measurement, other: Measurement) -> bool:
    """Whether one is faster than the other beyond noise: its median is lower, and the 95 % interval of the median
    difference of runs that took turns lies below 0. What failed is not faster than anything, and slower than what ran.

    On a busy machine either can hold without the other: of two medians 1 ms apart by chance, and of runs that mostly
    are faster than those beside them while their median is not.
    """
    if one.outcome != "ok" or other.outcome != "ok":
        return one.outcome == "ok"
    if one.median_ms >= other.median_ms:
        return False
    differences = np.subtract(one.samples_ms, other.samples_ms)
    return median_interval(differences.tolist(), np.random.default_rng(0))[2] < 0


def winner(names: Sequence[str], sets: Sequence[Mapping[str, Measurement]]) -> str:
    """The first of `names`, or the next that is faster than it beyond noise in every set of runs, and so on.

    Args:
        names: the simplest first; what was not measured in every set cannot win.
        sets: measurements by name, the runs of a set in turns.
    """
    best = names[0]
    for challenger in names[1:]:
        if all(challenger in runs and is_faster(runs[challenger], runs[best]) for runs in sets):
            best = challenger
    return best


def confirmed(
    found: Candidates, inputs: Sequence[Any], seconds: float, progress: Progress = no_progress
) -> dict[str, Any]:
    """Time the ways that may win in two sets of fresh runs in turns, and choose the winner.

    Args:
        found: the ways.
        inputs: what the model is called with.
        seconds: about as long as each set may take, at first; where noise hides which is faster, twice as long.
        progress: told which set runs.

    Returns:
        What `gst.placement.planning.placed_result` and `gst.placement.loop.Finals.figures` say of plans; `left_out`
        says why others were not timed, `load` which share of the cores other processes took meanwhile.
    """
    runs, reasons = found.serious()
    calls = {name: run.timed(inputs) for name, run in runs.items()}
    round_s = sum(2 * found.first_ms[name] / 1e3 + SPIN_S for name in runs)  # see `rested`
    rounds = int(min(max(seconds / round_s, LEAST_ROUNDS), MOST_ROUNDS))
    for attempt in range(ATTEMPTS):
        progress("timing the ways to run it", 2 * attempt, 2 * ATTEMPTS)
        measured = partial(measure, calls, rounds << attempt, 2, time_of=rested, seconds=seconds * 2**attempt)
        first = measured(seed=2 * attempt)
        progress("timing them once more", 2 * attempt + 1, 2 * ATTEMPTS)
        second = measured(seed=2 * attempt + 1)  # in other orders
        best = winner(list(runs), (first, second))
        least_ms = min(each.median_ms for each in second.values() if each.outcome == "ok")
        if second[best].median_ms <= NEAR * least_ms:  # settled: noise hides no way that is faster by more
            break
    plans: dict[str, dict[str, Any]] = {name: {"feasible": False, "reason": reason} for name, reason in reasons.items()}
    for name, each in first.items():
        times = {key: getattr(each, key) for key in TIMES} | {
            f"again_{key}": getattr(second[name], key) for key in TIMES
        }
        plans[name] = {**times, "feasible": each.outcome == "ok", "reason": each.reason, "runs": each.repetitions}
    medians = {f"{name}_ms": second[name].median_ms if name in second else None for name in (PYTORCH, COMPILED)}
    winner_ms = second[best].median_ms
    return {
        "runtime": "measured", "best": best, "objective": winner_ms, "winner": best, "winner_ms": winner_ms, **medians,
        "plans": plans, "left_out": reasons, "machine": machine_record(),
        "load": max(each.load for each in (*first.values(), *second.values())),
    }  # fmt: skip
