"""Every bundled workload at a small size, captured once."""

import pytest

from gst.programs import WORKLOADS, Program, TrainingStep
from tests.choices import with_rest
from tests.programs.small import SMALL, STRUCTURES, small_program  # by the name that other directories use: one cache


@pytest.fixture(scope="session", params=with_rest(sorted(SMALL), STRUCTURES))
def small_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def step(small_name: str) -> TrainingStep:
    return WORKLOADS[small_name](**SMALL[small_name])


@pytest.fixture(scope="session")
def program(small_name: str) -> Program:
    return small_program(small_name)
