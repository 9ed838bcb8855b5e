from __future__ import annotations

import json
import math
from typing import Any

import pytest

from experiments.bench import table


def numbers(record: Any) -> list[float]:
    if isinstance(record, dict):
        return [number for value in record.values() for number in numbers(value)]
    return [record] if isinstance(record, float) else []


@pytest.mark.e2e
def test_every_tier_and_dtype_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer repetitions of smaller pulls; what they come to is not judged here."""
    monkeypatch.setattr(table, "SMALL", 3)
    monkeypatch.setattr(table, "LARGE", 2)
    monkeypatch.setattr(table, "TABLE_BYTES", 4 << 20)
    monkeypatch.setattr(table, "SHAPES", ((2048, 1 << 10), (100, 1 << 12)))
    seen: list[tuple[str, int, int]] = []
    results = table.run(lambda *progress: seen.append(progress))
    assert json.loads(json.dumps(results)) == results
    assert all(math.isfinite(number) and number > 0 for number in numbers(results))
    assert {"pull_ms_9216x1", "push_ms_1024x128", "pull_gb_s", "copy_gb_s", "pull_over_copy"} <= set(results)
    assert results["pull_over_copy"] == pytest.approx(results["pull_gb_s"] / results["copy_gb_s"])
    assert results["copies"]["2048x1024"]["pull_over_copy"] == results["pull_over_copy"]
    assert set(results["tiers"]) == {"device", "pinned", "disk"}
    for by_dtype in results["tiers"].values():
        assert set(by_dtype) == {"float32", "bfloat16", "float16"}
    assert [done for _, done, _ in seen] == list(range(12)) and {total for _, _, total in seen} == {11}
