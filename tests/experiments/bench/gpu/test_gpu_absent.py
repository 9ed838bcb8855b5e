"""`python -m experiments.bench gpu` without an accelerator, and where packages are absent."""

import os
from pathlib import Path

import pytest
import torch

from experiments.bench.__main__ import main
from experiments.bench.gpu import lines, place, process, pytest_runs

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


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which the packages that are absent where GPUs are lent cannot be imported, and
    another package has the name of the folder `tests`."""
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").write_text("raise ImportError('of another project')")
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}


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


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator here")
def test_without_an_accelerator_the_command_ends_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu"]) == 2 and "PyTorch finds no accelerator on this machine" in capsys.readouterr().err


@pytest.mark.e2e
def test_a_program_is_placed_as_users_place_it() -> None:
    settings = {"program": "rnnlm:layers=1,hidden=32,steps=2,batch=4", "seconds": 10}
    row = place.reports(settings, ["cpu:0"])
    assert row["winner"] in row["plans"] and row["plans"]["pytorch"]["median_ms"] > 0 and row["eager"] == []
    assert row["winner"] in lines.line("place", row)
    with pytest.raises(ValueError, match="there is no device 'xpu:9' here"):
        place.reports(settings, ["xpu:9"])
