"""Jobs beside the caller: in order, seen through by whoever waits, and forgotten."""

from __future__ import annotations

import threading
import weakref

import pytest
import torch

from embedding_cache import EmbeddingTable
from embedding_cache.storage import Background

HOST = torch.device("cpu")


def test_the_caller_goes_on_and_jobs_run_in_order() -> None:
    background, gate, order = Background(HOST), threading.Event(), []
    first = background.run(lambda: order.append(gate.wait(30)))
    second = background.run(lambda: order.append("second"))
    assert not order and not first.succeeded()  # else the job had held up the caller
    gate.set()
    second.wait()
    assert order == [True, "second"]
    background.wait()


def test_what_a_job_raises_is_raised_where_it_is_waited_for() -> None:
    background = Background(HOST)
    background.run(lambda: torch.ones(2) + torch.ones(3))
    last = background.run(lambda: torch.ones(2))
    assert last.wait().tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="size of tensor"):
        background.wait()
    background.wait()  # it is told once


def test_rows_fetched_and_dropped_are_not_kept() -> None:
    table = EmbeddingTable(10, 4)
    table.push(torch.arange(10), torch.ones(10, 4), 0)
    rows = weakref.ref(table.prefetch(torch.arange(10)).wait()[0])
    table.prefetch(torch.arange(10)).wait()
    assert rows() is None


def held_up(table: EmbeddingTable) -> threading.Event:
    """Nothing moves in the background of `table` until the event is set."""
    gate = threading.Event()
    table._background.run(lambda: None if gate.wait(30) else torch.empty(-1))  # which raises
    return gate


def test_a_pull_that_was_asked_for_is_not_changed_by_what_follows() -> None:
    """A row is evicted and its place given away while the pull of it has not begun."""
    table = EmbeddingTable(10, 2, capacity=2)
    table.push(torch.tensor([0, 1]), torch.tensor([[1.0, 1.0], [2.0, 2.0]]), 0)
    gate = held_up(table)
    fetched = table.prefetch(torch.tensor([0, 1, 2]))
    table.write_back(torch.tensor([2]), torch.full((1, 2), 3.0), 1)
    assert table.is_known(torch.tensor([0, 1, 2])).tolist() == [False, True, True]
    gate.set()
    rows, ages, known = fetched.wait()
    assert rows[:, 0].tolist() == [1, 2, 0] and known.tolist() == [True, True, False] and ages.tolist() == [0, 0, -1]
    assert table.pull(torch.tensor([0, 1, 2]))[0][:, 0].tolist() == [0, 2, 3]


@pytest.mark.parametrize("act", ["pull", "push", "write_back", "export_rows", "get_extra_state", "clear"])
def test_whatever_comes_next_finds_the_row_written(act: str) -> None:
    """A row is on its way, held up, when the table is read or written."""
    table, key = EmbeddingTable(100, 2), torch.tensor([1])
    table.push(key, torch.zeros(1, 2), 0)
    gate = held_up(table)
    table.write_back(key, torch.ones(1, 2), 1)
    threading.Timer(0.1, gate.set).start()
    if act == "pull":
        assert table.pull(key)[0].tolist() == [[1, 1]]
    elif act == "push":
        table.push(key, torch.full((1, 2), 2.0), 2)
        assert table.pull(key)[0].tolist() == [[2, 2]]
    elif act == "write_back":
        table.write_back(key, torch.full((1, 2), 2.0), 2)
        assert table.pull(key)[0].tolist() == [[2, 2]]
    elif act == "clear":
        table.clear()
        table.push(key, torch.full((1, 2), 3.0), 3)
        assert table.pull(key)[0].tolist() == [[3, 3]]
    else:
        held = getattr(table, act)()
        assert (held["rows"] if isinstance(held, dict) else held[1]).tolist() == [[1, 1]]


def test_rows_are_not_moved_while_others_are_written() -> None:
    """From the last to the first, as growing would copy them from the first to the last."""
    num_rows = 100_000
    table, keys = EmbeddingTable(2 * num_rows, 64), torch.arange(num_rows)
    table.push(keys, torch.zeros(num_rows, 64), 0)
    table.write_back(keys.flip(0), torch.ones(num_rows, 64), 1)
    table.write_back(keys + num_rows, torch.ones(num_rows, 64), 1)
    assert table.pull(torch.arange(2 * num_rows))[0].all()
