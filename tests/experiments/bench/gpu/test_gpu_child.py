"""A workload of `make gpu` on the CPU: what is timed, what is compared, and what is known when it is killed."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from experiments.bench.gpu import child
from gst.execution.on_accelerator import Run, module_on
from gst.programs import Program, Step

CPU = torch.device("cpu")
SMALL_RNNLM = "rnnlm:layers=1,steps=2,hidden=8,vocabulary=20"


def test_what_is_measured_on_an_accelerator_is_measured_on_the_cpu() -> None:
    settings = {"repetitions": 2, "lanes": [1, 2], "modes": [], "plans": 0, "seconds": 60}
    *_, row = child.reports(SMALL_RNNLM, settings, CPU)
    reasons = {way: each["reason"] for way, each in row["ways"].items()}
    assert [reasons[way] for way in ("as written", "1 lanes", "2 lanes")] == [""] * 3
    assert "graphs are recorded on an accelerator; this runs on cpu" in reasons["as written, graph"]
    assert reasons["2 lanes, graph"].endswith("graphs are recorded on an accelerator; this runs on cpu")
    assert row["operations_ms"] > 0 and row["dearest"][0][1] >= row["dearest"][-1][1] > 0
    assert json.loads(json.dumps(row)) == row


def test_a_way_with_other_outputs_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "as_written", lambda step, device: lambda: [torch.ones(3)])
    settings = {"repetitions": 1, "lanes": [1], "modes": [], "plans": 0, "seconds": 60}
    *_, row = child.reports(SMALL_RNNLM, settings, CPU)
    assert "outputs instead of" in row["ways"]["as written"]["reason"]
    assert row["ways"]["as written"]["median_ms"] is None and row["ways"]["1 lanes"]["median_ms"] > 0


def halved() -> Step:
    """A step that makes a tensor on the device for which it was captured."""
    return Step("halved", lambda x: (x / 2 + torch.arange(3.0, device=x.device),), (torch.ones(3),))


@pytest.mark.slow
def test_a_program_compiled_in_a_mode_is_timed_beside_the_step_as_written() -> None:
    settings = {"repetitions": 1, "lanes": [1], "modes": ["default", "wrong"], "plans": 0, "seconds": 60}
    before, _, default, row = child.reports(f"{__name__}:halved", settings, CPU)
    assert "compiled, default" not in before["ways"]
    compiled = default["ways"]["compiled, default"]
    assert compiled["median_ms"] > 0 < compiled["beside_ms"]["as written"]  # which took turns with it
    assert default["ways"]["as written"] == row["ways"]["as written"] and row["ways"]["compiled, default"] == compiled
    assert "Unrecognized mode" in row["ways"]["compiled, wrong"]["reason"]


def test_a_compiler_that_does_not_end_leaves_what_the_modes_before_it_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(program: Program, device: torch.device, mode: str) -> Run:
        if mode == "endless":
            raise SystemExit  # as if it were killed
        return lambda: list(module_on(program, device)(*program.inputs))

    monkeypatch.setattr(child, "whole", made)
    settings = {"repetitions": 1, "lanes": [], "modes": ["quick", "endless"], "plans": 0, "seconds": 60}
    rows: list[dict[str, Any]] = []
    with pytest.raises(SystemExit):
        rows.extend(child.reports(f"{__name__}:halved", settings, CPU))
    assert rows[-1]["ways"]["compiled, quick"]["median_ms"] > 0 and "pairs" not in rows[-1]


def test_simulated_and_measured_plans_are_compared() -> None:
    settings = {"repetitions": 1, "lanes": [1, 2], "modes": [], "plans": 4, "seconds": 600}
    first, before, row = child.reports(SMALL_RNNLM, settings, CPU)
    assert (
        set(first["ways"]) == {"as written", "as written, graph"} and "simulator" not in before
    )  # what was measured before is said before
    rank = row["simulator"]
    assert rank["plans"] == rank["asked"] == len(rank["simulated_ms"]) == len(rank["measured_ms"]) == 4
    assert rank["lanes"] == 2 and rank["graphs"] == 0 and min(rank["measured_ms"]) > 0
    assert -1 <= rank["spearman"] <= 1
    assert json.loads(json.dumps(row)) == row
