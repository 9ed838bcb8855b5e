"""NeuSight reproduction: efficiencies within their bounds, a time learnt exactly, and the command on a made dataset."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.reproductions.neusight.__main__ import main
from experiments.reproductions.neusight.compare import Candidate, compare
from experiments.reproductions.neusight.model import Model, Settings
from experiments.reproductions.neusight.operators import operators_of
from gst.data.neusight import read_neusight

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import neusight_made


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return neusight_made.write(tmp_path / "made")


def test_operators_add_up_and_take_twice_their_roofline(data: Path) -> None:
    dataset = read_neusight(data)
    operators = operators_of(dataset.cases, dataset.machines)
    np.testing.assert_allclose(operators.whole(operators.measured_ms), operators.whole_ms)
    assert operators.is_consistent.all() and len(operators.case) == 8 * 4
    slower = operators.flops_ms > operators.bytes_ms
    np.testing.assert_allclose(operators.measured_ms[slower], 2 * operators.flops_ms[slower])


def test_a_time_is_never_below_the_roofline_and_half_efficiency_is_learnt(data: Path) -> None:
    dataset = read_neusight(data)
    target = "NVIDIA_H100_80GB_HBM3"
    learnt = operators_of([each for each in dataset.cases if each.machine != target], dataset.machines)
    judged = operators_of([each for each in dataset.cases if each.machine == target], dataset.machines)
    times = Model(learnt, Settings(members=1, decay=0.0), 0).predict(judged)
    assert (times >= judged.roofline_ms() * (1 - 1e-6)).all()
    assert np.abs(judged.whole(times) / judged.whole_ms - 1).max() < 0.15


def test_a_seed_gives_the_same_times_again(data: Path) -> None:
    dataset = read_neusight(data)
    operators = operators_of(dataset.cases, dataset.machines)
    one, again, other = (Model(operators, Settings(steps=5, members=1), seed).predict(operators) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.e2e
def test_compare_chooses_without_the_target_and_judges_on_it(data: Path, tmp_path: Path) -> None:
    quick = Settings(steps=60, members=1)
    choices = [Candidate("wide", ("NVIDIA", "Tesla"), quick._replace(width=8)), Candidate("narrow", ("Tesla",), quick)]
    arguments = {"left_out": [("NVIDIA_L4",), ("Tesla_V100-PCIE-32GB",)], "chosen_from": choices}
    result = compare(read_neusight(data), 2, **arguments, json_path=tmp_path / "result.json")
    assert json.loads((tmp_path / "result.json").read_text()) == result
    assert result["chosen"] == min(result["choice"], key=lambda name: result["choice"][name]["mean"])
    rows = result["machines"]["NVIDIA_H100_80GB_HBM3"]["rows"]
    assert rows["roofline"]["mean"] == pytest.approx(50, abs=1e-6)
    assert rows["measured operators added up (no prediction)"]["mean"] == pytest.approx(0, abs=1e-6)
    assert len(rows["ours"]["seeds"]) == 2 and len(rows["ours"]["cases"]) == 2
    for path in (data / "label/NVIDIA_H100_80GB_HBM3").glob("*.json"):  # what is judged teaches nothing
        path.write_text(json.dumps({**json.loads(path.read_text()), "e2e_latency": 1.0}))
    again = compare(read_neusight(data), 2, **arguments)
    assert again["choice"] == result["choice"]


def test_bad_data_is_one_line(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = ["--data", str(data)]
    for arguments in (["--data", str(tmp_path / "nothing")], [*made, "--seeds", "0"], made):
        with pytest.raises(SystemExit, match="1"):
            main(["compare", *arguments])
        error = capsys.readouterr().err
        assert error.startswith("neusight: ") and error.count("\n") == 1
