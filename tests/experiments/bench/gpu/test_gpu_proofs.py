"""`python -m experiments.bench gpu` without an accelerator, and where packages are absent."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from experiments.bench.__main__ import main
from experiments.bench.gpu import lines, place, process, proofs, pytest_runs
from gst.programs import WORKLOADS
from tests.choices import with_rest

ROOT = Path(__file__).parents[4]
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
    """The environment of a process in which the packages that are absent where GPUs are lent cannot be imported, and
    another package has the name of the folder `tests`."""
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").write_text("raise ImportError('of another project')")
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
    monkeypatch.setattr(process, "child_environment", lambda: bare)
    first, others = pytest_runs.files_of_tests()
    row = pytest_runs.gpu_tests([*first, *others], 300.0)
    assert row["status"] == 0 and {each["outcome"] for each in row["outcomes"].values()} <= {"skipped", "passed"}, row
    files = [test.partition("::")[0].rpartition("/")[2] for test in row["outcomes"]]
    assert files[0] == "test_kernels_on_gpu.py" and files[-1] == "test_graph_executor.py"  # the most important first


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
    steps, skipped = proofs.steps_to_prove(None, None)
    assert len(steps) == len(WORKLOADS) + 13 and skipped == ["GraphNet samples (--samples FILE)"]
    monkeypatch.setattr(proofs, "find_spec", lambda name: None)
    steps, skipped = proofs.steps_to_prove(None, ROOT / "tests/fixtures/graphnet")
    assert set(steps) > set(WORKLOADS) and not any(name.startswith("transformers:") for name in steps)
    assert skipped == ["training steps of transformers, which is not installed (extra 'models')"]


@NO_GPU
@pytest.mark.slow
@pytest.mark.parametrize("name", with_rest(["llama", "vit", "mixtral"], ["llama"]))
def test_a_step_of_transformers_is_right_without_an_accelerator(name: str) -> None:
    """Grouped-query attention expands values that are copied; images are no tokens; a mixture of experts asks for the
    generation of the device."""
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    assert main(["gpu", "--programs", f"transformers:{name}"]) == 0


@pytest.mark.e2e
def test_a_program_is_placed_as_users_place_it() -> None:
    settings = {"program": "rnnlm:layers=1,hidden=32,steps=2,batch=4", "seconds": 10}
    row = place.reports(settings, ["cpu:0"])
    assert row["winner"] in row["plans"] and row["plans"]["pytorch"]["median_ms"] > 0 and row["eager"] == []
    assert row["winner"] in lines.line("place", row)
    with pytest.raises(ValueError, match="there is no device 'xpu:9' here"):
        place.reports(settings, ["xpu:9"])
