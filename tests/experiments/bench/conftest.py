"""Small programs, as fixtures."""

from tests.execution.conftest import program

__all__ = ["program"]
