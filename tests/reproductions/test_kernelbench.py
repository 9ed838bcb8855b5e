"""KernelBench: timings of programs both ways, their kernels, what is faster, and the command."""

import json
import math

import numpy as np
import pytest

from experiments.reproductions.kernelbench.__main__ import main
from experiments.reproductions.kernelbench.compare import compare, gain_of, interval_of_right, rows_of, scores, trees
from experiments.reproductions.kernelbench.programs import read_programs
from experiments.reproductions.kernelbench.timings import Timing, read_timings

PROGRAM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x, scale):
        x = self.linear(x) if width > 64 else x
        for _ in range(steps):
            x = torch.relu(x * scale)
        return x

width, steps = {width}, {steps}

def get_inputs():
    return [torch.rand(1024, width), 2.0]

def get_init_inputs():
    return [width]
"""


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A checkout of 24 programs, 12 of them chains, which compiling makes twice as fast, and timings of two hosts."""
    room = tmp_path_factory.mktemp("kernelbench")
    (room / "KernelBench" / "level1").mkdir(parents=True)
    times = {False: {}, True: {}}
    for number in range(24):
        is_chain = number % 2 == 0
        name = f"{number}_made.py"
        text = PROGRAM.format(width=64 if is_chain else 512 + 8 * number, steps=8 + number // 2 if is_chain else 1)
        (room / "KernelBench" / "level1" / name).write_text(text)
        times[False][name] = {"mean": 2.0}
        times[True][name] = {"mean": 1.0 if is_chain else 3.0}
    for host in ("H100_Modal", "H100_PCIe_LambdaLabs"):
        (room / "timing" / host).mkdir(parents=True)
        for is_compiled, suffix in ((False, ""), (True, "_compile_inductor_default")):
            file = room / "timing" / host / f"baseline_time_torch{suffix}.json"
            file.write_text(json.dumps({"level1": times[is_compiled]}))
    return room


@pytest.fixture(scope="module")
def programs(room):
    programs, missing = read_programs(room, sorted({each.program for each in read_timings(room / "timing")}))
    assert not missing
    return programs


def test_timings_of_both_ways_are_joined(room):
    timings = read_timings(room / "timing")
    assert len(timings) == 48
    assert timings[0] == Timing("H100_Modal", "level1/0_made.py", 2.0, 1.0)


def test_compiling_merges_the_kernels_of_a_chain(programs):
    chain = programs["level1/0_made.py"]
    assert len(chain.compiled.kind) == 1 < len(chain.eager.kind) == 16


def test_what_is_faster_is_learned_from_other_programs(room, programs):
    timings = read_timings(room / "timing")
    rows = rows_of(timings, programs)
    assert np.array_equal(trees(rows, 0) > 0, gain_of(timings) > 0)
    swapped = rows._replace(timings=[each._replace(eager=each.compiled, compiled=each.eager) for each in timings])
    assert np.array_equal(trees(swapped, 0) < 0, gain_of(timings) > 0)


def test_methods_and_controls(room, programs):
    few = {name: programs[name] for name in list(programs)[:20]}  # the others count as compiled
    result = compare(read_timings(room / "timing"), few, seeds=1)
    methods = {name: each["H100_Modal"] for name, each in result["methods"].items()}
    assert methods["always compiled"]["right"] == methods["always eager"]["right"] == 50
    assert methods["always compiled"]["right_where_eager_is_faster"] == 0
    assert methods["measured on the other host (no prediction)"] == {
        "right": 100, "right_where_eager_is_faster": 100, "longer": 0, "interval_of_right": [100, 100],
    }  # fmt: skip
    assert 80 <= methods["trees over kernels"]["right"] < 100
    assert result["captured"] == 20
    low, high = methods["always eager"]["interval_of_right"]
    assert 20 < low < 50 < high < 80
    eager = result["step_time"]["H100_Modal"]["eager"]
    assert 0 <= eager["coverage"] <= 100 and eager["levels"] == {
        "level1": {key: value for key, value in eager.items() if key != "levels"}
    }


def test_small_differences_do_not_count():
    timings = [Timing("host", "a", 1.0, 1.05), Timing("host", "b", 2.0, 1.0)]
    result = scores(timings, np.array([True, True]))
    assert result["right"] == 100
    assert math.isnan(result["right_where_eager_is_faster"])
    assert result["longer"] == pytest.approx(100 * (math.sqrt(1.05) - 1), abs=0.1)
    assert interval_of_right(timings, [np.array([False, True])]) == (100, 100)
    assert all(math.isnan(each) for each in interval_of_right(timings[:1], [np.array([True])]))


def test_the_command(room, tmp_path, capsys):
    options = ["compare", "--data", str(room / "timing"), "--programs", str(room), "--seeds", "1"]
    main([*options, "--json", str(tmp_path / "scores.json")])
    result = json.loads((tmp_path / "scores.json").read_text())
    assert result["methods"]["trees over kernels"]["H100_Modal"]["right"] == 100
    assert "trees over kernels" in capsys.readouterr().out


@pytest.mark.parametrize("change, reason", [
    ({"level1": {"a.py": {"mean": "fast"}}}, "mean of level1/a.py is 'fast'"), ([1], "want programs by level"),
    ({}, "no program that was timed eager and compiled"),
])  # fmt: skip
def test_bad_timings_are_named(tmp_path, change, reason):
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "baseline_time_torch.json").write_text(json.dumps(change))
    with pytest.raises(ValueError, match=reason):
        read_timings(tmp_path)


def test_programs_that_cannot_be_captured_are_named(room, tmp_path, capsys):
    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "0_made.py").write_text("raise OSError('no model here')")
    with pytest.raises(SystemExit):
        main(["compare", "--data", str(room / "timing"), "--programs", str(tmp_path)])
    assert "no model here" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["compare", "--data", str(room / "timing"), "--programs", str(tmp_path / "level1")])
    assert "give a checkout of KernelBench" in capsys.readouterr().err
