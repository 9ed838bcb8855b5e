"""The small task of the placement tests, for policies that are registered as methods."""

from tests.placement.conftest import task  # noqa: F401 (a fixture)
