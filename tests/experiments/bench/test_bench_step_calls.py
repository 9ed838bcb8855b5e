"""What a training step asks of its host is counted: nothing of a padded one grows unseen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from experiments.bench import host_work, padding, step_calls
from gst.data.synthetic import synthetic_program
from gst.graphs.segments import segment


@pytest.mark.e2e
@pytest.mark.skipif(
    torch.cuda.is_available(), reason="there is a CUDA device: calls of a described one are not counted"
)
def test_a_padded_step_is_one_graph_few_copies_and_no_wait(tmp_path: Path) -> None:
    file = tmp_path / "calls.json"
    subprocess.run(
        [sys.executable, "-m", "experiments.bench.step_calls", "--json", str(file)], check=True, cwd=step_calls.ROOT
    )
    cases = json.loads(file.read_text())["cases"]
    assert set(cases) == set(step_calls.CASES)
    for name, found in cases.items():
        parts = [each for part, each in found.items() if part != "places_of_waits"]
        copies, waits = (sum(each[key] for each in parts) for key in ("copies", "waits"))
        assert waits == name.endswith("on the device"), "for the number of rows"
        if name.endswith("padded"):
            assert found["recorded"]["copies"] == 0 and 300 < found["recorded"]["operators"] < 600
            outside = sum(each["operators"] for each in parts) - found["recorded"]["operators"]
            assert outside == 0 and copies == (1 if "scoring" in name else 2), "of a training one comes back"
        elif name.endswith("on the device"):
            assert copies < 10
        else:
            assert copies > 30


def test_a_padded_step_has_what_it_needs_and_not_much_more() -> None:
    found = padding.padding(segment(synthetic_program(2_000, 40, num_regions=8), 300), 8, steps=10)
    assert 0 < found["needed"] <= found["padded"] < 2 * found["needed"]
    assert found["padded"] <= found["most"] <= found["every_state"] and 0 <= found["too_large"] < 5


def test_the_host_finds_no_equal_states_in_a_padded_step_and_another_thread_may_read_it() -> None:
    data = [segment(synthetic_program(600, 40, seed=seed), 200) for seed in range(step_calls.GRAPHS)]
    before, after = (steps(step_calls.sage(), data, 2)[-1] for steps in (host_work.eager, host_work.padded))
    assert before.keys() == {"draw", "read", "equal states"} and min(before.values()) > 0
    assert after.keys() == {"draw", "count rows", "read", "fill", "finish"} and min(after.values()) >= 0
    assert sum(before.values()) > sum(after[part] for part in ("draw", "fill", "finish"))
