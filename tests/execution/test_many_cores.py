"""The compiled interpreter on more than 64 cores, whether the machine has them or not: what it lacks runs unbound."""

from __future__ import annotations

import numpy as np
import pytest

from gst.execution.native import NativeExecutor
from gst.lowering.calls import eager
from gst.lowering.plan import Plan
from gst.machine.devices import Device
from gst.programs import outputs_differ
from gst.util.compiled import compiler
from tests.execution.test_native import keeps_the_rule, names
from tests.execution.tiny import tiny_program

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")


@pytest.mark.slow
def test_plans_on_both_sides_of_each_border_between_words_keep_the_rule() -> None:
    """132 single cores, of which a few are threads here, and sets that reach over one or two borders of words."""
    used = [(0,), (63,), (64,), (65,), (127,), (128,), (131,), (63, 64), (0, 64, 128), (127, 128), (1, 131)]
    cores = sorted({core for each in used for core in each})
    fill = [core for core in range(132) if core not in cores]  # numbers of cores are dense: these make the others far
    wide = Device("wide", "cpu", tuple(fill), 1, "host", "made up")
    devices = [Device(f"cpu:{number}", "cpu", each, 1, "host", "made up") for number, each in enumerate(used)]
    devices.append(wide)
    program, rng = tiny_program(), np.random.default_rng(0)
    want = eager(program)
    with NativeExecutor(program, devices) as native:
        for _ in range(4):
            placement, priority = (rng.integers(0, most, program.num_nodes) for most in (len(devices), 9))
            plan = Plan(names(devices), placement, priority)
            assert outputs_differ(native.run(plan), want) is None
            keeps_the_rule(program, plan, native.last_timeline, devices)
