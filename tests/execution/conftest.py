"""Small programs, as fixtures."""

import pytest

from gst.programs import Program
from tests.programs.small import SMALL, STRUCTURES, small_program


@pytest.fixture(params=STRUCTURES)
def program(request: pytest.FixtureRequest) -> Program:
    """One program of each structure: for laws that hold whatever the operators are."""
    return small_program(request.param)


@pytest.fixture(params=sorted(SMALL))
def bundled_program(request: pytest.FixtureRequest) -> Program:
    """Every bundled workload: for laws in which each operator may be an exception."""
    return small_program(request.param)
