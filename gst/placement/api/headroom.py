"""Whether plans can be faster than running a model whole, and how many can be measured in the time that is left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gst.execution.measure import LEAST_ROUNDS
from gst.execution.plain import PYTORCH
from gst.machine.devices import Device
from gst.placement.machines import machine
from gst.placement.planning import Settings
from gst.programs import Program
from gst.whole_model.choosing import Candidates
from gst.whole_model.whole import Way

ROOM, FUSED_ROOM = 0.9, 0.5  # of all cores' share of the time on one core: what plans may come down to, with fusion
LEAST_MS = 1.0  # of a program that a plan is made for
TO_PLAN = 0.4  # of the seconds, at least: operations are profiled before anything is planned
SHARE = 0.05  # of the seconds that each of two sets of runs at the end may take
TO_SEARCH = 0.25  # of the seconds that measuring plans may take; compiling the step takes most of the others
RUNS = 8  # of a plan that a search measures, with those that warm up and compare outputs
FINALISTS = 12


def chain_share(program: Program) -> float:
    """Work of the longest chain of operations as a share of all work, by the roofline of one core.

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


def no_room(
    found: Candidates, devices: Sequence[Device], cores: int, settings: Settings, left: float, chain: float = 0.0
) -> str:
    """Why no plan for cores could be the fastest, or found in the share of the time that is left; empty if one could.

    A plan runs the operations one by one, and all cores together cannot do that in less than their share of the time
    that one core takes for all, nor the longest chain of them in less than its share of the time on all cores.

    Args:
        found: the ways to run the model whole, with their times.
        devices: that a plan may use; of accelerators nothing is known beforehand.
        cores: of them.
        settings: whether operations may be fused.
        left: share of the seconds, 0 .. 1.
        chain: see `chain_share`.

    Examples:
        >>> found = Candidates({}, {}, {"pytorch": 5.0, "pytorch, 1 thread": 8.0, "frozen": 2.0})
        >>> no_room(found, (), cores=2, settings=Settings(), left=1.0)
        'one core takes 8.00 ms as written, so none is likely to take less than 3.60 ms'
        >>> found = Candidates({}, {}, {"pytorch": 5.0, "pytorch, 1 thread": 8.0})
        >>> no_room(found, (), 2, Settings(), left=1.0, chain=0.5)
        ''
        >>> no_room(found, (), 2, Settings(), left=1.0, chain=1.0)
        '100% of the work is one chain of operations, which takes 5.00 ms on all cores as written'
    """
    if any(device.kind != "cpu" for device in devices):
        return ""
    if found.best_ms < LEAST_MS:
        return f"handing values from core to core gains nothing in a program of less than {LEAST_MS:g} ms"
    one = found.first_ms.get(Way(PYTORCH, 1).name, found.first_ms[PYTORCH])
    least_ms = one / cores * (FUSED_ROOM if "fusion" in settings.tasks else ROOM)
    if found.best_ms <= least_ms:
        return f"one core takes {one:.2f} ms as written, so none is likely to take less than {least_ms:.2f} ms"
    chain_ms = chain * found.first_ms[PYTORCH] * (FUSED_ROOM if "fusion" in settings.tasks else 1.0)
    if found.best_ms <= chain_ms:
        return (
            f"{chain:.0%} of the work is one chain of operations, which takes {chain_ms:.2f} ms on all cores as written"
        )
    return "" if left > TO_PLAN else "compiling took the time; give more seconds, or None for as long as it takes"


def within(settings: Settings, seconds: float, run_ms: float) -> Settings:
    """Settings of a search that ends after some seconds, if a plan takes `run_ms`, as the model does as written.

    Examples:
        >>> within(Settings(budget=50), seconds=30.0, run_ms=100.0).budget
        8
        >>> within(Settings(budget=50), seconds=math.inf, run_ms=100.0).budget
        50
    """
    if math.isinf(seconds):
        return settings
    seconds, run_s = max(seconds, 0.0), run_ms / 1e3
    plans = int(TO_SEARCH * seconds / (RUNS * run_s + 0.05))
    rounds = int(seconds * SHARE / (FINALISTS * run_s))
    return replace(
        settings,
        budget=min(settings.budget, plans),
        evaluations=min(settings.evaluations, 10 + 20 * plans),
        repetitions=min(settings.repetitions, max(rounds, LEAST_ROUNDS)),
        finals_s=SHARE * seconds,
        patience_s=0.0,  # it would be waited for before every plan
    )
