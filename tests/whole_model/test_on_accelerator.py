"""Variants on an accelerator are timed where the plan runs; here the CPU stands for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from gst.execution import on_accelerator
from gst.kernels import streams
from gst.lowering.plan import ExecutionError
from gst.machine.devices import Device
from gst.placement import measured
from gst.placement.fleet import host
from gst.placement.planning import Settings
from gst.programs import capture_module, resolve
from gst.util.compiled import compiler
from gst.util.progress import no_progress
from gst.whole_model import child_process
from gst.whole_model.child_process import COMPILE
from gst.whole_model.choosing import TimeIsUp
from gst.whole_model.variants import COMPILED, KERNELS, ONE_GRAPH, PYTORCH
from tests.execution.recorded import counted

CPU = torch.device("cpu")
STEP = "rnnlm:layers=1,steps=2,hidden=8,vocabulary=20"


def saved(tmp_path: Path) -> Path:
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU()).requires_grad_(False)
    capture_module(model, (torch.ones(2, 3),)).save(tmp_path / "program")
    return tmp_path / "program"


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
def test_each_variant_computes_what_the_program_does(tmp_path: Path) -> None:
    """Kernels on streams are called as plans are: what changes from call to call is copied in, and outputs out."""
    runs, reasons, figures = child_process.made_on_accelerator(saved(tmp_path), CPU, 300.0, "", COMPILE[:3])
    assert figures["best"] == 1 and figures["kernels"] > 0  # a CPU runs them in order
    assert set(runs) == {PYTORCH, *COMPILE[:3]}
    assert reasons == {ONE_GRAPH: "graphs are recorded on an accelerator; this runs on cpu"}
    assert counted(runs[KERNELS])[torch.ops.aten.clone.default] == 1
    first = {name: run() for name, run in runs.items()}
    for want in (first[PYTORCH][0], runs[PYTORCH]()[0]):  # a later run leaves earlier outputs alone
        assert all(torch.allclose(each[0], want, atol=1e-6) for each in first.values())


def test_a_way_with_other_outputs_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda module, mode: lambda *inputs: (module(*inputs)[0] + 1,))
    step = streams.on_streams
    wrong = lambda *given: replace(found := step(*given), call=lambda: [each + 1 for each in found.call()])  # noqa: E731
    monkeypatch.setattr(streams, "on_streams", wrong)
    runs, reasons, _ = child_process.made_on_accelerator(saved(tmp_path), CPU, 60.0, "")
    assert set(runs) == {PYTORCH} and all(reasons[name].startswith("wrong outputs: output 0") for name in COMPILE)


def test_a_graph_is_timed_with_copies_of_what_changes_from_call_to_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans are; weights that a step renews change, too."""
    monkeypatch.setattr(child_process, "one_graph", lambda run, device: run)
    step = resolve(STEP)
    for source, inputs, outputs in (
        (saved(tmp_path), 1, 1),
        (STEP, *map(num_tensors, (step.inputs, step.function(*step.inputs)))),
    ):
        runs, *_ = child_process.made_on_accelerator(source, CPU, 0.0, "")
        copies = counted(runs[ONE_GRAPH])
        copies.subtract(counted(runs[PYTORCH]))
        assert (copies[torch.ops.aten.copy_.default], copies[torch.ops.aten.clone.default]) == (inputs, outputs)


def num_tensors(values: object) -> int:
    return sum(isinstance(each, torch.Tensor) for each in pytree.tree_leaves(values))


def test_nothing_is_compiled_without_time_or_wish(tmp_path: Path) -> None:
    source = saved(tmp_path)
    for seconds, skip_reason, said in (
        (0.0, "", "left out: no time to compile it"),
        (60.0, "left out, as asked", "left out, as asked"),
    ):
        runs, reasons, _ = child_process.made_on_accelerator(source, CPU, seconds, skip_reason)
        assert set(runs) == {PYTORCH} and all(said in reasons[name] for name in COMPILE)


def test_a_way_that_is_not_compiled_in_time_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled_late(*arguments: object) -> None:
        raise TimeIsUp

    monkeypatch.setattr(child_process, "checked", compiled_late)
    _, reasons, _ = child_process.made_on_accelerator(saved(tmp_path), CPU, 60.0, "")
    assert all(reasons[name] == "left out: not compiled within 60 s" for name in COMPILE)


def test_a_step_by_name_runs_as_written_there() -> None:
    with child_process.variants_on_accelerator(STEP, CPU, 60.0, "left out, as asked") as (runs, _):
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
    with measured._variants(STEP, [core, gpu], "", Settings(), {}, no_progress) as (runs, _):
        assert set(runs) == {PYTORCH, COMPILED}
        for run in runs.values():
            with pytest.raises(ExecutionError, match=r"plain PyTorch stopped .*(CUDA|NVIDIA)"):
                run()
    with host._steps(saved(tmp_path), [core, gpu], "left out, as asked") as runs, pytest.raises(ExecutionError):
        runs[PYTORCH]()


def test_tensors_that_a_program_makes_are_made_on_its_device() -> None:
    class Counts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.arange(3.0, device="cpu")

    module = on_accelerator.module_on(capture_module(Counts(), (torch.ones(3),)), torch.device("meta"))
    assert module(torch.ones(3, device="meta"))[0].device.type == "meta"
