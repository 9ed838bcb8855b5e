"""Third-party models: their sources become modules without being executed, and the benchmark reports each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments.bench import third_party
from experiments.bench.__main__ import main
from experiments.reproductions.graphnet.module import module_of
from experiments.reproductions.graphnet.reader import FxSource, read_sources
from tests.experiments.bench.ran import ran

FIXTURE = Path(__file__).parents[2] / "fixtures" / "graphnet"
ENTRY = 'class A:\n name = "{}"\n shape = {}\n dtype = "torch.float32"\n mean = 2.0\n std = 3.0\n data = {}\n'


def small(*lines: str, weights: str = "") -> FxSource:
    body = "".join(f"        {line}\n" for line in lines)
    model = f"class GraphModule:\n    def forward(self, L_x_, L_self_buffers_v_, s0):\n{body}"
    entries = ENTRY.format("L_x_", [2, 6], None) + ENTRY.format("s0", [], [7]).replace("float32", "int64")
    variance = ENTRY.format("L_self_buffers_v_", [6], None) + " min_val = 0\n"
    return FxSource("small", model, entries + variance + weights)


def test_calls_operators_tuples_and_symbols_compute_what_the_source_says() -> None:
    source = small(
        "a, b = L_x_.chunk(2, dim=-1)", "a += 1", "c = torch.cat([a, b * 2], 1)", "c[:, 0] = 5.0",
        "d = c.view(s0, 3, -1)[(slice(None, None, None), 0)]", "return (d, L_self_buffers_v_, 2 * s0 + 1)",
    )  # fmt: skip
    module, (x,) = module_of(source)
    first, variance, number = module(x.clone())
    a, b = x.clone().chunk(2, dim=-1)
    want = torch.cat([a + 1, b * 2], 1)
    want[:, 0] = 5.0
    torch.testing.assert_close(first, want.view(2, 3, -1)[:, 0])
    assert (variance > 0).all() and number == 5, "a symbol is the batch"
    assert not module.training and not any(each.requires_grad for each in module.parameters())
    again, _ = module_of(source)
    torch.testing.assert_close(again(x.clone())[1], variance)


def test_random_weights_have_the_stated_mean_and_deviation() -> None:
    wide = ENTRY.format("L_self_parameters_w_", [400, 50], None)
    source = small("return (L_self_parameters_w_ + 0,)", weights=wide)
    source = FxSource("small", source.model.replace("s0", "s0, L_self_parameters_w_"), source.weights)
    module, (x,) = module_of(source)
    (weight,) = module(x)
    assert weight.mean() == pytest.approx(2, abs=0.1) and weight.std() == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize("line", [
    "__import__('os').system('touch executed')", "torch.load('x')", "L_x_.__class__", "L_x_.numpy()", "(lambda: 1)()",
    "[each for each in L_x_]", "open('executed', 'w')", "torch.ops.load_library('x')", "eval('1')",
    "L_x_.apply_(print)", "torch.from_file('executed', True, 4)", "L_x_.to(*[1])", "L_x_.tofile('executed')",
    "'a' * 10 ** 9", "10 ** 10 ** 10", "unknown + L_x_",
])  # fmt: skip
def test_other_calls_are_refused_and_nothing_is_executed(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"small/model.py, line 3: "):
        module_of(small(line, "return (L_x_,)"))
    assert not list(tmp_path.iterdir())


def test_batch_normalisations_keep_the_numbers_small() -> None:
    (source,) = read_sources(FIXTURE)
    module, inputs = module_of(source)
    assert all(each.isfinite().all() for each in module(*inputs))


def test_a_name_that_is_no_sample_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["third_party", "--data", str(FIXTURE), "--names", "other", "--out", str(tmp_path)]) == 2
    assert "has no sample 'other'; there are small_net.tiny" in capsys.readouterr().err


@pytest.mark.e2e
def test_a_sample_is_placed_and_one_that_fails_is_a_row_with_its_reason(tmp_path: Path) -> None:
    (source,) = read_sources(FIXTURE)
    for name, model, weights in (
        ("bad", small("return (torch.load('x'),)").model, small().weights), ("good", source.model, source.weights),
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").write_text(model)
        (tmp_path / name / "weight_meta.py").write_text(weights)
    result = ran(
        tmp_path, "third_party", "--data", tmp_path, "--variants", "eager,onnxruntime", "--threads", 1, "--rounds", 3,
        "--seconds", 5, "--tasks", "placement", "--out", tmp_path / "out",
    )  # fmt: skip
    assert "torch.load is not a function that may be called" in result["programs"]["bad"]["failed"]
    good = result["programs"]["good"]
    assert (result["ran"], result["failed"], result["wrong"]) == (1, 1, [])
    assert result["over_eager"] == pytest.approx(good["ms"]["eager:1"][0] / good["ms"]["placed"][0])


def test_rows_are_taken_over_and_summarised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def row(data: Path, name: str, settings: object, time_limit_s: float) -> dict[str, object]:
        calls.append(name)
        return {
            "over_eager": [2.0, 1.9, 2.1], "over_best": [0.9, 0.8, 0.95], "threads": 2, "reasons": {}, "load": 0.5,
            "ms": {"placed": [3.0, 2.9, 3.1], "eager:2": [6.0, 5.9, 6.1]}, "seconds_to_plan": 7.0, "winner": "plan",
        }  # fmt: skip

    monkeypatch.setattr(third_party, "_row", row)
    for rounds, asked in ((3, 1), (3, 1), (4, 2)):  # the second time it is on disk
        result = third_party.run(FIXTURE, rounds=rounds, out=tmp_path)
        assert calls == ["small_net.tiny"] * asked
    assert result["slower"] == result["busy"] == ["small_net.tiny"] and result["over_eager"] == pytest.approx(2.0)
    assert result["over_each"] == {"eager:2": {"mean": 2.0, "programs": 1, "ahead": 1}}


@pytest.mark.parametrize(("name", "package"), [("onnxruntime", "onnx"), ("openvino", "openvino")])
def test_a_runtime_that_is_not_installed_is_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(third_party, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=f"{package} is not installed; pip install"):
        third_party.RUNTIMES[name](torch.nn.ReLU(), (torch.ones(2),), 1)


@pytest.mark.e2e
@pytest.mark.parametrize("name", third_party.RUNTIMES)
def test_a_runtime_computes_what_the_module_does(name: str) -> None:
    pytest.importorskip(name, reason=f"{name} is not installed (pip install {name})")
    (source,) = read_sources(FIXTURE)
    module, inputs = module_of(source)
    want = torch.utils._pytree.tree_leaves(module(*inputs))
    for _ in range(2):
        torch.testing.assert_close(third_party.RUNTIMES[name](module, inputs, 1)(), want, rtol=1e-4, atol=1e-4)
