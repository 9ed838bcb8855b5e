"""Variants of a step are made and timed in a process of their own, on the CPU or where the plan runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gst.lowering.calls import module_on
from gst.lowering.plan import ExecutionError
from gst.machine.devices import Device
from gst.programs import capture_module
from gst.whole_model import device_copy
from gst.whole_model.child_process import bound, made, variants_beside
from gst.whole_model.choosing import tried
from gst.whole_model.variants import COMPILED, ONE_GRAPH, PYTORCH
from tests.execution.recorded import Recorder

CPU = torch.device("cpu")
STEP = "rnnlm:layers=1,steps=2,hidden=8,vocabulary=20"


def saved(tmp_path: Path) -> Path:
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU()).requires_grad_(False)
    capture_module(model, (torch.ones(2, 3),)).save(tmp_path / "program")
    return tmp_path / "program"


def test_nothing_is_compiled_without_time_or_wish(tmp_path: Path) -> None:
    for source in (saved(tmp_path), STEP):
        for seconds, skip_reason, said in (
            (0.0, "", "left out: no time to compile it"),
            (60.0, "too large", "too large"),
        ):
            runs, reasons = made(source, CPU, 1, seconds, skip_reason)
            assert PYTORCH in runs and COMPILED not in runs and reasons[COMPILED] == said
            runs[PYTORCH]()


def test_a_saved_program_runs_on_an_accelerator_as_its_operations_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights are those of a module, which no call copies; here they are taken to lie elsewhere."""
    monkeypatch.setattr(device_copy, "_is_on", lambda device, model: False)
    module, inputs = bound(capture_module(nn.Linear(3, 4).eval(), (torch.ones(2, 3),)), CPU)
    result = tried(device_copy.subject_on_accelerator(module, inputs, CPU, graph=Recorder()), compiled=False)
    assert list(result.runs) == [PYTORCH, ONE_GRAPH]
    for run in result.runs.values():
        torch.testing.assert_close(run(torch.zeros(2, 3)), module(torch.zeros(2, 3)))


def test_a_step_by_name_runs_as_written_in_its_process() -> None:
    core = Device("cpu:0", "cpu", (0,), 1, "host", "measured")
    with variants_beside(STEP, [core], 60.0, "left out, as asked") as runs:
        assert next(iter(runs)) == PYTORCH and runs[PYTORCH]() > 0
        with pytest.raises(ExecutionError, match="left out, as asked"):
            runs[COMPILED]()


@pytest.mark.e2e
@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator here")
def test_plans_on_an_accelerator_are_held_against_the_step_on_it(tmp_path: Path) -> None:
    """The step on the cores would make any plan of a GPU look fast. Without one here the step does not run."""
    core, gpu = (
        Device("cpu:0", "cpu", (0,), 1, "host", "measured"),
        Device("cuda:0", "cuda", (), 1, "cuda:0", "measured"),
    )
    with variants_beside(saved(tmp_path), [core, gpu], 60.0, "left out, as asked") as runs:
        assert set(runs) == {PYTORCH, COMPILED}
        for run in runs.values():
            with pytest.raises(ExecutionError, match=r"plain PyTorch stopped .*(CUDA|NVIDIA)"):
                run()


def test_tensors_that_a_program_makes_are_made_on_its_device() -> None:
    class Counts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.arange(3.0, device="cpu")

    module = module_on(capture_module(Counts(), (torch.ones(3),)), torch.device("meta"))
    assert module(torch.ones(3, device="meta"))[0].device.type == "meta"
