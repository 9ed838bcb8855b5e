"""Small programs, as fixtures."""

import pytest

from gst.programs import Program
from tests.choices import with_rest
from tests.execution.tiny import tiny_program
from tests.programs.small import SMALL, STRUCTURES, small_program


@pytest.fixture(params=with_rest(["tiny", *STRUCTURES], ["tiny"]))
def program(request: pytest.FixtureRequest) -> Program:
    """One program of each structure, for laws that hold whatever the operators are; all but the least in `make e2e`."""
    return tiny_program() if request.param == "tiny" else small_program(request.param)


@pytest.fixture(params=with_rest(sorted(SMALL), ["moe", "wavenet"]))
def bundled_program(request: pytest.FixtureRequest) -> Program:
    """Every bundled workload, for laws in which each operator may be an exception; most in `make e2e`."""
    return small_program(request.param)
