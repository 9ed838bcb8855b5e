"""HLSyn reproduction: times composed by hand, laws of splits and trees, and the commands end to end."""

from __future__ import annotations

import json
from pathlib import Path

import hlsyn_made
import numpy as np
import pytest

from experiments.reproductions.hlsyn import importance, relatives
from experiments.reproductions.hlsyn.__main__ import CHECKPOINT, main
from experiments.reproductions.hlsyn.cycles.cycles import estimate, facts
from experiments.reproductions.hlsyn.cycles.resources import resources
from experiments.reproductions.hlsyn.designs import Designs, Estimates, designs_of
from experiments.reproductions.hlsyn.model import Settings, load, save, scores, train
from experiments.reproductions.hlsyn.outcomes import outcome_scores, outcomes_of, roc_area, target_of, train_outcomes
from experiments.reproductions.hlsyn.relatives import adapt, relatives_of, width_of_own
from experiments.reproductions.hlsyn.source import canonical, parse_kernel, read_kernels
from experiments.reproductions.hlsyn.splits import by_group, few_labels
from experiments.reproductions.trees import train_trees

COPY = """
void f(double a[64], double b[64]) {
#pragma ACCEL PARALLEL FACTOR=auto{__PARA__L0}
  for (int i = 0; i < 64; i++) { b[i] = a[i]; }
}"""
NEST = """
void f(double a[16][64], double b[16][64]) {
#pragma ACCEL PARALLEL FACTOR=auto{__PARA__L0}
  for (int i = 0; i < 16; i++) {
#pragma ACCEL PARALLEL FACTOR=auto{__PARA__L1}
    for (int j = 0; j < 64; j++) { b[i][j] = a[i][j]; }
  }
}"""
SUM = """
void f(double a[64], double s[1]) {
#pragma ACCEL PARALLEL FACTOR=auto{__PARA__L0}
  for (int i = 0; i < 64; i++) { s[0] += a[i]; }
}"""


def loop_cycles(source: str, tool: str = "v20", **point: int) -> float:
    """Analytical cycles without the time to load and store arrays."""
    kernel = parse_kernel(source)
    loaded = sum(count * kernel.bytes_of[name] for name, count in kernel.arrays.items()) / 64 + 100
    return estimate(kernel, {f"__PARA__{place}": factor for place, factor in point.items()}, tool).cycles - loaded


def test_a_pipelined_loop_takes_its_interval_for_each_iteration_but_one() -> None:
    depth = loop_cycles(COPY) - 63
    assert 0 < depth < 20  # an iteration itself
    assert loop_cycles(COPY, L0=4) == 15 + depth


def test_loops_around_multiply() -> None:
    inner = loop_cycles(COPY)
    outer = loop_cycles(NEST)
    assert 16 * inner <= outer <= 16 * (inner + 10)
    assert loop_cycles(NEST, L0=4) == outer / 4


def test_a_sum_waits_for_the_addition_before() -> None:
    slow, fast = loop_cycles(SUM, "v18"), loop_cycles(SUM, "v20")
    assert 63 * 14 <= slow <= 64 * 16 + 40 and 63 * 7 <= fast <= 64 * 9 + 40


MATRIX = """
void f(double a[16][16], double b[16][16], double c[16][16]) {
#pragma ACCEL PARALLEL FACTOR=auto{__PARA__L0}
  for (int i = 0; i < 16; i++) {
#pragma ACCEL TILE FACTOR=auto{__TILE__L1}
#pragma ACCEL PARALLEL FACTOR=auto{__PARA__L1}
    for (int j = 0; j < 16; j++) {
      double sum = 0.0;
#pragma ACCEL PARALLEL reduction=sum FACTOR=auto{__PARA__L2}
      for (int k = 0; k < 16; k++) { sum += a[i][k] * b[k][j]; }
      c[i][j] = sum;
    }
  }
}"""
SERIAL = """
void f(double a[16][16]) {
#pragma ACCEL PARALLEL FACTOR=auto{__PARA__L0}
  for (int i = 1; i < 16; i++) {
    for (int j = 0; j < 16; j++) { a[i][j] = a[i - 1][j]; }
  }
}"""


def test_copies_of_a_loop_whose_iterations_wait_for_each_other_do_not_help() -> None:
    assert loop_cycles(SERIAL, L0=5) == loop_cycles(SERIAL)
    assert loop_cycles(SERIAL.replace("a[i - 1][j]", "0.0"), L0=5) < loop_cycles(SERIAL) / 4


def test_inner_copies_bring_what_they_touch_each_time() -> None:
    alone, copied = loop_cycles(MATRIX), loop_cycles(MATRIX, L1=2)
    box = 15 * 16 + 2  # of b for two columns; a row of a; c is written, so twice
    assert copied == pytest.approx(alone + 16 * 8 * (box + 16 + 2 * 2), rel=1e-6)


def test_a_sum_that_every_iteration_begins_anew_binds_only_the_inner_loop() -> None:
    kernel = parse_kernel(MATRIX)
    outer, middle, inner = facts(kernel).values()
    assert [each.is_scalar for each in inner.recurrences] == [True] and not middle.recurrences + outer.recurrences
    bare = parse_kernel(MATRIX.replace("reduction=sum", "reduction"))
    assert not list(facts(bare).values())[2].recurrences[0].is_named


def test_a_loop_of_unknown_length_is_not_flattened() -> None:
    source = MATRIX.replace("k = 0; k < 16", "k = i; k < 16")
    kernel = parse_kernel(source.replace("PARALLEL FACTOR=auto{__PARA__L0}", "PIPELINE auto{__PIPE__L0}"))
    assert canonical(kernel, {"__PIPE__L0": "flatten"}) == canonical(kernel, {"__PIPE__L0": "off"})


def test_groups_stay_together_and_few_labels_are_few() -> None:
    groups = [str(number % 7) for number in range(70)]
    folds = by_group(groups, 3, 0)
    assert all(len(set(folds[[each == group for each in groups]])) == 1 for group in set(groups))
    programs, twins = np.repeat([0, 1], 50), np.arange(100) // 2
    chosen = few_labels(programs, twins, 20, 0)
    assert [chosen[programs == each].sum() for each in (0, 1)] == [20, 20]
    assert len(set(twins[chosen])) == 40


def test_kept_trees_predict_what_scikit_learn_predicts() -> None:
    from sklearn.ensemble import HistGradientBoostingRegressor

    rng = np.random.default_rng(0)
    columns = rng.normal(size=(600, 5)).astype(np.float32)
    target = columns[:, 0] * 2 + np.sin(3 * columns[:, 1])
    theirs = HistGradientBoostingRegressor(
        max_iter=150, learning_rate=0.06, max_leaf_nodes=12, min_samples_leaf=60, l2_regularization=5.0, random_state=0
    ).fit(columns.astype(np.float64), target, sample_weight=np.ones(600))
    found = train_trees(columns, target, np.ones(600), 0).predict(columns)
    np.testing.assert_allclose(found, theirs.predict(columns.astype(np.float64)), rtol=1e-6, atol=1e-6)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return hlsyn_made.write(tmp_path / "made")


def test_a_model_is_what_was_saved(data: Path, tmp_path: Path) -> None:
    designs = designs_of(read_kernels(data))
    assert len(designs) == 72 and len(set(designs.twins)) < 72
    model = train(designs, Settings(1, 2, 8), 0, calibrated=False)
    save(model, tmp_path / "model.pt")
    again = load(tmp_path / "model.pt")
    for one, other in zip(model.predict(designs), again.predict(designs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    (tmp_path / "model.pt").write_bytes(b"no checkpoint")
    with pytest.raises(ValueError, match="no checkpoint of this reproduction"):
        load(tmp_path / "model.pt")


def test_scores_by_hand(data: Path) -> None:
    designs = designs_of(read_kernels(data))
    perfect = scores(designs, designs.log_cycles, np.zeros(len(designs)))
    assert (perfect["rmse"], perfect["tau"], perfect["coverage"]) == (0.0, pytest.approx(1.0), 1.0)
    off = scores(designs, -designs.log_cycles, np.full(len(designs), 1e-9))
    assert off["tau"] == pytest.approx(-1.0) and off["coverage"] == 0.0


def test_evaluate_scores_programs_with_the_shipped_weights(data: Path, tmp_path: Path) -> None:
    main(["evaluate", "--data", str(data), "--json", str(tmp_path / "scores.json")])
    result = json.loads((tmp_path / "scores.json").read_text())
    assert set(result) == {"rmse", "tau", "coverage", "programs", "validity", "resources"}
    assert set(result["programs"]) == {"v18/rows", "v20/rows"}
    assert set(result["resources"]) == {"BRAM", "DSP", "LUT", "FF"} and 0 <= result["validity"]["brier"] <= 1
    assert all(set(each) == {"rmse", "tau", "coverage"} for each in result["programs"].values())
    assert CHECKPOINT.stat().st_size < 1 << 20


def test_a_kernel_that_cannot_be_read_leaves_the_others_their_scores(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = next(data.rglob("*_kernel.c"))
    designs = next(data.rglob("designs/v18/*.json"))
    (source.parent / "odd_kernel.c").write_text("void f(double a[8]) {")
    (designs.parent / "odd.json").write_text(designs.read_text())
    (source.parent / "slow_kernel.c").write_text(source.read_text())
    failed = {key: each | {"perf": 0.0, "valid": False} for key, each in json.loads(designs.read_text()).items()}
    (designs.parent / "slow.json").write_text(json.dumps(failed))
    main(["evaluate", "--data", str(data), "--json", str(tmp_path / "scores.json")])
    result = json.loads((tmp_path / "scores.json").read_text())
    assert set(result["programs"]) == {"v18/rows", "v20/rows"} and "odd_kernel.c" in result["unread"]["v18/odd"]
    assert "none of its designs is valid" in result["unread"]["v18/slow"] and result["validity"]["designs"] == 3 * 38
    assert "v18/odd is left out" in capsys.readouterr().err


def test_labels_of_a_program_and_its_versions_correct_the_model(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relatives, "FEWEST", 5)
    designs = designs_of(read_kernels(data))
    base = designs.program[:, 0] + 2.0
    given = few_labels(designs.group, designs.twins, 10, 0)
    wrong, right = (scores(designs, each)["rmse"] for each in (base, adapt(designs, base, given)))
    assert right < wrong / 2
    old, new = (designs.where(designs.group == each) for each in (0, 1))
    width = np.ones(36)
    blended, unchanged = relatives_of(old).blend(new, new.program[:, 0] + 2.0, width)
    assert not np.allclose(blended, new.program[:, 0] + 2.0)
    np.testing.assert_array_equal(unchanged, width)
    stranger = Designs(*new[:-1], ("other", "other"))
    np.testing.assert_array_equal(relatives_of(old).blend(stranger, base[:36], width)[0], base[:36])


def test_designs_of_a_known_program_are_predicted_as_they_were(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relatives, "FEWEST", 5)
    designs = designs_of(read_kernels(data))
    mean, width = relatives_of(designs, 2.0).blend(designs, np.zeros(len(designs)), np.full(len(designs), np.nan))
    assert scores(designs, mean)["rmse"] < 0.05
    np.testing.assert_allclose(width, 2.0 * relatives.LEAST_SPREAD, rtol=0.5)
    assert 0.5 < width_of_own(designs, 0.9, 0) < 1e3


def test_labels_and_relatives_together_are_better_than_labels(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relatives, "FEWEST", 5)
    designs = designs_of(read_kernels(data))
    old, new = (designs.where(designs.group == each) for each in (0, 1))
    base, given = new.program[:, 0] + 2.0, few_labels(new.group, new.twins, 4, 0)
    alone, helped = (scores(new, adapt(new, base, given, 0, each))["rmse"] for each in (None, relatives_of(old)))
    assert helped < alone


def test_outcomes_are_learned_saved_and_scored(data: Path, tmp_path: Path) -> None:
    kernels = read_kernels(data)
    outcomes, designs = outcomes_of(kernels), designs_of(kernels)
    assert len(outcomes) == 76 and outcomes.is_valid.sum() == 72 and np.isnan(outcomes.usage).any(1).sum() == 2
    trained = train(designs, Settings(1, 1, 8), 0, calibrated=False)._replace(outcomes=train_outcomes(outcomes, 0))
    save(trained, tmp_path / "model.pt")
    again = load(tmp_path / "model.pt")
    assert trained.outcomes is not None and again.outcomes is not None
    for one, other in zip(trained.outcomes.predict(outcomes), again.outcomes.predict(outcomes), strict=True):
        np.testing.assert_array_equal(one, other)
    perfect = outcome_scores(outcomes, outcomes.is_valid.astype(float), np.nan_to_num(target_of(outcomes)))
    assert perfect["validity"]["auc"] == perfect["validity"]["balanced_accuracy"] == 1.0
    assert perfect["validity"]["brier"] == perfect["resources"]["DSP"]["rmse"] == 0.0
    alike = outcome_scores(outcomes.where(outcomes.is_valid), np.ones(72), np.zeros((72, 4)))
    assert alike["validity"]["auc"] is None and alike["validity"]["balanced_accuracy"] is None


def test_the_area_under_the_curve_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    truth, score = rng.random(200) < 0.3, rng.integers(0, 20, 200) / 20
    assert roc_area(truth, score) == pytest.approx(roc_auc_score(truth, score))


def test_estimates_without_a_part_lack_that_part() -> None:
    def cycles(estimates: Estimates, source: str, **point: int | str) -> float:
        kernel = parse_kernel(source)
        return estimates(kernel, {f"__{key}": value for key, value in point.items()}, "v20", facts(kernel)).cycles

    total = {"PARA__L0": 1}
    assert cycles(importance.without_recurrences, SUM, **total) < cycles(estimate, SUM, **total) / 3
    copied = {"PARA__L1": 2}
    assert cycles(importance.without_transfers, MATRIX, **copied) < cycles(estimate, MATRIX, **copied) / 1.8
    flattened = NEST.replace("PARALLEL FACTOR=auto{__PARA__L0}", "PIPELINE auto{__PIPE__L0}")
    whole, written = (
        [cycles(each, flattened, PIPE__L0=mode) for mode in ("off", "flatten")]
        for each in (estimate, importance.without_canonical_pragmas)
    )
    assert whole[1] < whole[0] / 3 and written[0] == written[1]


def dsp(source: str, **point: int) -> int:
    """Blocks of arithmetic that the analytical estimate counts."""
    factors = {f"__PARA__{place}": factor for place, factor in point.items()}
    return round(6840 * resources(parse_kernel(source), factors, "v20").used["DSP"])


def test_copies_have_operators_each_and_iterations_that_wait_share_them() -> None:
    product = COPY.replace("a[i];", "a[i] * 2.0;")
    assert [dsp(product, L0=copies) for copies in (1, 4, 64)] == [11, 44, 0]  # no loop remains around the last
    nest = NEST.replace("a[i][j];", "a[i][j] * 2.0;")
    assert [dsp(nest, L0=outer, L1=inner) for outer, inner in ((1, 1), (4, 1), (4, 8))] == [11, 44, 352]
    chain = COPY.replace("i = 0; i < 64", "i = 1; i < 64").replace("a[i];", "b[i - 1] * 2.0 * 3.0 * 4.0;")
    assert dsp(chain) == 11  # three products, one after the other


def test_arrays_lie_in_as_many_banks_as_copies_touch() -> None:
    bram = [resources(parse_kernel(COPY), {"__PARA__L0": copies}, "v20").used["BRAM"] * 4320 for copies in (1, 8, 32)]
    assert np.round(bram).tolist() == [2, 16, 64]


def test_bad_data_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"):
        main(["evaluate", "--data", str(tmp_path / "nothing")])
    assert capsys.readouterr().err.startswith("hlsyn: ")
