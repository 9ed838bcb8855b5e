"""Estimates of step times: kernels of captured programs, machines by name and by file, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from experiments.reproductions.timm.__main__ import main
from experiments.reproductions.timm.step_time.captured import batch_of, is_training, operators, peak_memory
from experiments.reproductions.timm.step_time.estimate import estimate
from experiments.reproductions.timm.step_time.kernels import CLASSES, COLUMNS, kernels_of
from experiments.reproductions.timm.step_time.machines import MACHINES, machine_of
from gst.programs import Program, capture, capture_module
from gst.programs.features import flops
from gst.programs.traces import resolve
from tests.files import FIXTURES

SAMPLES = FIXTURES / "graphnet"
SMALL = {
    "inception": "inception:modules=1,batch=4", "gpt": "gpt:layers=1,batch=2", "rnnlm": "rnnlm:layers=1,steps=2",
}  # fmt: skip
PRODUCTS = [place for place, name in enumerate(CLASSES) if name.startswith(("conv", "linear", "matmul", "attention"))]


def flops_of_products(program: Program) -> float:
    """As torch counts them, of matrix products, convolutions and attention, gradients included."""
    names = ("convolution", "mm", "bmm", "addmm", "baddbmm", "attention")
    chosen = [any(name in str(each.target) for name in names) for each in program.operations]
    return float(flops(program.operations)[chosen].sum())


def program_of(name: str) -> Program:
    return capture(resolve(SMALL[name]))


def images(count: int = 8) -> torch.Tensor:
    return torch.zeros(count, 3, 64, 64)


def model() -> nn.Module:
    layers = (
        nn.Conv2d(3, 16, 3, 2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, groups=16),
        nn.Conv2d(16, 32, 1),
    )
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).eval()


@pytest.mark.parametrize("name", SMALL)
def test_products_of_a_training_step_have_the_flops_that_torch_counts(name: str) -> None:
    program = program_of(name)
    kernels = kernels_of(operators(program), "fp32", False)
    ours = kernels.columns[np.isin(kernels.kind, PRODUCTS), COLUMNS.index("flops")].sum()
    assert ours == pytest.approx(flops_of_products(program), rel=1e-5)
    assert is_training(program)


def test_products_of_a_module_have_the_flops_that_torch_counts() -> None:
    program = capture_module(model(), (images(),))
    kernels = kernels_of(operators(program), "fp32", True)
    products = np.isin(kernels.kind, PRODUCTS)
    named = sorted(CLASSES[kind] for kind in kernels.kind[products])
    assert named == ["conv 1x1", "conv depthwise", "conv stem", "linear"]
    assert kernels.columns[products, 0].sum() == pytest.approx(flops_of_products(program))
    assert not is_training(program) and batch_of(program) == (8, 64)


def test_a_step_of_twice_the_batch_has_the_same_kernels_of_a_sample() -> None:
    one, two = (estimate(model(), (images(count),), "a100") for count in (64, 128))
    assert one.parameter_bytes == two.parameter_bytes
    assert two.activation_bytes == pytest.approx(2 * one.activation_bytes)
    assert one.milliseconds < two.milliseconds < 2.1 * one.milliseconds


@pytest.mark.parametrize(("first", "then"), [(torch.float32, torch.bfloat16), (torch.float16, torch.float32)])
def test_what_follows_a_cast_moves_bytes_of_its_dtype(first: torch.dtype, then: torch.dtype) -> None:
    class Cast(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(then).relu()

    kernels = kernels_of(operators(capture_module(Cast(), (torch.zeros(10, 10, dtype=first),))), "fp32", False)
    moved = kernels.columns[:, [COLUMNS.index("bytes read"), COLUMNS.index("bytes written")]]
    before, after = 100 * first.itemsize, 100 * then.itemsize
    assert moved.tolist() == [[before, after], [after, after]]


def test_peak_memory_by_hand() -> None:
    """relu keeps its input of 400 bytes and its result; the second can be freed of the first."""
    program = capture_module(nn.Sequential(nn.ReLU(), nn.Sigmoid(), nn.Tanh()), (torch.zeros(10, 10),))
    assert peak_memory(operators(program)) == (0.0, 800.0)
    layer = capture_module(nn.Linear(10, 20), (torch.zeros(5, 10),))
    assert peak_memory(operators(layer)) == (4.0 * (200 + 20), 4.0 * (50 + 100))


def test_a_table_of_which_rows_are_looked_up_has_all_its_bytes() -> None:
    words = torch.zeros(2, 7, dtype=torch.int64)
    found = estimate(nn.Sequential(nn.Embedding(500, 16), nn.Linear(16, 4)), (words,))
    assert found.parameter_bytes == 4 * (500 * 16 + 16 * 4 + 4)


def test_costs_add_up_and_the_interval_holds_the_time() -> None:
    for on in ("rtx4090", "h100", "cpu-r9_7950x"):
        found = estimate(model(), (images(),), on=on, is_compiled=True)
        assert sum(cost.milliseconds for cost in found.costs) == pytest.approx(found.milliseconds)
        assert found.interval[0] < found.milliseconds < found.interval[1]
        assert on in str(found) and found.basis


def test_a_machine_is_described_by_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(MACHINES["h100"]._asdict()))
    assert machine_of(str(path)) == MACHINES["h100"]
    mine, known = (estimate(model(), (images(),), on) for on in (str(path), "h100"))
    assert mine.milliseconds == pytest.approx(known.milliseconds)
    for content, message in (
        ("{}", "lacks bandwidth, cache, cores, half, single"),
        (path.read_text().replace("3350", "-1"), "bandwidth is -1; want a positive number"),
        (path.read_text().replace("is_cpu", "kind"), "has kind besides"),
    ):
        (tmp_path / "wrong.json").write_text(content)
        with pytest.raises(ValueError, match=message):
            machine_of(str(tmp_path / "wrong.json"))


def test_the_command_prints_a_line_for_each_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = next(SAMPLES.rglob("model.py")).parent
    path = tmp_path / "estimate.json"
    assert main(["estimate", str(sample), "--on", "rtx3090,h100", "--batch", "64", "--json", str(path)]) == 0
    said, result = capsys.readouterr().out, json.loads(path.read_text())
    assert result["program"] == sample.name
    assert [each["machine"] for each in result["estimates"]] == ["rtx3090", "h100"]
    assert "rtx3090: efficiencies measured on such a machine" in said and "h100: efficiencies of its kind" in said
    assert result["estimates"][0]["milliseconds"] > result["estimates"][1]["milliseconds"] > 0
    assert main(["estimate", "rnnlm:layers=1,steps=2", "--on", "a100"]) == 0
    assert "a program of another kind may be further off" in capsys.readouterr().out
    assert main(["estimate", "--on", "list"]) == 0
    assert "rtx4090" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inception", "--on", "abacus"], "machine abacus has no rates; there are rtx3090"),
        (["inception", "--on", "nowhere.json"], "nowhere.json"),
        (["rnnlm:layers=1,steps=2", "--batch", "3"], "--batch 3 is for GraphNet samples"),
        ([str(SAMPLES.parent / "hlo")], "hlo holds no GraphNet sample"),
        (["nofile.hlo"], "nofile.hlo: there is no such file"),
    ],
)
def test_what_cannot_be_estimated_is_said_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("side", [64, 0])
def test_no_program_is_faster_than_at_peak_rates(is_compiled: bool, side: int) -> None:
    layers = nn.Conv2d(3, 96, 11, 4) if side else nn.Linear(4096, 4096)  # classes whose efficiencies are 0 somewhere
    inputs = torch.zeros(256, 3, side, side) if side else torch.zeros(4096, 4096)
    program = capture_module(layers.eval(), (inputs,))
    kernels = kernels_of(operators(program), "fp32", is_compiled)
    for name in ("h100", "rtx4090", "cpu-i9_10940x"):
        least = kernels.columns[:, COLUMNS.index("flops")].sum() / machine_of(name).single / 1e9
        assert estimate(program, on=name, is_compiled=is_compiled).milliseconds >= 0.999 * least > 0
