"""Small programs and two one-thread devices, whatever the machine has."""

from typing import Any

import pytest

from gst.devices import Device
from gst.programs import WORKLOADS, Program, capture

# Sizes at which a test takes milliseconds.
SMALL: dict[str, dict[str, Any]] = {
    "rnnlm": {"layers": 2, "hidden": 16, "steps": 3, "batch": 4, "vocabulary": 30},
    "inception": {"modules": 1, "width": 8, "size": 6, "batch": 4},
}


def pair(separate_memory: bool) -> list[Device]:
    """Two CPU devices, free to use any core: they exist on a machine with one core too."""
    return [
        Device(f"cpu:{number}", "cpu", (), 1, f"cpu:{number}" if separate_memory else "host", "test")
        for number in range(2)
    ]


@pytest.fixture(scope="session")
def programs() -> dict[str, Program]:
    return {name: capture(WORKLOADS[name](**sizes)) for name, sizes in SMALL.items()}


@pytest.fixture(params=sorted(SMALL))
def program(request: pytest.FixtureRequest, programs: dict[str, Program]) -> Program:
    return programs[request.param]
