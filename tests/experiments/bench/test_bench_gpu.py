"""`python -m experiments.bench gpu` without an accelerator, and what it does on one, done on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.bench import gpu, gpu_capped, gpu_child, gpu_pipeline, gpu_place, gpu_proofs
from experiments.bench.__main__ import main
from gst.devices import Device
from gst.devices.execute.lanes import Lane
from gst.programs import WORKLOADS, Step, capture_module

ROOT = Path(__file__).parents[3]
ABSENT = ("pymetis", "wandb", "beartype", "jsonargparse", "shtab")  # where GPUs are lent
BLOCK = f"""
import sys
from importlib.machinery import PathFinder


class WithoutSome(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {ABSENT} else super().find_spec(name, path, target)


sys.meta_path = [WithoutSome if each is PathFinder else each for each in sys.meta_path]
"""
NO_GPU = pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator here")


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which the packages that are absent where GPUs are lent cannot be imported."""
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}


@pytest.mark.e2e
@NO_GPU
def test_the_command_where_packages_are_absent(bare: dict[str, str], tmp_path: Path) -> None:
    absent = subprocess.run([sys.executable, "-c", "import pymetis"], env=bare, capture_output=True, text=True)
    assert "No module named 'pymetis'" in absent.stderr
    command = [sys.executable, "-m", "experiments.bench", "gpu", "--programs", "inception,gpt,moe"]
    path = tmp_path / "gpu.json"
    ran = subprocess.run([*command, "--json", str(path)], env=bare, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "no accelerator here: 3 of 3 programs were checked" in ran.stdout
    assert "skipped: the tests marked gpu; every time" in ran.stdout
    result = json.loads(path.read_text())
    assert result["accelerator"] is None and "workloads" not in result
    assert all(row["lowered"]["4x2"]["copies"] > 100 for row in result["checked"].values())


@pytest.mark.e2e
def test_tests_of_a_gpu_are_collected_where_packages_are_absent(
    bare: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "child_environment", lambda: bare)
    tests = gpu.gpu_tests(300.0)
    assert tests["status"] == 0 and tests["failed"] == [], tests
    assert "skipped" in tests["last_line"] or "passed" in tests["last_line"]


@NO_GPU
def test_the_command_says_that_nothing_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu", "--programs", "inception", "--json", str(tmp_path / "gpu.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("inception") and "for CUDA" in lines[0]
    assert lines[1].startswith("no accelerator here: 1 of 1") and lines[2].startswith("skipped: the tests marked gpu")
    assert main(["gpu", "--programs", "alexnet"]) == 2
    assert "no workload 'alexnet'; there are rnnlm, " in capsys.readouterr().err


@NO_GPU
def test_what_is_skipped_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, skipped = gpu_proofs.steps_to_prove(None, None)
    assert len(steps) == len(WORKLOADS) + 13 and skipped == ["GraphNet samples (--samples FILE)"]
    monkeypatch.setattr(gpu_proofs, "find_spec", lambda name: None)
    steps, skipped = gpu_proofs.steps_to_prove(None, ROOT / "tests/fixtures/graphnet")
    assert set(steps) > set(WORKLOADS) and not any(name.startswith("transformers:") for name in steps)
    assert skipped == ["training steps of transformers, which is not installed (extra 'models')"]


@NO_GPU
@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "vit", "mixtral"])
def test_a_step_of_transformers_is_right_without_an_accelerator(name: str) -> None:
    """Grouped-query attention expands values that are copied; images are no tokens; a mixture of experts asks for the
    generation of the device."""
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    assert main(["gpu", "--programs", f"transformers:{name}"]) == 0


@NO_GPU
@pytest.mark.e2e
def test_more_steps_of_transformers_and_a_sample_are_right_without_an_accelerator(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    programs, path = "transformers:t5,transformers:mamba,transformers:albert", tmp_path / "gpu.json"
    command = ["gpu", "--programs", programs, "--samples", str(ROOT / "tests/fixtures/graphnet")]
    assert main([*command, "--json", str(path)]) == 0
    checked = json.loads(path.read_text())["checked"]
    assert len(checked) > 3 and all(row["lowered"]["4x2"]["steps"] for row in checked.values())


@NO_GPU
def test_a_value_that_stays_on_the_wrong_device_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Lane, "copy", lambda self, value, device: value)
    assert main(["gpu", "--programs", "inception"]) == 2
    said = capsys.readouterr()
    assert (
        said.out.startswith("inception")
        and "failed: step " in said.out
        and "inception failed without an accelerator" in said.err
    )


def test_what_is_measured_on_an_accelerator_is_measured_on_the_cpu() -> None:
    settings = {"repetitions": 2, "lanes": [1, 2], "modes": [], "plans": 0}
    (row,) = gpu_child.reports("rnnlm:layers=1,steps=2,hidden=8,vocabulary=20", settings, "cpu")
    reasons = {way: each["reason"] for way, each in row["ways"].items()}
    assert [reasons[way] for way in ("as written", "1 lanes", "2 lanes")] == [""] * 3
    assert reasons["as written, graph"].startswith("graphs are recorded on an accelerator; this runs on cpu")
    assert reasons["2 lanes, graph"] == "graphs are recorded on an accelerator; this runs on cpu"
    assert row["operations_ms"] > 0 and row["dearest"][0][1] >= row["dearest"][-1][1] > 0
    assert json.loads(json.dumps(row)) == row


def test_a_way_with_other_outputs_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_child, "as_written", lambda step, device: lambda: [torch.ones(3)])
    settings = {"repetitions": 1, "lanes": [1], "modes": [], "plans": 0}
    (row,) = gpu_child.reports("rnnlm:layers=1,steps=2,hidden=8,vocabulary=20", settings, "cpu")
    assert "outputs instead of" in row["ways"]["as written"]["reason"]
    assert row["ways"]["as written"]["median_ms"] is None and row["ways"]["1 lanes"]["median_ms"] > 0


def halved() -> Step:
    """A step that makes a tensor on the device for which it was captured."""
    return Step("halved", lambda x: (x / 2 + torch.arange(3.0, device=x.device),), (torch.ones(3),))


@pytest.mark.slow
def test_a_program_compiled_in_a_mode_is_timed_beside_the_step_as_written() -> None:
    settings = {"repetitions": 1, "lanes": [1], "modes": ["default", "wrong"], "plans": 0}
    before, row = gpu_child.reports(f"{__name__}:halved", settings, "cpu")
    assert "compiled, default" not in before["ways"]
    assert row["ways"]["compiled, default"]["median_ms"] > 0
    assert "Unrecognized mode" in row["ways"]["compiled, wrong"]["reason"]


def test_what_a_child_said_before_its_time_was_over_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import time; print('{\"nodes\": 3}', flush=True); print('{\"nodes\":', end='', flush=True); time.sleep(60)"
    late = [sys.executable, "-c", code]
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **options: run(late, **options))
    assert gpu._row("gpu_child", ["rnnlm"], 2.0) == {"nodes": 3, "unfinished": "no end within 2 s"}


def test_the_simulator_is_compared_with_measured_plans() -> None:
    settings = {"repetitions": 1, "lanes": [1, 2], "modes": [], "plans": 4}
    before, row = gpu_child.reports("rnnlm:layers=1,steps=2,hidden=8,vocabulary=20", settings, "cpu")
    assert "simulator" not in before  # what was measured before is said before
    found = row["simulator"]
    assert found["plans"] == len(found["simulated_ms"]) == len(found["measured_ms"]) == 4 and found["lanes"] == 2
    assert -1 <= found["spearman"] <= 1 and min(found["measured_ms"]) > 0 and found["graphs"] == 0
    assert len(set(found["simulated_ms"])) > 1


def test_a_plan_keeps_half_of_the_memory_beside_accelerate() -> None:
    pytest.importorskip("accelerate", reason="needs the extra 'models'")
    row = gpu_capped.reports({"blocks": 6, "width": 32, "batch": 4, "repetitions": 2}, "cpu")
    assert 0 < row["plan_bytes"] <= row["limit_bytes"] == row["whole_bytes"] // 2
    ways = row["ways"]
    assert ways["plan over both"]["median_ms"] > 0 and ways["Accelerate, offload"]["median_ms"] > 0
    assert ways["pipeline stages"]["reason"] == gpu_capped.ONE_ACCELERATOR
    assert json.loads(json.dumps(row)) == row


@pytest.mark.e2e
def test_pipeline_stages_compute_what_the_model_computes() -> None:
    settings = {"blocks": 5, "width": 32, "batch": 4, "repetitions": 2}
    row = gpu_pipeline.pipelined(settings, "cpu", 2)
    assert row["reason"] == "" and row["median_ms"] > 0


@pytest.mark.e2e
def test_a_program_is_placed_as_users_place_it() -> None:
    settings = {"program": "rnnlm:layers=1,hidden=32,steps=2,batch=4", "seconds": 10}
    row = gpu_place.reports(settings, ["cpu:0"])
    assert row["winner"] in row["plans"] and row["plans"]["pytorch"]["median_ms"] > 0 and row["eager"] == []
    assert row["winner"] in gpu._place_line(row)
    with pytest.raises(ValueError, match="there is no device 'xpu:9' here"):
        gpu_place.reports(settings, ["xpu:9"])


def test_what_is_offloaded_computes_what_the_model_computes(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="needs the extra 'models'")
    model, x = gpu_capped.model_of(4, 16), torch.ones(2, 16)
    want, size = model(x), sum(each.nbytes for each in model.parameters())
    run = gpu_capped.offloaded(model, (x,), torch.device("cpu"), size // 2, tmp_path)
    assert any(each.is_meta for each in model.parameters()) and list(tmp_path.iterdir())  # some are on disk
    assert torch.equal(run()[0], want)


def test_without_accelerate_the_plan_alone_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_capped, "find_spec", lambda name: None)
    ways = gpu_capped.reports({"blocks": 4, "width": 16, "batch": 2, "repetitions": 1}, "cpu")["ways"]
    assert ways["Accelerate, offload"] == {"median_ms": None, "reason": gpu_capped.WITHOUT_ACCELERATE}
    assert ways["plan over both"]["median_ms"] > 0


def test_a_limit_into_which_nothing_fits_is_refused() -> None:
    program = capture_module(gpu_capped.model_of(2, 16), (torch.ones(2, 16),))
    devices = [Device(name, "cpu", (), 1, name, "test") for name in ("first", "second")]
    with pytest.raises(ValueError, match=r"^no operation fits into 8 bytes of first$"):
        gpu_capped.capped_plan(program, devices, 8)


def test_what_there_is_no_time_for_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The order of a run on an accelerator: the most important first, and all that is left is skipped by name."""
    asked = []

    def row(module: str, arguments: list[str], time_limit_s: float) -> dict[str, Any]:
        asked.append((module, arguments[0]))
        monkeypatch.setattr(gpu.time, "monotonic", lambda: 1e9 if len(asked) == 10 else 0.0)
        return {"failed": "no GPU"}

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("xpu"))
    monkeypatch.setattr(gpu, "_row", row)
    monkeypatch.setattr(gpu.time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(gpu, "machine_record", dict)
    path = tmp_path / "gpu.json"
    assert main(["gpu", "--without-tests", "--json", str(path)]) == 0
    assert [name for _, name in asked[:4]] == ["step", "recorded", "table", "score"] and asked[0][0] == "gpu_gst"
    assert [name for _, name in asked[4:8]] == ["gpt", "inception", "rnnlm", "moe"]
    assert [module for module, _ in asked[8:]] == ["gpu_place", "gpu_capped"]
    skipped = json.loads(path.read_text())["skipped"]
    assert len(skipped) == len(WORKLOADS) - 4 and skipped[0].endswith("no time left of 1200 s")
    assert "skipped: " in capsys.readouterr().out


def test_a_run_that_is_killed_leaves_its_rows_and_the_next_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, asked = tmp_path / "gpu.json", []

    def row(module: str, arguments: list[str], time_limit_s: float) -> dict[str, Any]:
        asked.append(arguments[0])
        if len(asked) == 3:
            raise KeyboardInterrupt
        times = {"as written": {"median_ms": 1.0, "reason": ""}}
        return {"nodes": 1, "operations_ms": 1.0, "ways": times} if arguments[0] == "gpt" else {"failed": "no GPU"}

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("xpu"))
    monkeypatch.setattr(gpu, "_row", row)
    monkeypatch.setattr(gpu, "machine_record", dict)
    command = ["gpu", "--without-tests", "--programs", "gpt,rnnlm,moe", "--json", str(path)]
    with pytest.raises(KeyboardInterrupt):
        main(command)
    assert list(json.loads(path.read_text())["workloads"]) == ["gpt", "rnnlm"]
    assert main([*command, "--resume"]) == 0 and asked == ["gpt", "rnnlm", "moe", "rnnlm", "moe"]
    assert set(json.loads(path.read_text())["workloads"]) == {"gpt", "rnnlm", "moe"}
    assert main([*command, "--resume", "--plans", "3"]) == 2  # other settings
