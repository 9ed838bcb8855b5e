"""Sizes of the bundled workloads at which a test takes milliseconds."""

from typing import Any

SMALL: dict[str, dict[str, Any]] = {
    "rnnlm": {"layers": 2, "hidden": 16, "steps": 3, "batch": 4, "vocabulary": 30},
    "inception": {"modules": 1, "width": 8, "size": 6, "batch": 4},
}
