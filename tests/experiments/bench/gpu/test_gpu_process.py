"""Commands of `make gpu` that are ended leave nothing at work, and tests say what they know at any moment."""

from __future__ import annotations

import pytest

from experiments.bench.gpu.process import Ended, run_session
from tests.processes import is_running


def said_in_time(command: str) -> Ended:
    """What a command says that does not end; a busy machine has more time."""
    for limit_s in (0.5, 2.0, 8.0, 32.0):
        ended = run_session(["sh", "-c", command], limit_s)
        if ended.stdout:
            break
    return ended


@pytest.mark.parametrize("prefix", ["", "setsid "])
def test_nothing_goes_on_working_after_a_timeout(prefix: str) -> None:
    ended = said_in_time(f"{prefix}sleep 600 & echo $!; wait")
    assert ended.status is None and not is_running(int(ended.stdout))


def test_nothing_goes_on_working_after_its_parent() -> None:
    ended = run_session(["sh", "-c", "sleep 600 > /dev/null & echo $!; echo words >&2; exit 3"], 60.0)
    assert ended.status == 3 and ended.stderr == "words\n" and not is_running(int(ended.stdout))
