"""A plan may crash, hang, raise or take too much: that is its outcome, and the others are measured."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from gst.execution.executor import NativeExecutor
from gst.execution.isolated import IsolatedExecutor, Runner, measure_plans, reference
from gst.execution.measure import Measurement
from gst.lowering.calls import storages
from gst.lowering.plan import ExecutionError, Plan
from gst.machine.devices import Device
from gst.machine.load import LoadGate
from gst.programs import Program, Step, capture
from gst.util.compiled import compiler
from tests import fragile
from tests.made_devices import pair
from tests.processes import is_running
from tests.programs.small import small_program

HERE = ("cpu:0", "cpu:1")
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def programs() -> dict[str, Program]:
    """Without capturing every workload."""
    return {name: small_program(name) for name in ("rnnlm", "inception")}


@pytest.fixture(scope="module")
def saved(programs: dict[str, Program], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("isolated") / "program"
    programs["rnnlm"].save(directory)
    return directory


@pytest.fixture(scope="module")
def isolated(saved: Path) -> Iterator[IsolatedExecutor]:
    with IsolatedExecutor(saved, pair(separate_memory=False)) as executor:
        yield executor


def of_nodes(*placement: int) -> Plan:
    return Plan(HERE, np.array(placement))


def random_plans(program: Program, count: int) -> list[Plan]:
    rng = np.random.default_rng(0)
    return [Plan(HERE, rng.integers(0, 2, program.num_nodes)) for _ in range(count)]


def test_plans_are_measured_in_turns_in_one_child(isolated: IsolatedExecutor, programs: dict[str, Program]) -> None:
    program = programs["rnnlm"]
    assert isolated.program_key == program.key
    plans = random_plans(program, 3)
    seen = measure_plans(isolated, [*plans, plans[0]], repetitions=4)
    assert [each.plan_key for each in seen] == [plan.key for plan in [*plans, plans[0]]]
    for each in seen:
        assert each.outcome == "ok" and each.repetitions == 4
        assert 0 < each.low_ms <= each.median_ms <= each.high_ms < 10_000
        if compiler() is not None:
            assert each.peak_bytes is not None and 1000 < each.peak_bytes < 10**8
        assert Measurement.from_dict(each.to_dict()) == each
    assert isolated.num_started == 1


def test_operations_are_profiled_there(isolated: IsolatedExecutor, programs: dict[str, Program]) -> None:
    costs = isolated.costs(2)
    times = costs.times_us
    assert costs.load is not None and 0 <= costs.load <= 1
    computed = np.array([each.kind == "operation" for each in programs["rnnlm"].operations])
    assert times.shape == (2, len(computed))
    assert (times[:, ~computed] == 0).all() and (times[:, computed] > 0).mean() > 0.9


def test_each_of_equal_plans_has_its_timeline(isolated: IsolatedExecutor, programs: dict[str, Program]) -> None:
    one, other = random_plans(programs["rnnlm"], 2)
    made = isolated.timelines([one, other, one], 2)
    assert 0 <= made.load <= 1
    if compiler() is not None:
        assert [len(runs) for runs in made.runs] == [2, 2, 2]
        for plan, runs in zip((one, other, one), made.runs, strict=True):
            assert all(run.device.tolist() == plan.placement.tolist() for run in runs)
        assert all(mine.makespan_us == same.makespan_us > 0 for mine, same in zip(*made.runs[::2], strict=True))


def test_the_process_that_asks_for_costs_runs_nothing() -> None:
    """`fragile:step` notes the thread that runs it first, and does harm on any other."""
    program = capture(fragile.step())
    costs = storages(program)
    assert fragile._first == 0 and costs.made_by.tolist() == [1, 2, 3, 4, 5, 6]


def test_no_plan_for_this_program_or_these_devices(isolated: IsolatedExecutor, programs: dict[str, Program]) -> None:
    with pytest.raises(ValueError, match="places 3 nodes"):
        measure_plans(isolated, [of_nodes(0, 0, 0)])
    elsewhere = Plan(("cpu:7",), np.zeros(programs["rnnlm"].num_nodes, np.int64))
    with pytest.raises(ValueError, match="uses device 'cpu:7'"):
        measure_plans(isolated, [elsewhere])
    assert isolated.num_started == 1, "a refusal costs no child"


@pytest.mark.e2e
@pytest.mark.slow
def test_a_program_that_changed_meanwhile_is_no_outcome(programs: dict[str, Program], tmp_path: Path) -> None:
    directory = tmp_path / "program"
    programs["rnnlm"].save(directory)

    def replace_program() -> tuple[float, float]:
        if isolated.num_started == isolated.next_child:
            shutil.rmtree(directory)
            programs["inception"].save(directory)
            isolated._stop()
        return 0.0, 0.0

    gate = LoadGate(interval_s=0.0, read=replace_program)
    with (
        IsolatedExecutor(directory, pair(separate_memory=False)) as isolated,
        pytest.raises(ValueError, match="another one than at the start"),
    ):
        measure_plans(isolated, random_plans(programs["rnnlm"], 2), repetitions=1, gate=gate)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
def test_whatever_a_plan_does_is_its_outcome(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nodes of `fragile:step`: x, mark, crash, hang, fail, grow, lie; from the third on they harm on another thread."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    plans = {
        "runs": of_nodes(0, 0, 0, 0, 0, 0, 0),
        "crashes": of_nodes(0, 0, 1, 0, 0, 0, 0),
        "hangs": of_nodes(0, 0, 0, 1, 0, 0, 0),
        "raises": of_nodes(0, 0, 0, 0, 1, 0, 0),
        "grows": of_nodes(0, 0, 0, 0, 0, 1, 0),
        "lies": of_nodes(0, 0, 0, 0, 0, 0, 1),
        "runs too": of_nodes(1, 1, 1, 1, 1, 1, 1),
    }
    devices = [Device(name, "cpu", (), 1, "host", "test", memory_limit=2**24) for name in HERE]
    with IsolatedExecutor("fragile:step", devices, time_limit_s=3) as isolated:
        found = dict(zip(plans, measure_plans(isolated, list(plans.values()), repetitions=2), strict=True))
    reasons = {name: each.reason for name, each in found.items()}
    assert reasons.pop("runs") == reasons.pop("runs too") == ""
    assert reasons.pop("crashes").startswith("crashed: signal 11 (")
    assert reasons.pop("hangs") == "timed out after 3 s"
    assert reasons.pop("raises") == "node 4 failed on cpu:1: RuntimeError: not on this thread"
    assert reasons.pop("grows").startswith("out of memory: ")
    assert reasons.pop("lies") == "wrong outputs: output 0 is off by 1, allowed 0.001"
    assert not reasons
    assert [each.outcome for each in found.values()] == ["ok", *["failed"] * 5, "ok"]
    assert found["runs"].repetitions == found["runs too"].repetitions == 2
    assert isolated.num_started == 5, "a fresh child after each but the limit on values, which harms nobody"


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
def test_a_limit_holds_for_plans_and_not_for_the_profile() -> None:
    """x -> a value of 4 MiB -> its sum."""
    program = capture(Step("large", lambda x: x.expand(64, 2**14).contiguous().sum(), (torch.ones(2**14),)))
    plan, limit = Plan(HERE, np.zeros(program.num_nodes, np.int64)), 2**21
    with NativeExecutor(program, pair(separate_memory=False)) as native:
        runner = Runner(native, reference(program, native.devices), limit)
        for _ in range(2):
            with pytest.raises(ExecutionError, match="out of memory: 4194304 bytes, limit 2097152"):
                runner.check(plan)
            assert runner.costs(1).times_us.max() > 0


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_a_child_does_not_outlive_its_parent(saved: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from gst.machine.devices import Device\n"
        "from gst.execution.isolated import IsolatedExecutor\n"
        f"with IsolatedExecutor(Path({str(saved)!r}), [Device('cpu:0', 'cpu', (), 1, 'host', 'test')]) as isolated:\n"
        "    print(isolated._child.process.pid, flush=True); time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=TESTS.parent) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(child)
