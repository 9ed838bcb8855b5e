"""A second trace is a load; a changed source is traced again."""

import sys
from pathlib import Path

import pytest

from gst.lowering.calls import eager
from gst.programs import Program, Step, outputs_differ, trace_path, traced, traces
from gst.programs.traces import digests, own_sources

SMALL = "rnnlm:layers=1,hidden=8,steps=2,batch=2,vocabulary=10"

STEP = """
import torch
from gst.programs import Step
from {package}.factors import FACTOR


def make():
    import {package}.late
    return Step("mine", lambda x: x * FACTOR, (torch.ones(2),))
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
    monkeypatch.setattr(traces, "STARTED", float("inf"))  # whoever edits beside this test run does not matter
    return names


def test_the_second_trace_is_a_load(tmp_path: Path, captures: list[str]) -> None:
    first, second = traced(SMALL, tmp_path), traced(SMALL, tmp_path)
    assert captures == ["rnnlm-1"] and first.key == second.key
    assert outputs_differ(eager(second), eager(first)) is None
    assert [path.name for path in tmp_path.iterdir()] == [trace_path(SMALL, tmp_path).name]


def test_other_arguments_and_versions_are_other_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {trace_path(name, tmp_path) for name in (SMALL, f"{SMALL},seed=1", "rnnlm")}
    monkeypatch.setattr("torch.__version__", "99.0")
    assert len(paths | {trace_path(SMALL, tmp_path)}) == 4


def test_a_damaged_trace_is_made_again(tmp_path: Path, captures: list[str]) -> None:
    key = traced(SMALL, tmp_path).key
    file = trace_path(SMALL, tmp_path) / "program" / "tensors.pt"
    file.write_bytes(file.read_bytes()[:-9])
    assert traced(SMALL, tmp_path).key == key and len(captures) == 2
    assert traced(SMALL, tmp_path).key == key and len(captures) == 2


def test_a_changed_source_is_traced_again(tmp_path: Path, captures: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it is kept by second and size

    def run(**changed: str) -> tuple[list[float], int]:
        for name, text in changed.items():
            (package / f"{name}.py").write_text(text)
        for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
            del sys.modules[name]  # as in another process
        (output,) = eager(traced("mine.steps:make", tmp_path / "cache"))
        return output.tolist(), len(captures)

    steps = STEP.format(package="mine")
    assert run(__init__="", factors="FACTOR = 2.0", late="", unused="", steps=steps) == ([2.0, 2.0], 1)
    assert run(unused="NOTHING = 1") == ([2.0, 2.0], 1)
    assert run(factors="FACTOR = 3.0") == ([3.0, 3.0], 2)
    assert run(late="NOW = 1") == ([3.0, 3.0], 3)
    assert run() == ([3.0, 3.0], 3)


def test_a_source_changed_while_this_process_runs_is_not_kept(
    tmp_path: Path, captures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "STARTED", 0.0)
    (tmp_path / "new_step.py").write_text(f"from gst.programs import resolve\ndef make(): return resolve('{SMALL}')")
    monkeypatch.syspath_prepend(str(tmp_path))
    traced("new_step:make", tmp_path / "cache")
    assert not (tmp_path / "cache").exists() and captures == ["rnnlm-1"]


def test_own_sources_are_what_a_module_imports() -> None:
    names = {path.name for path in own_sources(["gst.programs.workloads.attention"])}
    assert {"attention.py", "step.py", "graph.py"} <= names
    assert not any(path.is_relative_to(sys.prefix) for path in own_sources(["gst.programs.workloads.attention"]))
    assert own_sources(["json", "torch", "no_such_module"]) == []


def test_a_missing_file_differs_from_a_present_one(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    missing = digests([path])
    path.write_text("")
    assert digests([path]) != missing
