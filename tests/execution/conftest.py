"""Small programs, as fixtures."""

import pytest

from gst.programs import Program
from tests.choices import rest_in_e2e
from tests.programs.small import SMALL, STRUCTURES, small_program


@pytest.fixture(params=rest_in_e2e(STRUCTURES, STRUCTURES[:1]))
def program(request: pytest.FixtureRequest) -> Program:
    """One program of each structure, for laws that hold whatever the operators are; all but the first in `make e2e`."""
    return small_program(request.param)


@pytest.fixture(params=sorted(SMALL))
def bundled_program(request: pytest.FixtureRequest) -> Program:
    """Every bundled workload: for laws in which each operator may be an exception."""
    return small_program(request.param)
