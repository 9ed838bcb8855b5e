"""Final measurement of the best plans and the whole-model variants: one set of runs chooses, a second gives the time.

The fastest of many measured medians is partly luck, so the set that chose a plan does not give its time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gst.execution.isolated import IsolatedExecutor, measure_plans
from gst.execution.measure import Measurement, failing
from gst.lowering.plan import Plan
from gst.machine.devices import Device, core_numbers
from gst.machine.load import LoadGate
from gst.placement.fleet.workers import FleetWorkers
from gst.placement.machines import machine
from gst.placement.objectives import Planned
from gst.placement.planning import Settings
from gst.programs import Program
from gst.util.progress import Progress
from gst.whole_model.child_process import steps_beside, variants_on_accelerator, variants_on_cores
from gst.whole_model.choosing import TIMES, Candidates, winner
from gst.whole_model.variants import COMPILED, PYTORCH, Variant

LARGEST_WHOLE = 5_000  # operations of a program that is compiled into one: Inductor takes minutes for these
NUM_BASELINES = 12  # that are measured, the best in simulation; every method's plan is
NUM_AGAIN = 3  # plans in the second set
LEAST_SHARE, LEAST_FUSED = 0.9, 0.5  # least time of a plan / (time on one core / cores), and with fusion
LEAST_MS = 1.0  # of a program for which a plan is made
TO_PLAN = 0.4  # of the seconds, at least: operations are profiled before anything is planned
ALONE = 5  # times the seconds of compiling, at most, for a step of which nothing else is compiled
COMPILING = "compiling variants of the step, which takes minutes"
FIRST, AGAIN = "measuring the finalists afresh", "measuring the fastest once more"


def finalists(
    planned: Mapping[str, Planned], methods: Collection[str], num_baselines: int = NUM_BASELINES
) -> dict[str, Planned]:
    """Choose the plans to measure: of all methods, of the best baselines, and the best device alone (`single:*`)."""
    ms = {name: np.nan_to_num(each.expected_ms, nan=np.inf) for name, each in planned.items()}
    baselines = sorted((name for name in planned if name not in methods), key=lambda name: ms[name])
    singles = [name for name in baselines if name.startswith("single:")]
    others = [name for name in baselines if name not in singles]
    chosen = {*singles[:1], *others[:num_baselines]}
    return {name: each for name, each in planned.items() if name in methods or name in chosen}


@dataclass(frozen=True, eq=False)
class Finals:
    """Two sets of alternating runs by name of a plan or of a whole-model variant: `first` of all, `second` of the
    fastest.
    """

    first: Mapping[str, Measurement]
    second: Mapping[str, Measurement]

    @property
    def best(self) -> str:
        """Name of the fastest plan of the first set among those that ran in the second."""
        in_order, again = fastest(self.first), set(fastest(self.second))
        return next((name for name in in_order if name in again), in_order[0])

    @property
    def winner(self) -> str:
        """Name of the variant or plan to run: the simplest that no other beats beyond noise in both sets."""
        variants = [name for name, each in self.first.items() if each.plan_key is None and name != PYTORCH]
        return winner([PYTORCH, *variants, self.best], (self.first, self.second))

    def figures(self) -> dict[str, Any]:
        """Return `best`, `winner`, `load` (share of the cores that others took), and times by the second set:
        `objective` of the best plan, `winner_ms`, `pytorch_ms`, `compiled_ms`. A time is None for what did not run."""
        ms = {name: None if np.isnan(each.median_ms) else each.median_ms for name, each in self.second.items()}
        best_ms = ms[self.best] if ms[self.best] is not None else self.first[self.best].median_ms
        return {
            "best": self.best, "objective": best_ms, "winner": self.winner, "winner_ms": ms[self.winner],
            "pytorch_ms": ms[PYTORCH], "compiled_ms": ms[COMPILED],
            "load": max(each.load for each in (*self.first.values(), *self.second.values())),
        }  # fmt: skip

    def entry(self, name: str, planned: Planned | None, num_measured: int) -> dict[str, Any]:
        """Return the entry of a plan or variant in `plans` of a result, see `gst.placement.planning.placed_result`."""
        first, second = self.first[name].to_dict(), self.second[name].to_dict() if name in self.second else {}
        expected_ms = None if planned is None or np.isnan(planned.expected_ms) else planned.expected_ms
        return {
            **{key: first[key] for key in TIMES},
            **{f"again_{key}": second.get(key) for key in TIMES},
            "feasible": self.first[name].outcome == "ok",
            "reason": self.first[name].reason,
            "seconds_to_plan": None if planned is None else planned.seconds,
            "measurements": num_measured,
            "runs": self.first[name].repetitions,
            "simulated_ms": expected_ms,
        }


def fastest(measurements: Mapping[str, Measurement], count: int | None = None) -> list[str]:
    """Return names of plans that ran, the fastest median first; several names of one plan count as one."""
    ran = {name: each for name, each in measurements.items() if each.outcome == "ok" and each.plan_key is not None}
    keys = list(dict.fromkeys(ran[name].plan_key for name in sorted(ran, key=lambda name: ran[name].median_ms)))
    return [name for key in keys[:count] for name in ran if ran[name].plan_key == key]


Variants = Mapping[str, Callable[[], float]]
"""By name, functions that run a whole-model variant once and return its milliseconds."""

Found = tuple[Variants, dict[str, Any]]
"""Variants, and the figures of kernels on streams (`gst.kernels.streams.OnStreams`), empty if there are none."""


@contextmanager
def whole_variants(
    source: Path | str, runner: IsolatedExecutor | FleetWorkers, program: Program, settings: Settings,
    here: Mapping[str, Callable[[], object]], progress: Progress,
) -> Iterator[tuple[Found, str]]:  # fmt: skip
    """Make the whole-model variants of the step, and the reason why nothing is compiled; hosts of a fleet make theirs.

    They come before the search: compiled code is the strongest rival of plans, and a short search would leave no time.
    """
    skip_reason = "" if settings.compile_step else "left out, as asked"
    if program.num_nodes > LARGEST_WHOLE:
        skip_reason = f"left out: torch.compile takes minutes for {program.num_nodes:,} operations"
    if isinstance(runner, FleetWorkers):
        yield ({}, {}), skip_reason
        return
    with _variants(source, runner.devices, skip_reason, settings, here, progress) as found:
        yield found, skip_reason


def measure_finals(
    runner: IsolatedExecutor | FleetWorkers, plans: dict[str, Plan], program: Program, settings: Settings,
    progress: Progress, variants: Variants, skip_reason: str,
) -> Finals:  # fmt: skip
    """Measure all plans and the whole-model variants alternately, then the fastest again.

    Args:
        variants, skip_reason: see `whole_variants`.

    Raises:
        ValueError: no plan ran.
    """

    def measured(few: dict[str, Plan], words: str) -> dict[str, Measurement]:
        distinct = list({plan.key: plan for plan in few.values()}.values())  # a plan of several names runs once
        progress(words, 0, 1)
        if isinstance(runner, FleetWorkers):
            return by_name(few, runner.measure_with_steps(distinct, settings.repetitions, 2, skip_reason))
        gate = LoadGate(patience_s=settings.patience_s, progress=progress)
        measurements = measure_plans(
            runner, distinct, settings.repetitions, 2, gate, variants, partial(progress, words), settings.finals_s
        )
        return by_name(few, measurements, tuple(variants))

    compiles_there = isinstance(runner, FleetWorkers) and not skip_reason
    first = measured(plans, f"compiling the step, which takes minutes, then {FIRST}" if compiles_there else FIRST)
    again = {name: plans[name] for name in fastest(first, NUM_AGAIN)}
    if not again:
        reasons = sorted({first[name].reason for name in plans})
        names = ", ".join(device.name for device in runner.devices)
        raise ValueError(f"no plan of {program.name} ran on {names}: {'; '.join(reasons)}")
    return Finals(first, measured(again, AGAIN))


def by_name(
    plans: Mapping[str, Plan], measured: Sequence[Measurement], variants: Sequence[str] = (PYTORCH, COMPILED)
) -> dict[str, Measurement]:
    """Return measurements by name, from those of the distinct plans in order, then of the variants."""
    keys = list(dict.fromkeys(plan.key for plan in plans.values()))
    by_key = dict(zip([*keys, *variants], measured, strict=True))
    return {**{name: by_key[plan.key] for name, plan in plans.items()}, **{name: by_key[name] for name in variants}}


@contextmanager
def _variants(
    source: Path | str, devices: Sequence[Device], skip_reason: str, settings: Settings,
    here: Mapping[str, Callable[[], object]], progress: Progress,
) -> Iterator[Found]:  # fmt: skip
    """Make functions that run the step whole and return milliseconds: `here`, on the accelerator, or on the cores."""
    accelerator = next((device for device in devices if device.is_accelerator), None)
    with ExitStack() as stack:
        if accelerator is not None and not here:
            progress(COMPILING, 0, 1)
            place = accelerator.torch_device
            yield stack.enter_context(variants_on_accelerator(source, place, settings.compile_s, skip_reason))
            return
        if skip_reason or here or accelerator is not None:
            yield stack.enter_context(steps_beside(source, skip_reason, here, ALONE * settings.compile_s)), {}
            return
        runs = stack.enter_context(steps_beside(source, "not made yet", here))
        progress(COMPILING, 0, 1)
        cores = len({number for each in core_numbers(devices) for number in each})
        try:
            variants, reasons = stack.enter_context(variants_on_cores(source, cores, settings.compile_s))
        except ValueError as error:  # the child stopped
            variants, reasons = {}, {COMPILED: str(error)}
        left_out = {name: partial(failing, reason) for name, reason in reasons.items()}
        yield {PYTORCH: runs[PYTORCH], **variants, **left_out}, {}


def chain_share(program: Program) -> float:
    """Return the work of the longest chain of operations as a share of all work, by the roofline of one core.

    Examples:
        >>> import torch
        >>> from gst.programs import capture_module
        >>> layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        >>> chain_share(capture_module(layers, (torch.ones(1, 8),)))
        1.0
    """
    work = machine("cores:1").task(program).times_us[0]
    ends = work.tolist()
    for node, operation in enumerate(program.operations):
        ends[node] += max((ends[each] for each in operation.producers), default=0.0)
    return max(ends, default=0.0) / max(float(work.sum()), 1e-9)


def no_headroom(
    variants: Candidates,
    devices: Sequence[Device],
    cores: int,
    settings: Settings,
    left: float,
    program: Program | None = None,
) -> str:
    """Say why no plan for cores could be the fastest, or be found in the time that is left; empty if one could.

    A plan runs the operations one by one. All cores together need at least their share of the time of one core, and the
    longest chain of operations needs its share of the time on all cores.

    Args:
        variants: of the whole model, with their times.
        devices: of plans; if one is an accelerator nothing is known beforehand.
        left: share of the seconds, 0 .. 1.
        program: of the model, if it was captured.

    Examples:
        >>> variants = Candidates({}, {}, {"pytorch": 5.0, "pytorch, 1 thread": 8.0})
        >>> no_headroom(variants, (), cores=2, settings=Settings(), left=0.2)
        'compiling took the time; give more seconds, or None for as long as it takes'
    """
    if any(device.kind != "cpu" for device in devices):
        return ""
    if variants.best_ms < LEAST_MS:
        return f"handing values from core to core gains nothing in a program of less than {LEAST_MS:g} ms"
    fuses = "fusion" in settings.tasks
    one_ms = variants.first_ms.get(Variant(PYTORCH, 1).name, variants.first_ms[PYTORCH])
    least_ms = one_ms / cores * (LEAST_FUSED if fuses else LEAST_SHARE)
    if variants.best_ms <= least_ms:
        return f"one core takes {one_ms:.2f} ms as written, so none is likely to take less than {least_ms:.2f} ms"
    chain = 0.0 if program is None else chain_share(program)
    chain_ms = chain * variants.first_ms[PYTORCH] * (LEAST_FUSED if fuses else 1.0)
    if variants.best_ms <= chain_ms:
        return (
            f"{chain:.0%} of the work is one chain of operations, which takes {chain_ms:.2f} ms on all cores as written"
        )
    return "" if left > TO_PLAN else "compiling took the time; give more seconds, or None for as long as it takes"
