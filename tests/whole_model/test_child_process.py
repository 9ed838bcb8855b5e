"""Ways to run a program whole are made and timed in a process of their own, within the time that they are given."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import nn

from gst.machine.load import TimeIsUp, stopped_after
from gst.programs import capture_module
from gst.util.compiled import compiler
from gst.whole_model.child_process import StepProcess
from gst.whole_model.variants import AHEAD, COMPILED, FROZEN


@pytest.mark.e2e
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
def test_no_compilation_goes_on_when_the_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    layers = [nn.Sequential(nn.Linear(size, size + 1), nn.GELU(), nn.LayerNorm(size + 1)) for size in range(16, 116)]
    model = nn.Sequential(*layers).requires_grad_(False).eval()
    capture_module(model, (torch.ones(2, 16),)).save(tmp_path / "program")
    with StepProcess(tmp_path / "program", cores=torch.get_num_threads(), seconds=3.0, skip_reason="") as process:
        reasons = process.reasons
        began_late = "left out: no time to compile it"  # where even looking at the model took half of the seconds
        assert AHEAD not in process.names and reasons[AHEAD].startswith(("left out: not compiled within", began_late))
        assert "no time" in reasons[COMPILED] and "no time" in reasons[FROZEN]
        assert all(process(name) > 0 for name in process.names)


def test_an_alarm_of_others_is_set_again() -> None:
    begun = time.perf_counter()
    with pytest.raises(TimeIsUp), stopped_after(60.0), stopped_after(0.05):
        time.sleep(10)
    assert time.perf_counter() - begun < 5.0
    with stopped_after(0.02), stopped_after(60.0), pytest.raises(TimeIsUp):  # the outer one comes first
        time.sleep(10)
