"""The model of many processes, against values worked out by hand, and its command."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from experiments.bench.__main__ import main
from experiments.bench.scale import LINKS, Link, Step, step_of, times_ms
from tests.experiments.bench.ran import ran

STEP = Step(compute_ms=100.0, plan_ms=1.0, plan_each_ms=0.25, pull_bytes=8e6, push_bytes=4e6, gradient_bytes=2e6)
RESULT = {
    "step_ms": 110.0, "table_ms": 10.0, "pull_bytes": 4e6, "push_bytes": 2e6, "gradient_bytes": 2e6,
    "planning_ms": {"2": 1.5, "4": 2.0, "8": 3.0},
    "setting": {"processes": 2},
}  # fmt: skip


def test_times_are_as_worked_out_by_hand() -> None:
    """Four processes, 1 ms a message, 10^6 bytes a ms: an exchange of m bytes takes 3 + 0.75 m / 10^6 ms."""
    times = times_ms(STEP, Link(1000.0, 1.0), 4)
    assert times == pytest.approx({"compute": 100, "plan": 2, "table": 3 + 6 + 3 + 3, "gradients": 2 * (3 + 1.5)})
    assert times_ms(STEP, LINKS["10 GbE"], 1) == {"compute": 100, "plan": 0, "table": 0, "gradients": 0}


def test_figures_of_two_processes_are_those_of_the_step() -> None:
    assert asdict(step_of(RESULT)) == pytest.approx(asdict(STEP))
    assert step_of(RESULT, compute_ms=5.0).compute_ms == 5.0
    with pytest.raises(ValueError, match="bench distributed"):
        step_of({"step_ms": 3.0})


def test_scale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = tmp_path / "distributed.json"
    measured.write_text(json.dumps(RESULT))
    arguments = ["scale", "--measured", str(measured), "--link", "wifi:2000:0.01", "--plot", str(tmp_path / "a.svg")]
    assert ran(tmp_path, *arguments)["takes_over"]["wifi"] == 2
    assert "wifi" in capsys.readouterr().out and "<svg" in (tmp_path / "a.svg").read_text()
    measured.write_text("nonsense")
    assert main(arguments) == 2 and "not JSON" in capsys.readouterr().err
