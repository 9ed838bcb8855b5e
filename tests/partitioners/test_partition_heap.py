from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import unhurried

from partitioners.balance import sift_down, sift_up


@unhurried
@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.data())
def test_the_least_key_stays_on_top_whatever_changes(first_keys: list[int], data: st.DataObject) -> None:
    keys = np.array(first_keys)
    count = len(keys)
    heap = np.array(sorted(range(count), key=lambda id_: (keys[id_], id_)))
    slots = np.argsort(heap)
    for id_, key in data.draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, 5)), max_size=30)):
        risen = key > keys[id_]
        keys[id_] = key
        if risen:
            sift_down(heap, slots, keys, count, slots[id_])
        else:
            sift_up(heap, slots, keys, slots[id_])
        assert heap[0] == min(range(count), key=lambda other: (keys[other], other))
        np.testing.assert_array_equal(heap[slots], np.arange(count))
    drained = []
    for length in range(count - 1, -1, -1):
        drained.append(int(heap[0]))
        heap[0] = heap[length]
        sift_down(heap, slots, keys, length, 0)
    assert drained == sorted(range(count), key=lambda id_: (keys[id_], id_))
