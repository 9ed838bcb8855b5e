"""A model in half of the memory that it takes, where memory of the CPU stands for that of an accelerator."""

import json
from pathlib import Path

import pytest
import torch

from experiments.bench.gpu import capped

CPU = torch.device("cpu")


def test_a_plan_keeps_half_of_the_memory_beside_accelerate() -> None:
    pytest.importorskip("accelerate", reason="needs the extra 'models'")
    before, row = capped.reports({"blocks": 6, "width": 32, "batch": 4, "repetitions": 2}, CPU)
    assert list(before["ways"]) == ["plan over both"] and before["plan_bytes"] == row["plan_bytes"]
    assert 0 < row["plan_bytes"] <= row["limit_bytes"] == row["whole_bytes"] // 2
    ways = row["ways"]
    assert ways["plan over both"]["median_ms"] > 0 and ways["Accelerate, offload"]["median_ms"] > 0
    assert json.loads(json.dumps(row)) == row


def test_what_is_offloaded_computes_what_the_model_computes(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="needs the extra 'models'")
    model, x = capped.model_of(4, 16), torch.ones(2, 16)
    want, size = model(x), sum(each.nbytes for each in model.parameters())
    run = capped.offloaded(model, (x,), torch.device("cpu"), size // 2, tmp_path)
    assert any(each.is_meta for each in model.parameters()) and list(tmp_path.iterdir())  # some are on disk
    assert torch.equal(run()[0], want)
