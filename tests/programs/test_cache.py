"""Bundled workloads are traced once; a user's step is traced as it is now, and once for all processes of a command."""

from pathlib import Path

import pytest

from gst.lowering.calls import eager
from gst.programs import Program, Step, outputs_differ, resolve, trace_path, traced, traces
from gst.programs.traces import pinned

SMALL = "rnnlm:layers=1,hidden=8,steps=2,batch=2,vocabulary=10"

STEP = """
import os
import torch
from gst.programs import Step


def make():
    factor = float(os.environ["FACTOR"])
    return Step("mine", lambda x: x * factor if factor > 0 else x - x, (torch.ones(2),))
"""


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the steps that were traced, not loaded."""
    names: list[str] = []
    real = traces.capture

    def counted(step: Step, kind: str = "cpu") -> Program:
        names.append(step.name)
        return real(step, kind)

    monkeypatch.setattr(traces, "capture", counted)
    return names


def test_the_second_trace_is_a_load(tmp_path: Path, captures: list[str]) -> None:
    first, second = traced(SMALL, tmp_path), traced(SMALL, tmp_path)
    assert captures == ["rnnlm-1"] and first.key == second.key
    assert outputs_differ(eager(second), eager(first)) is None
    assert [path.name for path in tmp_path.iterdir()] == [trace_path(SMALL, tmp_path).name]


def test_other_arguments_versions_and_sources_are_other_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {trace_path(name, tmp_path) for name in (SMALL, f"{SMALL},seed=1", "rnnlm")}
    monkeypatch.setattr("torch.__version__", "99.0")
    paths.add(trace_path(SMALL, tmp_path))
    monkeypatch.setattr(traces, "_sources", lambda: "changed")
    assert len(paths | {trace_path(SMALL, tmp_path)}) == 5


def test_a_damaged_trace_is_made_again(tmp_path: Path, captures: list[str]) -> None:
    key = traced(SMALL, tmp_path).key
    file = trace_path(SMALL, tmp_path) / "tensors.pt"
    file.write_bytes(file.read_bytes()[:-9])
    assert traced(SMALL, tmp_path).key == key and len(captures) == 2
    assert traced(SMALL, tmp_path).key == key and len(captures) == 2


@pytest.fixture
def own_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a step that depends on an environment variable."""
    (tmp_path / "depends.py").write_text(STEP)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FACTOR", "2")
    return "depends:make"


def test_a_step_of_the_user_is_traced_as_it_is_now(
    own_step: str, tmp_path: Path, captures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {}
    for factor, want in (("2", 2.0), ("3", 3.0), ("0", 0.0), ("2", 2.0)):
        monkeypatch.setenv("FACTOR", factor)
        program = traced(own_step, tmp_path / "cache")
        (output,) = eager(program)
        assert output.tolist() == [want, want]
        assert keys.setdefault(factor, program.key) == program.key
    assert len(set(keys.values())) == 3 and len(captures) == 4


def test_a_pinned_step_is_traced_once(own_step: str, tmp_path: Path, captures: list[str]) -> None:
    program = traced(own_step, tmp_path / "cache")
    name = pinned(own_step, program)
    assert resolve(name).name == "mine" and pinned(name, program) == name
    assert traced(name, tmp_path / "cache").key == program.key and captures == ["mine"]
    assert traced(name, tmp_path / "elsewhere").key == program.key and captures == ["mine", "mine"]


def test_a_pinned_step_that_is_another_now_is_refused(
    own_step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = pinned(own_step, traced(own_step, tmp_path / "cache"))
    monkeypatch.setenv("FACTOR", "3")
    traced(own_step, tmp_path / "cache")  # replaces the trace that was pinned
    with pytest.raises(ValueError, match="another one each time it is traced"):
        traced(name, tmp_path / "cache")
