"""XLA programs: operations as XLA counts them, kernels, and estimates of HLO and StableHLO files."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import made_xla
import numpy as np
import pytest

from experiments.reproductions.timm.__main__ import main
from experiments.reproductions.timm.step_time.estimate import estimate
from experiments.reproductions.timm.step_time.kernels import CLASSES, COLUMNS
from experiments.reproductions.timm.step_time.xla import read_xla, xla_program
from experiments.reproductions.timm.step_time.xla_counts import counts_of
from gst.data.hlo.modules import read_tuning
from gst.data.hlo.text import parse_module
from tests.files import FIXTURES

XLA = FIXTURES / "xla"
COUNTS = json.loads((XLA / "counts.json").read_text())
SMALL = """HloModule m

body {
  s = (s32[], f32[64,64]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  j = s32[] add(i, one)
  x = f32[64,64] get-tuple-element(s), index=1
  y = f32[64,64] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (s32[], f32[64,64]) tuple(j, y)
}

condition {
  s = (s32[], f32[64,64]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(5)
  ROOT c = pred[] compare(i, n), direction=LT
}

ENTRY e {
  x = f32[64,64] parameter(0)
  zero = s32[] constant(0)
  s = (s32[], f32[64,64]) tuple(zero, x)
  w = (s32[], f32[64,64]) while(s), condition=condition, body=body
  ROOT r = f32[64,64] get-tuple-element(w), index=1
}
"""


def classes(path: Path) -> Counter[str]:
    return Counter(CLASSES[kind] for kind in read_xla(path).kernels().kind)


def saved(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("form", ["lowered", "compiled"])
def test_operations_are_counted_as_xla_counts_them(name: str, form: str) -> None:
    assert counts_of(read_tuning(XLA / f"{name}.{form}.txt")[0])._asdict() == COUNTS[name][form]


def test_fixtures_are_what_jax_writes(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="needs the extra 'dev'")
    counts = made_xla.write(tmp_path)
    for name, forms in counts.items():
        for form, count in forms.items():
            assert counts_of(read_tuning(tmp_path / f"{name}.{form}.txt")[0])._asdict() == count
        assert counts_of(read_tuning(tmp_path / f"{name}.mlir")[0])._asdict() == forms["lowered"]


def test_stablehlo_and_hlo_of_a_program_are_the_same_kernels() -> None:
    pytest.importorskip("jaxlib", reason="needs the extra 'xla'")
    for name in COUNTS:
        one, other = read_xla(XLA / f"{name}.mlir"), read_xla(XLA / f"{name}.lowered.txt")
        np.testing.assert_array_equal(one.kernels().columns, other.kernels().columns)
        assert (one.batch, one.side, one.is_training) == (other.batch, other.side, other.is_training)


def test_without_jaxlib_stablehlo_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jaxlib.xla_client", None)
    with pytest.raises(ImportError):
        importlib.import_module("jaxlib.xla_client")
    assert main(["estimate", str(XLA / "loop.mlir"), "--on", "h100"]) == 2
    said = capsys.readouterr().err
    assert "pip install 'graph-segment-training[xla]'" in said and said.count("\n") == 1


def test_kernels_of_a_training_step_have_the_products_of_its_convolutions_and_gradients() -> None:
    program = read_xla(XLA / "convnet_step.lowered.txt")
    assert (program.batch, program.side, program.is_training, program.is_half) == (8, 32, True, False)
    kernels = program.kernels()
    named = Counter(CLASSES[kind] for kind in kernels.kind)
    assert (named["conv stem"], named["conv depthwise"]) == (2, 3)  # forward; gradients of weights, and of one input
    assert named["linear"] + named["matmul"] == 3
    flops = kernels.columns[:, COLUMNS.index("flops")]
    stem = flops[kernels.kind == CLASSES.index("conv stem")]
    assert stem.tolist() == [2.0 * 8 * 16 * 16 * 16 * 3 * 9] * 2
    assert set(flops[kernels.kind == CLASSES.index("conv depthwise")].tolist()) == {2.0 * 8 * 16 * 16 * 16 * 9}


def test_weights_and_memory_of_a_program_of_16_bits() -> None:
    program = read_xla(XLA / "attention.lowered.txt")
    assert (program.batch, program.is_half, program.is_training) == (2, True, False)
    assert program.parameter_bytes == 2 * (50 * 64 + 3 * 64 * 64 + 2 * 64 * 256)
    hidden = 2 * 2 * 32 * 256  # after the product with `o`, and gelu of it
    assert 2 * hidden <= program.activation_bytes() <= 6 * hidden
    compiled = read_xla(XLA / "attention.compiled.txt")
    assert compiled.parameter_bytes == program.parameter_bytes
    assert classes(XLA / "attention.lowered.txt")["fused reduction"] == 1  # the softmax


def test_a_fusion_is_one_kernel_that_reads_and_writes_what_crosses_its_border(tmp_path: Path) -> None:
    text = """HloModule m, is_scheduled=true

fused {
  a = f32[100] parameter(0)
  b = f32[100] parameter(1)
  c = f32[100] add(a, b)
  d = f32[100] exponential(c)
  ROOT e = f32[100] multiply(d, a)
}

ENTRY e {
  x = f32[4,25] parameter(0)
  y = f32[4,25] parameter(1)
  p = f32[100] bitcast(x)
  q = f32[100] bitcast(y)
  ROOT z = f32[100] fusion(p, q), kind=kLoop, calls=fused
}
"""
    kernels = read_xla(saved(tmp_path / "fused.hlo", text)).kernels()
    row = dict(zip(COLUMNS, kernels.columns[0].tolist(), strict=True))
    assert len(kernels.kind) == 1 and CLASSES[kernels.kind[0]] == "fused pointwise"
    assert (row["bytes read"], row["bytes written"], row["operations"], row["flops"]) == (800, 400, 3, 300)


def test_a_loop_runs_its_body_as_often_as_its_condition_says(tmp_path: Path) -> None:
    program = read_xla(saved(tmp_path / "loop.hlo", SMALL))
    kernels = program.kernels()
    products = kernels.columns[kernels.kind == CLASSES.index("matmul"), 0]
    assert products.tolist() == [2.0 * 64**3] * 5 and program.unknown_loops == 0
    unknown = read_xla(saved(tmp_path / "unknown.hlo", SMALL.replace("direction=LT", "direction=NE")))
    assert unknown.unknown_loops == 1 and len(unknown.kernels().kind) < len(kernels.kind)


def test_calls_of_libraries_are_products(tmp_path: Path) -> None:
    text = """HloModule m

ENTRY e {
  x = bf16[32,64,8]{2,1,0} parameter(0)
  w = bf16[64,8,16]{2,1,0} parameter(1)
  g = (bf16[32,16]{1,0}, s8[1024]{0}) custom-call(x, w), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1","2"],"rhs_contracting_dimensions":["0","1"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]},"beta":0}}
  i = f32[2,9,9,17]{3,2,1,0} parameter(2)
  k = f32[32,3,3,17]{3,2,1,0} parameter(3)
  ROOT c = (f32[2,9,9,32]{3,2,1,0}, u8[0]{0}) custom-call(i, k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convForward"
}
"""  # noqa: E501
    kernels = read_xla(saved(tmp_path / "calls.hlo", text)).kernels()
    flops = {CLASSES[kind]: row[0] for kind, row in zip(kernels.kind, kernels.columns.tolist(), strict=True)}
    assert flops == {"linear": 2.0 * 32 * 16 * 512, "conv kxk": 2.0 * 2 * 81 * 32 * 17 * 9}


def test_the_command_estimates_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "estimate.json"
    file = shutil.copy(XLA / "convnet_step.lowered.txt", tmp_path / "step.hlo")
    assert main(["estimate", str(file), "--on", "h100,rtx3060", "--json", str(path)]) == 0
    said = capsys.readouterr().out
    assert "0.005354 GFLOP as XLA counts them; not compiled" in said
    fast, slow = (each["milliseconds"] for each in json.loads(path.read_text())["estimates"])
    assert 0 < fast < slow


def test_no_program_is_shorter_than_its_kernels_are_at_least() -> None:
    program = read_xla(XLA / "loop.lowered.txt")
    assert estimate(program, on="h100").milliseconds >= 0.002 * len(program.kernels().kind)


BAD = {
    "HloModule m\nENTRY e {\nx = f32[3] parameter(0)\n}": "has no operation that moves data",
    SMALL.replace("y = f32[64,64] dot", "y = f32[64,63] dot"): "'y' has a result of [64, 63]",
    SMALL.replace("lhs_contracting_dims={1}", "lhs_contracting_dims={7}"): "'y' names dimensions [7] of [64, 64]",
    SMALL.replace("index=1\n  y", "index=4\n  y"): "'x' (get-tuple-element) contradicts its operands",
    SMALL.replace("constant(5)", "constant(99999999999)"): "kernels; at most 1000000 are estimated",
    "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {": "StableHLO",
    "hello": "begins neither with HloModule nor with module",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_file_is_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "bad.hlo", text)
    assert main(["estimate", str(path), "--on", "h100"]) == 2
    said = capsys.readouterr().err
    assert BAD[text] in said and said.count("\n") == 1


def test_a_convolution_of_nothing_and_a_loop_without_a_root_are_refused(tmp_path: Path) -> None:
    text = """HloModule m

ENTRY e {
  i = f32[2,9,9,17] parameter(0)
  k = f32[0,3,3,17] parameter(1)
  ROOT c = f32[2,9,9,0] convolution(i, k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f
}
"""
    with pytest.raises(ValueError, match="'c' is a convolution of an array without elements"):
        read_xla(saved(tmp_path / "nothing.hlo", text))
    module = parse_module(SMALL)
    module.computations[1].root_id = 99
    with pytest.raises(ValueError, match="'condition' lacks its root"):
        xla_program(module)


def test_options_that_xla_programs_do_not_take(capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--compile"], ["--precision", "amp"], ["--batch", "3"]):
        assert main(["estimate", str(XLA / "loop.lowered.txt"), *option]) == 2
        assert option[0] in capsys.readouterr().err


def test_calls_that_double_at_each_level_are_refused(tmp_path: Path, unchecked: None) -> None:
    lines = ["HloModule m", "c0 {", "x = f32[] parameter(0)", "ROOT y = f32[] negate(x)", "}"]
    for level in range(1, 60):
        call = f"f32[] call(x), to_apply=c{level - 1}"
        lines += [
            f"c{level} {{",
            "x = f32[] parameter(0)",
            f"a = {call}",
            f"b = {call}",
            "ROOT y = f32[] add(a, b)",
            "}",
        ]
    lines += ["ENTRY e {", "x = f32[] parameter(0)", "ROOT y = f32[] call(x), to_apply=c59", "}"]
    with pytest.raises(ValueError, match="instructions, each call counted"):
        read_xla(saved(tmp_path / "doubling.hlo", "\n".join(lines)))
