"""Estimate of whether a plan can be faster than the variants of a whole model, before any plan is made."""

from __future__ import annotations

from collections.abc import Sequence

from gst.machine.devices import Device
from gst.placement.machines import machine
from gst.placement.planning import Settings
from gst.programs import Program
from gst.whole_model.choosing import Candidates
from gst.whole_model.variants import PYTORCH, Variant

LEAST_SHARE, LEAST_FUSED = 0.9, 0.5  # least time of a plan / (time on one core / cores), and with fusion
LEAST_MS = 1.0  # of a program for which a plan is made
TO_PLAN = 0.4  # of the seconds, at least: operations are profiled before anything is planned


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
    variants: Candidates, devices: Sequence[Device], cores: int, settings: Settings, left: float, chain: float = 0.0
) -> str:
    """Say why no plan for cores could be the fastest, or be found in the time that is left; empty if one could.

    A plan runs the operations one by one. All cores together need at least their share of the time of one core, and the
    longest chain of operations needs its share of the time on all cores.

    Args:
        variants: of the whole model, with their times.
        devices: of plans; if one is an accelerator nothing is known beforehand.
        left: share of the seconds, 0 .. 1.
        chain: see `chain_share`.

    Examples:
        >>> variants = Candidates({}, {}, {"pytorch": 5.0, "pytorch, 1 thread": 8.0})
        >>> no_headroom(variants, (), cores=2, settings=Settings(), left=1.0, chain=1.0)
        '100% of the work is one chain of operations, which takes 5.00 ms on all cores as written'
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
    chain_ms = chain * variants.first_ms[PYTORCH] * (LEAST_FUSED if fuses else 1.0)
    if variants.best_ms <= chain_ms:
        return (
            f"{chain:.0%} of the work is one chain of operations, which takes {chain_ms:.2f} ms on all cores as written"
        )
    return "" if left > TO_PLAN else "compiling took the time; give more seconds, or None for as long as it takes"
