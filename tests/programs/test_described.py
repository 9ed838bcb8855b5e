"""Laws of programs that are captured for CUDA on a machine without it: the operations of the CPU's capture, and none
that only CPUs run; they are saved, loaded, lowered for GPUs and checked like all others."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from gst import cli
from gst.lowering.calls import eager
from gst.lowering.happens_before import check
from gst.lowering.lower import stream_program
from gst.lowering.plan import Plan
from gst.placement.machines import machine
from gst.programs import WORKLOADS, Program, Step, capture, outputs_differ, training_step
from gst.programs.described import is_foreign
from tests.choices import with_rest
from tests.programs.small import SMALL, small_program


def targets(program: Program) -> Counter[str]:
    return Counter(str(operation.target) for operation in program.operations)


def encoder(optimizer: str, dropout: float = 0.0, seed: int | None = None) -> Step:
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=dropout, batch_first=True)
    generator = torch.Generator().manual_seed(0)
    data = tuple(torch.randn(2, 5, 16, generator=generator) for _ in range(2))
    return training_step(
        "encoder", model, lambda model, x, y: (model(x) - y).square().mean(), data, optimizer, seed=seed
    )


@pytest.mark.parametrize("name", with_rest(["rnnlm", "inception", "gpt"], ["inception"]))
def test_a_program_for_cuda_has_the_operations_of_the_cpu_and_is_lowered_for_gpus(name: str, tmp_path: Path) -> None:
    program = capture(WORKLOADS[name](**SMALL[name]), kind="cuda")
    want = small_program(name)
    assert targets(program) == targets(want) and program.output_bytes.tolist() == want.output_bytes.tolist()
    assert np.array_equal(program.graph.edges, want.graph.edges)
    program.save(tmp_path / "program")
    assert Program.load(tmp_path / "program").key == program.key
    devices = machine("gpus:4").devices
    spread = np.random.default_rng(0).integers(0, 4, program.num_nodes)
    assert check(stream_program(program, Plan(tuple(each.name for each in devices), spread), devices)).peak_bytes


def test_attention_with_adam_has_no_operator_of_cpus_alone() -> None:
    step = encoder("adam")
    ours, theirs = capture(step, kind="cuda"), capture(step)
    assert any(map(is_foreign, targets(theirs))) and not any(map(is_foreign, targets(ours)))
    shapes = [operation.shapes for operation in theirs.operations if operation.kind == "input"]
    assert shapes == [operation.shapes for operation in ours.operations if operation.kind == "input"]


def test_attention_and_dropout_captured_for_cuda_compute_what_the_step_computes() -> None:
    step = encoder("sgd", dropout=0.25, seed=3)  # Adam divides gradients of 0 by their rounding errors
    program = capture(step, kind="cuda")
    assert targets(program)["gst.uniform.default"] == 4  # attention, and three of the layer
    assert outputs_differ(eager(program), tree_leaves(step.function(*step.inputs))) is None


def test_a_tensor_that_a_step_closes_over_is_a_constant_of_the_program() -> None:
    mask = torch.tensor([1.0, 0.0])
    program = capture(Step("masked", lambda x: x * mask, (torch.ones(2),)), kind="cuda")
    assert [operation.kind for operation in program.operations] == ["input", "constant", "operation"]
    constant = program.operations[1].constant
    assert constant is not None and torch.equal(constant, mask)


@pytest.mark.filterwarnings("error")
def test_a_step_may_change_several_inputs_in_place_if_it_returns_them() -> None:
    """As statistics of BatchNorm are changed; fake tensors have no addresses by which to tell them apart."""

    def count(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: value.add_(1) for name, value in state.items()}

    program = capture(Step("count", count, ({"a": torch.zeros(2), "b": torch.zeros(2)},)), kind="cuda")
    assert [value.tolist() for value in eager(program)] == [[1, 1], [1, 1]]


def test_tensors_that_a_step_makes_on_the_cpu_are_made_where_it_is_captured_for() -> None:
    def masked(x: torch.Tensor) -> torch.Tensor:
        least = torch.tensor(-1e9, device="cpu")
        return torch.where(torch.arange(3, device=torch.device("cpu")) > 1, x, least).sum()

    program = capture(Step("masked", masked, (torch.ones(3),)), kind="cuda")
    assert eager(program)[0].item() == pytest.approx(1 - 2e9)


def test_what_cannot_be_captured_is_said_in_one_line() -> None:
    ones = (torch.ones(2),)
    with pytest.raises(ValueError, match=r"^there is no capture for 'tpu'; want cpu or cuda$"):
        capture(Step("double", lambda x: x + x, ones), kind="tpu")
    with pytest.raises(ValueError, match="step 'item' cannot be captured") as raised:
        capture(Step("item", lambda x: x * x.sum().item(), ones), kind="cuda")
    assert "\n" not in str(raised.value)
    assert torch.accelerator.current_accelerator() is None or torch.cuda.is_available()  # nothing stays in this process


def test_the_command_captures_for_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["trace", "rnnlm:layers=1,steps=2", "--for", "cuda"]) == 0
    assert "rnnlm-1: 157 nodes" in capsys.readouterr().out
    assert len(list(Path("runs/traces").iterdir())) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
def test_a_process_that_uses_cuda_captures_for_it() -> None:
    x = torch.ones(2, device="cuda", requires_grad=True)
    torch.autograd.grad((x * x).sum(), x)
    step = encoder("sgd")
    assert outputs_differ(eager(capture(step, kind="cuda")), tree_leaves(step.function(*step.inputs))) is None
