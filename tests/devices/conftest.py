"""Small programs and two one-thread devices, whatever the machine has."""

import pytest

from gst.devices import Device
from gst.programs import Program
from tests.programs.small import SMALL, small_program

__all__ = ["SMALL", "pair", "program", "programs"]


def pair(separate_memory: bool) -> list[Device]:
    """Two CPU devices, free to use any core: they exist on a machine with one core too."""
    return [
        Device(f"cpu:{number}", "cpu", (), 1, f"cpu:{number}" if separate_memory else "host", "test")
        for number in range(2)
    ]


@pytest.fixture(scope="session")
def programs() -> dict[str, Program]:
    return {name: small_program(name) for name in SMALL}


@pytest.fixture(params=sorted(SMALL))
def program(request: pytest.FixtureRequest) -> Program:
    return small_program(request.param)
