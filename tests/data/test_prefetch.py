from __future__ import annotations

import threading
import time

import pytest

from gst.data.loader import Prefetched, Reader


def test_steps_come_in_order_with_what_was_read_for_them() -> None:
    drawn: list[tuple[int, int]] = []

    def draw(step: int, ahead: int) -> int:
        assert threading.current_thread() is threading.main_thread()
        drawn.append((step, ahead))
        return 10 * step

    def load(number: int) -> tuple[int, bool]:
        return number + 1, threading.current_thread() is threading.main_thread()

    assert list(Prefetched(range(4), Reader(draw, load))) == [(i, (10 * i + 1, False)) for i in range(4)]
    assert drawn == [(0, 0), (1, 1), (2, 1), (3, 1)]
    assert list(Prefetched([], Reader(draw, load))) == []


def test_a_step_is_drawn_before_the_one_before_it_is_computed() -> None:
    drawn: list[int] = []
    for step, _ in Prefetched(range(3), Reader(lambda step, ahead: drawn.append(step) or step, lambda drawn: drawn)):
        assert drawn == list(range(min(step + 2, 3)))


def test_what_cannot_be_decided_ahead_is_drawn_once_the_step_before_was_computed() -> None:
    """Odd steps hang on the one before them."""
    happened: list[tuple[str, int, int]] = []

    def draw(step: int, ahead: int) -> int | None:
        happened.append(("draw", step, ahead))
        return None if ahead and step % 2 else 10 * step

    for step, read in Prefetched(range(4), Reader(draw, lambda drawn: drawn + 1)):
        assert read == 10 * step + 1
        happened.append(("compute", step, 0))
    undecided, decided = [("draw", 1, 1), ("compute", 0, 0), ("draw", 1, 0)], [("draw", 2, 1), ("compute", 1, 0)]
    assert happened == [
        ("draw", 0, 0), *undecided, *decided, ("draw", 3, 1), ("compute", 2, 0), ("draw", 3, 0), ("compute", 3, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(("reading", "computing", "low", "high"), [(0.01, 0.06, 0.0, 0.4), (0.06, 0.01, 0.5, 1.0)])
def test_waiting_is_what_reading_takes_longer_than_computing(
    reading: float, computing: float, low: float, high: float
) -> None:
    prefetched = Prefetched(range(8), Reader(lambda step, ahead: step, lambda step: time.sleep(reading)))
    for _ in prefetched:
        time.sleep(computing)
    assert low <= prefetched.waited / prefetched.passed <= high


def test_what_goes_wrong_in_the_thread_is_raised_in_front() -> None:
    def load(step: int) -> None:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(Prefetched(range(2), Reader(lambda step, ahead: step, load)))
