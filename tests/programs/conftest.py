"""Every bundled workload at a small size, captured once."""

import pytest

from gst.programs import WORKLOADS, Program, TrainingStep, capture

from .small import SMALL


@pytest.fixture(scope="session", params=sorted(SMALL))
def step(request: pytest.FixtureRequest) -> TrainingStep:
    return WORKLOADS[request.param](**SMALL[request.param])


@pytest.fixture(scope="session")
def program(step: TrainingStep) -> Program:
    return capture(step)
