"""Small programs, as fixtures."""

from tests.execution.conftest import bundled_program, program

__all__ = ["bundled_program", "program"]
