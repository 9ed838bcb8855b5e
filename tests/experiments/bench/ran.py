"""A benchmark run through its command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.bench.__main__ import main


def ran(folder: Path, *arguments: object) -> dict[str, Any]:
    """Run a benchmark and return the JSON that it writes."""
    path = folder / "result.json"
    assert main([*map(str, arguments), "--json", str(path)]) == 0
    result: dict[str, Any] = json.loads(path.read_text())
    return result
