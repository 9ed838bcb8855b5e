"""The benchmark of annealing by windows, on a task that just has them."""

import pytest

from experiments.bench.windows import TIMES, run


def test_whole_plans_have_more_time_and_all_variants_the_same_start() -> None:
    result = run(1_000, devices=(2,), budget=20)
    row = result["tasks"][0]
    assert row["num_nodes"] >= 1_000 and row["num_devices"] == 2
    assert row["whole_s"] >= TIMES * row["windows_s"] > 0 and row["whole_plans"] >= 20
    assert max(row["windows_ms"], row["whole_ms"]) <= min(row["heft_ms"], row["etf_ms"])
    assert result["geomean"]["heft_over_windows"] == pytest.approx(row["heft_ms"] / row["windows_ms"])


def test_tasks_without_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="500 operations; windows are annealed from 1000 on"):
        run(500)
