"""A trace holds what happened, no more and no less, in the format that Chrome and Perfetto read."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.bench.timeline import chrome_trace, draw
from gst.lowering.plan import Timeline
from gst.programs import Program
from gst.programs.features import KINDS, kind_of
from tests.made_devices import pair
from tests.programs.small import small_program


@pytest.fixture(scope="module")
def two() -> dict[str, Program]:
    """Without capturing every workload: a recurrent one and one with convolutions."""
    return {name: small_program(name) for name in ("rnnlm", "inception")}


def made(program: Program) -> tuple[Timeline, Timeline]:
    """One operation a microsecond on two devices in turns, and the same at half the speed on the first alone."""
    nodes = program.num_nodes
    computed = np.array([each.kind == "operation" for each in program.operations])
    begin = np.where(computed, np.cumsum(computed) - 1.0, 0.0)
    none = np.zeros(nodes, np.int64)
    timeline = Timeline(np.arange(nodes) % 2, begin, begin + computed, none, none, 0)
    return timeline, Timeline(none, 2 * begin, 2 * (begin + computed))


@pytest.mark.parametrize("name", ["rnnlm", "inception"])
def test_every_operation_of_every_run_is_one_event(two: dict[str, Program], name: str) -> None:
    program = two[name]
    timeline, simulation = made(program)
    devices = pair(separate_memory=False)
    trace = chrome_trace(program, devices, {"executed": timeline, "simulated": simulation})
    events = json.loads(json.dumps(trace, allow_nan=False))["traceEvents"]
    operations = [n for n, each in enumerate(program.operations) if each.kind == "operation"]
    for process, run in enumerate((timeline, simulation)):
        mine = [each for each in events if each["ph"] == "X" and each["pid"] == process]
        assert [each["args"]["node"] for each in mine] == operations
        for each in mine:
            node = each["args"]["node"]
            assert each["name"] == program.operations[node].name and each["cat"] in KINDS
            assert (each["ts"], each["ts"] + each["dur"]) == (run.begin_us[node], run.end_us[node])
            assert each["tid"] == run.device[node]
            producers = [program.operations[producer].name for producer in program.operations[node].producers]
            assert each["args"]["reads"] == producers
        assert max(each["ts"] + each["dur"] for each in mine) == run.end_us.max()
    names = [each["args"]["name"] for each in events if each["ph"] == "M"]
    half = len(operations) / 1e3
    assert names == [f"executed, {half:.2f} ms", "cpu:0", "cpu:1", f"simulated, {2 * half:.2f} ms", "cpu:0", "cpu:1"]


def test_operations_are_told_apart(two: dict[str, Program]) -> None:
    kinds = {
        each.name.rstrip("0123456789").rstrip("_"): kind_of(each)
        for program in two.values() for each in program.operations if each.kind == "operation"
    }  # fmt: skip
    expected = {
        "mm": "matrix product", "addmm": "matrix product", "convolution": "convolution",
        "convolution_backward": "convolution", "mul": "element-wise", "tanh_backward": "element-wise",
        "sum": "reduction", "_log_softmax": "reduction", "_log_softmax_backward_data": "reduction",
        "view": "view", "getitem": "view", "cat": "other",
    }  # fmt: skip
    there = {name: kind for name, kind in expected.items() if name in kinds}
    assert len(there) >= 9 and {name: kinds[name] for name in there} == there


def test_a_run_of_another_program_is_refused(two: dict[str, Program]) -> None:
    first, second = two.values()
    with pytest.raises(ValueError, match=f"run 'executed' has {first.num_nodes} nodes"):
        chrome_trace(second, pair(False), {"executed": made(first)[0]})


def test_a_picture_is_drawn_of_both_runs(tmp_path: Path, two: dict[str, Program]) -> None:
    timeline, simulation = made(two["inception"])
    out = tmp_path / "docs" / "timeline.png"
    draw(two["inception"], pair(False), {"executed": timeline, "simulated": simulation}, 0.0, out)
    assert out.read_bytes().startswith(b"\x89PNG") and out.stat().st_size > 5000
