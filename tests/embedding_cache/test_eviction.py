"""A full table keeps what was written last. Any sequence is in test_table_laws; here by hand."""

from __future__ import annotations

import pytest
import torch
from reference import rows_in_use

from embedding_cache import EmbeddingTable


def push(table: EmbeddingTable, keys: list[int], step: int) -> None:
    table.push(torch.tensor(keys), torch.tensor([[float(key)] for key in keys]), step)


def test_by_hand() -> None:
    table = EmbeddingTable(10, 1, capacity=3)
    push(table, [4, 5, 6], 0)
    push(table, [4], 1)  # 5, 6, 4
    push(table, [7], 2)  # 6, 4, 7
    assert rows_in_use(table)[0].tolist() == [4, 6, 7]
    push(table, [8, 6], 3)  # 8 takes the place of 6, and 6, come back, that of 4: 7, 8, 6
    assert rows_in_use(table)[0].tolist() == [6, 7, 8] and rows_in_use(table)[1].flatten().tolist() == [6, 7, 8]
    push(table, [0, 1, 2, 3], 4)
    assert rows_in_use(table)[0].tolist() == [1, 2, 3]


def test_the_order_is_that_of_writing_and_not_of_steps() -> None:
    table = EmbeddingTable(10, 1, capacity=2)
    for key, step in ((1, 9), (2, 0), (3, 0)):
        push(table, [key], step)
    assert rows_in_use(table)[0].tolist() == [2, 3]


@pytest.mark.parametrize("keys", [[3, 3, 1, 2], [10, 1, 2]])
def test_a_push_of_more_than_fits_is_checked_whole(keys: list[int]) -> None:
    table = EmbeddingTable(10, 1, capacity=2)
    with pytest.raises(ValueError, match=r"key 3 is repeated|keys are 1\.\.10"):
        push(table, keys, 0)
    assert not table.is_known(torch.arange(10)).any()
