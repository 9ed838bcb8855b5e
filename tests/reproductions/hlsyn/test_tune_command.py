"""`tune`: laws of its searches, the command as a user types it, and one line for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import hlsyn_made
import numpy as np
import pytest

from experiments.reproductions.hlsyn.__main__ import main
from experiments.reproductions.hlsyn.cycles import METHODS, Candidates, candidates_of, regrets, search, train_prior
from experiments.reproductions.hlsyn.source import read_kernels


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two families: `rows`, and the same kernel under another name; four copies of the outer loop do not fit."""
    folder = hlsyn_made.write(tmp_path / "made")
    for path in (folder / "data").rglob("rows*.json"):
        records = json.loads(path.read_text())
        for each in records.values():
            each["valid"] &= each["point"]["__PARA__L0"] != 4
        path.write_text(json.dumps(records))
    for each in sorted((folder / "data").rglob("rows*")):
        each.with_name(each.name.replace("rows", "other")).write_bytes(each.read_bytes())
    return folder


def table(count: int, valid: float) -> Candidates:
    """Designs whose cycles fall with their first pragma."""
    rng = np.random.default_rng(0)
    pragmas = rng.integers(0, 6, (count, 4)).astype(np.float32)
    log_cycles = 20.0 - pragmas[:, 0] - 0.3 * pragmas[:, 1] + rng.normal(0, 0.05, count)
    log_cycles[rng.random(count) > valid] = np.nan
    columns = np.concatenate([np.full((count, 1), 18), pragmas], 1).astype(np.float32)
    return Candidates("v20/made", ({},) * count, pragmas, columns, log_cycles)


def test_alike_designs_are_one_candidate(data: Path) -> None:
    kernel = read_kernels(data)[0]
    designs = candidates_of(kernel)
    assert designs.num_designs < len(kernel.designs) and np.nanmin(designs.log_cycles) == min(
        np.log2(each.cycles) for each in kernel.designs if each.is_valid
    )
    assert candidates_of(kernel, most=5).num_designs == 5


@pytest.mark.parametrize("method", METHODS)
def test_a_search_synthesises_each_design_once_and_no_more_than_its_budget(method: str) -> None:
    designs = table(40, 0.6)
    prior = train_prior([table(200, 0.5)])
    order = search(designs, method, 23, 0, prior)
    assert len(order) == 23 == len(set(order.tolist())) and order.max() < 40
    whole = search(designs, method, 1000, 0, prior)
    assert sorted(whole) == list(range(40)) and regrets(designs, whole, (1000,))[1000] == 0


@pytest.mark.parametrize("method", ["model", "boosting"])
def test_a_search_sees_only_what_it_has_synthesised(method: str) -> None:
    designs = table(80, 0.6)
    prior = train_prior([table(200, 0.5)])
    order = search(designs, method, 30, 0, prior)
    later = np.setdiff1d(np.arange(80), order)
    other = designs.log_cycles.copy()
    other[later] = np.random.default_rng(1).permutation(np.append(other[later[1:]], 1.0))
    np.testing.assert_array_equal(order, search(designs._replace(log_cycles=other), method, 30, 0, prior))


def test_a_model_that_has_seen_the_like_begins_with_the_fast() -> None:
    designs = table(300, 0.9)
    prior = train_prior([table(300, 0.9)])
    mine, chance = (regrets(designs, search(designs, name, 10, 3, prior), (10,))[10] for name in ("model", "random"))
    assert mine < 0.2 < chance


def test_tune_prints_regrets_and_writes_them(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["tune", "rows", "--data", str(data), "--budget", "12", "--json", str(tmp_path / "tune.json")])
    printed = capsys.readouterr().out
    result = json.loads((tmp_path / "tune.json").read_text())
    assert result["kernel"] == "v20/rows" and result["learned_from"] == 2 and set(result["methods"]) == set(METHODS)
    assert all(set(each["regret"]) == {"12"} and each["regret"]["12"] >= 0 for each in result["methods"].values())
    assert all(f"\n{name}" in printed for name in METHODS) and "the model's best design: __PARA__L0=" in printed
    main(["tune", "list", "--data", str(data)])
    assert "rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "has no kernel 'nothing' of v20; there are other, rows"),
        (["rows", "--budget", "0"], "want numbers from 1"),
        (["rows", "--data", "/nowhere/hlsyn.tar.xz"], "/nowhere/hlsyn.tar.xz"),
    ],
)
def test_bad_input_is_one_line(data: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["tune", "--data", str(data), *words])
    error = capsys.readouterr().err
    assert stop.value.code == 1
    assert message in error and error.count("\n") == 1


def test_one_family_has_none_to_learn_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tune", "rows", "--data", str(hlsyn_made.write(tmp_path))])
    assert "the model learns from others" in capsys.readouterr().err
