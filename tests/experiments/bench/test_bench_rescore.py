"""The benchmark of scoring moves of plans gives what the model gives."""

from __future__ import annotations

import pytest
from experiments.bench.rescore import run


def test_the_benchmark_scores_moves_of_plans_as_the_model_does() -> None:
    found = run(num_nodes=3000, num_moves=4)
    assert found["difference"] < 1e-5 and found["segments"] >= 5
    assert 1 <= found["encoded"] <= 3
    with pytest.raises(ValueError, match="0 moves; take 100 and 1 at least"):
        run(num_moves=0)
