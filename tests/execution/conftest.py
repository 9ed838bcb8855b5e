"""Small programs and two one-thread devices, whatever the machine has."""

import pytest

from gst.machine.devices import Device
from gst.programs import Program
from tests.programs.small import SMALL, STRUCTURES, small_program

__all__ = ["STRUCTURES", "bundled_program", "pair", "program"]


def pair(separate_memory: bool) -> list[Device]:
    """Two CPU devices, free to use any core: they exist on a machine with one core too."""
    return [
        Device(f"cpu:{number}", "cpu", (), 1, f"cpu:{number}" if separate_memory else "host", "test")
        for number in range(2)
    ]


@pytest.fixture(params=STRUCTURES)
def program(request: pytest.FixtureRequest) -> Program:
    """One program of each structure: for laws that hold whatever the operators are."""
    return small_program(request.param)


@pytest.fixture(params=sorted(SMALL))
def bundled_program(request: pytest.FixtureRequest) -> Program:
    """Every bundled workload: for laws in which each operator may be an exception."""
    return small_program(request.param)
