"""NeuSight reproduction: roofs and losses of the model, machines left out, and the command on a made dataset."""

from __future__ import annotations

import json
from pathlib import Path

import neusight_made
import numpy as np
import pytest

from experiments.reproductions.neusight.__main__ import main
from experiments.reproductions.neusight.compare import compare
from experiments.reproductions.neusight.dataset import Dataset, read_neusight
from experiments.reproductions.neusight.left_out import errors_left_out
from experiments.reproductions.neusight.model import Model, Settings, backward_ratios
from experiments.reproductions.neusight.network import Networks, Training
from experiments.reproductions.neusight.operators import Operators, operators_of

H100, L4, V100 = "NVIDIA_H100_80GB_HBM3", "NVIDIA_L4", "Tesla_V100-PCIE-32GB"
PLAIN, FULL = Settings("none", has_lanes=False, steps=12), Settings(steps=12)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return neusight_made.write(tmp_path / "made")


@pytest.fixture
def dataset(data: Path) -> Dataset:
    return read_neusight(data)


def rows(dataset: Dataset, *names: str) -> Operators:
    return operators_of([each for each in dataset.cases if each.machine in names], dataset.machines)


def test_operators_add_up_and_take_twice_their_roofline(dataset: Dataset) -> None:
    operators = operators_of(dataset.cases, dataset.machines)
    np.testing.assert_allclose(operators.whole(operators.forward_ms), operators.whole_ms)
    assert operators.operators_count().all() and operators.whole_counts().all() and len(operators.case) == 8 * 4
    slower = operators.flops_ms > operators.bytes_ms
    np.testing.assert_allclose(operators.forward_ms[slower], 2 * operators.flops_ms[slower])


def test_disturbed_measurements_do_not_count(dataset: Dataset) -> None:
    operators = rows(dataset, V100)
    slow = operators._replace(forward_ms=1.2 * operators.forward_ms)
    assert not slow.operators_count().any() and slow.whole_counts().all()
    disturbed = operators._replace(whole_ms=2 * operators.whole_ms)
    assert disturbed.operators_count().all() and not disturbed.whole_counts().any()


def test_half_efficiency_of_other_machines_is_learnt(dataset: Dataset) -> None:
    judged = rows(dataset, H100)
    times = Model(rows(dataset, L4, V100, "Tesla_T4"), Settings("none", has_lanes=False)).predict(judged)
    assert np.abs(judged.whole(times) / judged.whole_ms - 1).max() < 0.15


def test_fewer_watts_never_make_a_product_faster_and_slow_no_other_operation(dataset: Dataset) -> None:
    judged = rows(dataset, H100)  # an L4 has as many lanes, the same process, a tenth of the power
    throttled = judged._replace(machines=(L4,) * len(judged.machines))
    product = judged.family < 2
    model = Model(rows(dataset, V100, "Tesla_T4"), FULL)
    fast, slow = model.predict(judged), model.predict(throttled)
    assert (slow[product] > 1.5 * fast[product]).all()
    np.testing.assert_array_equal(slow[~product], fast[~product])
    plain = Model(rows(dataset, V100, "Tesla_T4"), PLAIN)
    np.testing.assert_array_equal(plain.predict(judged), plain.predict(throttled))


def test_backward_passes_are_multiples_of_forward_passes(dataset: Dataset) -> None:
    operators = rows(dataset, V100)
    assert backward_ratios(operators) == {}
    trained = operators._replace(backward_ms=2 * operators.forward_ms, step_ms=3 * operators.whole_ms)
    assert backward_ratios(trained) == pytest.approx({"Embedding": 2, "Linear": 2, "add": 2})


def test_a_network_never_beats_the_roofline_and_repeats_its_seed(dataset: Dataset) -> None:
    operators = rows(dataset, L4, V100)
    short = Training(steps=5, members=1)
    one, again, other = (Networks(operators, short, seed).predict(operators) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other) and (one >= operators.roofline_ms() * (1 - 1e-6)).all()


def test_errors_are_of_models_that_saw_no_machine_left_out(dataset: Dataset) -> None:
    groups = {name: (name,) for name in (L4, V100, "Tesla_T4")}
    cases = list(dataset.cases)
    errors = errors_left_out(dataset, cases, groups, H100, [PLAIN])[PLAIN.name()]
    assert set(errors) == {frozenset(), *(frozenset({name}) for name in groups)}
    assert {name: len(each) for name, each in errors[frozenset({V100})].items()} == {L4: 2, "Tesla_T4": 2}
    slower = [each._replace(time_ms=1.3 * each.time_ms) if each.machine in (H100, V100) else each for each in cases]
    again = errors_left_out(dataset, slower, groups, H100, [PLAIN])[PLAIN.name()]
    np.testing.assert_array_equal(again[frozenset({V100})][L4], errors[frozenset({V100})][L4])
    assert not np.array_equal(again[frozenset()][L4], errors[frozenset()][L4])


@pytest.mark.e2e
def test_compare_chooses_without_the_target_and_judges_on_it(data: Path, tmp_path: Path) -> None:
    groups = {name: (name,) for name in (L4, V100)}
    result = compare(read_neusight(data), 1, groups=groups, chosen_from=[PLAIN, FULL], json_path=tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == result
    means = {name: np.mean(list(each.values())) for name, each in result["choice"].items()}
    judged = result["machines"][H100]
    assert judged["chosen"] == min(means, key=means.__getitem__)
    assert judged["rows"]["roofline"]["mean"] == pytest.approx(50, abs=1e-6)
    assert judged["rows"]["measured operators added up (no prediction)"]["mean"] == pytest.approx(0, abs=1e-6)
    low, high = judged["interval_percent"]
    errors = 100 * (np.array(judged["measured_ms"]) / judged["predicted_ms"] - 1)
    assert judged["in_interval"] == 100 * ((low <= errors) & (errors <= high)).mean()


def test_bad_data_is_one_line(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = ["--data", str(data)]
    for arguments in (["--data", str(tmp_path / "nothing")], [*made, "--seeds", "0"], made):
        with pytest.raises(SystemExit, match="1"):
            main(["compare", *arguments])
        error = capsys.readouterr().err
        assert error.startswith("neusight: ") and error.count("\n") == 1
