"""The first calls of a function in a test are checked, those after them are not."""

from __future__ import annotations

import jaxtyping

from partitioners.csr import check_num_parts
from tests.checks import CALLS, check_again


def refusals(calls: int) -> int:
    """How many of so many calls with text for a number the checks of types refuse."""
    count = 0
    for _ in range(calls):
        try:
            check_num_parts(10, "two")  # type: ignore[arg-type]
        except jaxtyping.TypeCheckError:
            count += 1
        except TypeError:
            pass
    return count


def test_the_first_calls_are_checked() -> None:
    assert refusals(CALLS + 3) == CALLS
    check_again()
    assert refusals(1) == 1
