"""Choice of the fastest variant of a whole model: make each, compare its outputs, and time those that may win."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn

from gst.execution.measure import LEAST_ROUNDS, SPIN_S, Measurement, is_faster, measure, rested
from gst.machine.devices import machine_record
from gst.machine.load import LoadGate, LoadMeter, TimeIsUp, stopped_after
from gst.programs import Program, Step
from gst.util.progress import Progress, no_progress
from gst.util.untrusted import first_line
from gst.whole_model.comparing import DRAWS, Guard, difference
from gst.whole_model.engines import PACKAGES, Exported, missing
from gst.whole_model.variants import (
    AHEAD,
    COMPILED,
    PYTORCH,
    Function,
    Variant,
    as_written,
    on_other_threads,
    variants,
    whole_run,
)  # fmt: skip

LOOKS = 3  # runs of each variant before only those that may win are timed at length
MAY_WIN = 1.25  # times the fastest of the first runs, at most
SCALES = 1.3  # times as long on one core as on all: then nothing is compiled for one core
SEED = 0  # of the inputs on which outputs are compared
MOST_ROUNDS = 25  # of each set of runs at the end
ATTEMPTS, NEAR = 2, 1.03  # sets with twice as many runs while a variant looks faster by more than 3 %, within noise
TIMES = ("median_ms", "low_ms", "high_ms")


class GuardedRun:
    """Runs a variant for calls like the example; other calls run the model itself, with one warning.

    Args:
        model: as written.
        guard: compares calls with the example; None if it is never asked.
        run: the variant, called as the model is.
    """

    def __init__(self, model: Function, guard: Guard | None, run: Function) -> None:
        self.model, self.guard, self.run = model, guard, run
        self._has_warned = False

    def __call__(self, *inputs: Any) -> Any:
        reason = None if self.guard is None else self.guard.reason(inputs)
        if reason is None:
            return self.run(*inputs)
        self.warn(reason)
        return self.model(*inputs)

    def warn(self, reason: str) -> None:
        """Warn once that calls run the model as written."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"gst: {reason}; such calls run the model as written (warned once). Place the model anew for them",
                stacklevel=3,
            )

    def timed(self, inputs: Sequence[Any]) -> Callable[[], Any]:
        """Return the call that is timed; on an accelerator its inputs are the examples in the accelerator's memory."""
        if not hasattr(self.run, "examples"):
            return partial(self, *inputs)
        examples = self.run.examples()
        return lambda: self(*examples.values)  # keeps them in memory


@dataclass(frozen=True, eq=False)
class Candidates:
    """Variants of a model, the simplest first.

    Args:
        runs: by name, the variants that compute the same as the model.
        reasons: by name, why other variants are left out.
        first_ms: by name, the least time of a few alternating runs.
        loops: by name, functions that are timed too and never chosen.
    """

    runs: Mapping[str, GuardedRun]
    reasons: Mapping[str, str]
    first_ms: Mapping[str, float]
    loops: Mapping[str, Callable[[], Any]] = field(default_factory=dict)

    @property
    def best_ms(self) -> float:
        return min(self.first_ms.values())

    def serious(self) -> tuple[dict[str, GuardedRun], dict[str, str]]:
        """Return the variants that may win, with `pytorch` and `compiled` to compare, and why others may not."""
        may_win = {name for name, ms in self.first_ms.items() if ms <= MAY_WIN * self.best_ms}
        runs = {name: run for name, run in self.runs.items() if name in may_win | {PYTORCH, COMPILED}}
        slow = {name: f"left out: {ms:.2f} ms in first runs" for name, ms in self.first_ms.items() if name not in runs}
        return runs, {**self.reasons, **slow}


@dataclass(frozen=True, eq=False)
class Subject:
    """A model or a step whose variants are made and compared.

    Args:
        function: the model or step as written.
        inputs: of its calls.
        variants: the simplest first.
        make: returns the function that runs a variant, called as `function` is; it compiles by a first call.
        wrong: describes the difference of outputs from those of `function`; None if they agree.
        guard: for a variant, compares calls with `inputs`.
    """

    function: Function
    inputs: Sequence[Any]
    variants: Sequence[Variant]
    make: Callable[[Variant], Function]
    wrong: Callable[[Function], str | None]
    guard: Callable[[Variant], Guard]

    def guarded(self, variant: Variant) -> GuardedRun:
        """Make a variant that runs for calls like the example alone; raise any exception of a compiler."""
        return GuardedRun(self.function, self.guard(variant), self.make(variant))


def subject_on_cores(
    model: nn.Module | Step, inputs: Sequence[Any], cores: int, program: Program | None = None
) -> Subject:
    """Return the variants of a model or a step on the CPU, with `cores` cores or one.

    Args:
        program: of a step, as captured.

    Examples:
        >>> import torch
        >>> result = tried(subject_on_cores(nn.ReLU(), (torch.ones(2),), cores=1), compiled=False)
        >>> list(result.runs)[0], result.reasons["compiled"]
        ('pytorch', 'left out, as asked')
    """
    function: Function = model.function if isinstance(model, Step) else model
    if isinstance(model, Step):
        own = [Variant(PYTORCH), Variant(COMPILED)]
        own, draws, exported = own + on_other_threads(own, cores), 0, None  # random values would be no state of it
    else:
        own, draws, exported = variants(model, cores), DRAWS, Exported(model, inputs)
    return Subject(
        function, inputs, own, lambda variant: whole_run(model, variant, inputs, program, exported),
        lambda run: difference(run, lambda *values: as_written(model, values), inputs, SEED, draws),
        lambda variant: Guard(function if variant.kind != PYTORCH else None, inputs, variant.holds_weights),
    )  # fmt: skip


def subject_as_written(model: nn.Module | Step, inputs: Sequence[Any]) -> Subject:
    """Return a model or a step as written, which may change its own state, without any other variant."""
    return Subject(
        model.function if isinstance(model, Step) else model, inputs, [Variant(PYTORCH)],
        lambda _: lambda *values: as_written(model, values), lambda _: None,
        lambda _: Guard(None, inputs, weights=False),
    )  # fmt: skip


def tried(
    subject: Subject, seconds: float = math.inf, compiled: bool = True, progress: Progress = no_progress,
    stops: bool = False,
) -> Candidates:  # fmt: skip
    """Make variants, the most promising first, compare their outputs and time each briefly. Ctrl-C ends this with
    the variants made so far.

    Args:
        subject: the model or step.
        seconds: no variant is begun after half of them; on busy cores they last longer (`LoadMeter.spent`).
        compiled: False if nothing is compiled.
        progress: called with the variant that is made.
        stops: True if a compilation is stopped after `seconds`, which breaks modules that are being imported: for child
            processes alone.
    """
    meter, inputs = LoadMeter(), subject.inputs
    runs: dict[str, GuardedRun] = {}
    reasons: dict[str, str] = {}
    first_ms: dict[str, float] = {}
    try:
        for number, variant in enumerate(sorted(subject.variants, key=_promise)):
            name, spent, begun = variant.name, meter.spent(), time.perf_counter()
            late = "" if spent <= seconds / 2 else "no time to compile it"
            if reason := _left_out(variant, compiled, late, first_ms):
                reasons[name] = reason
                continue
            so_far = f", {min(first_ms.values()):.1f} ms so far" if first_ms else ""
            progress(f"trying {name}{so_far}", number, len(subject.variants))
            try:
                with stopped_after(seconds - spent if stops and variant.compiles else math.inf):
                    guarded = subject.guarded(variant)
                if variant.kind != PYTORCH and (wrong := subject.wrong(guarded.run)):
                    reasons[name] = f"gives other outputs: {wrong}"
                    continue
            except TimeIsUp:
                reasons[name] = f"left out: not compiled within {time.perf_counter() - begun:.0f} s"
                continue
            except Exception as error:  # any exception of a compiler
                if name == PYTORCH:
                    raise
                reasons[name] = first_line(error)
                continue
            runs[name] = guarded
            first_ms |= _least_ms({name: guarded}, inputs)
    except KeyboardInterrupt:
        if PYTORCH not in runs:
            raise
    names = [variant.name for variant in subject.variants]
    reasons |= {name: "left out: stopped before it" for name in names if name not in {**runs, **reasons}}
    in_order = {name: runs[name] for name in names if name in runs}
    progress("timing each variant briefly", 0, 1)
    return Candidates(in_order, reasons, _least_ms(in_order, inputs))


def _promise(variant: Variant) -> tuple[bool, ...]:
    """Sort key (False before True): nothing to compile, then the usually fastest, then a user's first choice."""
    is_on_other_threads = variant.threads is not None
    order = variant.kind != PYTORCH, variant.compiles, is_on_other_threads
    return *order, variant.kind not in PACKAGES, variant.kind != AHEAD, variant.kind != COMPILED, variant.mode != ""


def _left_out(variant: Variant, compiled: bool, late: str, first_ms: Mapping[str, float]) -> str:
    """Return the reason not to make a variant; empty if there is none."""
    if not variant.compiles:
        return ""
    if not compiled:
        return "left out, as asked"
    if reason := missing(variant.kind) or late:
        return f"left out: {reason}"
    one_ms = first_ms.get(Variant(PYTORCH, 1).name)
    if variant.threads == 1 and one_ms is not None and one_ms > SCALES * first_ms[PYTORCH]:
        return f"left out: one thread takes {one_ms / first_ms[PYTORCH]:.1f} times as long as written"
    return ""


def _least_ms(runs: Mapping[str, GuardedRun], inputs: Sequence[Any]) -> dict[str, float]:
    measured = measure({name: run.timed(inputs) for name, run in runs.items()}, LOOKS, 1, time_of=rested)
    return {name: min(each.samples_ms, default=math.inf) for name, each in measured.items()}


# The choice ----------------------------------------------------------------------------------------------------------


def winner(names: Sequence[str], sets: Sequence[Mapping[str, Measurement]]) -> str:
    """Return the first name, the simplest, or the next that is faster beyond noise in every set of alternating runs. A
    name that is missing from a set cannot win."""
    best = names[0]
    for challenger in names[1:]:
        if all(challenger in runs and is_faster(runs[challenger], runs[best]) for runs in sets):
            best = challenger
    return best


def confirmed(
    made: Candidates, inputs: Sequence[Any], seconds: float, progress: Progress = no_progress
) -> dict[str, Any]:
    """Time the variants that may win in two sets of fresh alternating runs, and choose the winner.

    Args:
        made: the variants.
        inputs: of the model's calls.
        seconds: of each set, about; twice as long where noise hides which variant is faster.

    Returns:
        The keys of `gst.placement.planning.placed_result` and `gst.placement.measured.Finals.figures`; `left_out` holds
        the reasons of variants that were not timed.
    """
    runs, reasons = made.serious()
    calls = {name: run.timed(inputs) for name, run in runs.items()} | dict(made.loops)
    round_s = sum(2 * made.first_ms.get(name, made.first_ms[PYTORCH]) / 1e3 + SPIN_S for name in calls)  # see `rested`
    rounds = int(min(max(seconds / round_s, LEAST_ROUNDS), MOST_ROUNDS))
    gate = LoadGate(patience_s=min(seconds, LoadGate.patience_s), interval_s=0.0)
    for attempt in range(ATTEMPTS):
        progress("timing the variants", 2 * attempt, 2 * ATTEMPTS)
        measured = partial(measure, calls, rounds << attempt, 2, gate, time_of=rested, seconds=seconds * 2**attempt)
        first = measured(seed=2 * attempt)
        progress("timing the variants once more", 2 * attempt + 1, 2 * ATTEMPTS)
        second = measured(seed=2 * attempt + 1)  # in other orders
        best = winner(list(runs), (first, second))
        least_ms = min(second[name].median_ms for name in runs if second[name].outcome == "ok")
        if second[best].median_ms <= NEAR * least_ms:  # noise hides no variant that is faster by more
            break
    plans: dict[str, dict[str, Any]] = {name: {"feasible": False, "reason": reason} for name, reason in reasons.items()}
    for name, each in first.items():
        times = {key: getattr(each, key) for key in TIMES}
        again = {f"again_{key}": getattr(second[name], key) for key in TIMES}
        record = {"feasible": each.outcome == "ok", "reason": each.reason, "runs": each.repetitions}
        plans[name] = times | again | record
    medians = {f"{name}_ms": second[name].median_ms if name in second else None for name in (PYTORCH, COMPILED)}
    winner_ms = second[best].median_ms
    return {
        "runtime": "measured", "best": best, "objective": winner_ms, "winner": best, "winner_ms": winner_ms, **medians,
        "plans": plans, "left_out": reasons, "machine": machine_record(),
        "load": max(each.load for each in (*first.values(), *second.values())),
    }  # fmt: skip
