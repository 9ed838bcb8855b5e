"""Operations measured once need no run again; nothing is taken from another machine or another torch."""

from pathlib import Path

import numpy as np
import pytest

from gst.devices import NativeExecutor
from gst.devices.describe import machine
from gst.devices.execute.costs import CostCache, measure_costs, signatures
from gst.devices.execute.interpreter import compiler
from gst.programs import WORKLOADS, Program, capture
from tests.programs.small import SMALL, small_program

from .test_native import MOLDABLE

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")


def test_what_is_known_is_not_run_again(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with NativeExecutor(program, MOLDABLE) as native:
        measured = measure_costs(native, 2, CostCache(tmp_path))
        monkeypatch.setattr(native, "run", lambda *_: pytest.fail("it ran"))
        known = measure_costs(native, 2, CostCache(tmp_path))
    keys = signatures(program)
    for key in {key for key in keys if key}:
        alike = [node for node, other in enumerate(keys) if other == key]
        for device in range(len(MOLDABLE)):
            assert known.times_us[device, alike] == pytest.approx(np.median(measured.times_us[device, alike]))
            assert (known.own_bytes[device, alike] == measured.own_bytes[device, alike].max()).all()
    assert not known.times_us[:, ~known.computed].any()


def test_shapes_dtypes_and_arguments_tell_operations_apart() -> None:
    small, large = small_program("rnnlm"), capture(WORKLOADS["rnnlm"](**SMALL["rnnlm"] | {"hidden": 32}))
    ours, theirs = ({key for key in signatures(program) if key} for program in (small, large))
    assert ours & theirs and ours - theirs
    again = signatures(capture(WORKLOADS["rnnlm"](**SMALL["rnnlm"])))
    assert again == signatures(small)


def test_another_machine_starts_anew(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times, own = np.ones(program.num_nodes), np.ones(program.num_nodes, np.int64)
    CostCache(tmp_path).learn(program, 1, times, own)
    assert CostCache(tmp_path).times(program, 1) is not None and CostCache(tmp_path).times(program, 2) is None
    monkeypatch.setattr(machine, "machine_record", lambda: {"cpu": "another", "torch": "2.11"})
    assert CostCache(tmp_path).times(program, 1) is None


def test_a_damaged_cache_is_named(program: Program, tmp_path: Path) -> None:
    cache = CostCache(tmp_path)
    cache.learn(program, 1, np.ones(program.num_nodes), np.ones(program.num_nodes, np.int64))
    cache.path.write_text(cache.path.read_text()[:-9])
    with pytest.raises(ValueError, match=f"{cache.path}: damaged cache"):
        CostCache(tmp_path)
