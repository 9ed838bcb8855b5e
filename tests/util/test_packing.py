from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gst.data.tpugraphs import read
from gst.util.arrays import (
    HIGHEST,
    LOWEST,
    MOST_SYMBOLS,
    PackedArray,
    packable,
    packed,
    unpacked,
    word_for,
    worth_packing,
)

WIDTHS = st.integers(0, MOST_SYMBOLS)


@st.composite
def symbols(draw: st.DrawFn) -> np.ndarray:
    rows = draw(arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4))
    return draw(arrays.arrays(np.int8, (*rows, draw(WIDTHS)), elements=st.integers(LOWEST, HIGHEST)))


@given(symbols())
def test_what_is_packed_is_unpacked(values: np.ndarray) -> None:
    words = packed(values)
    again = unpacked(words, values.shape[-1])
    assert words.shape == values.shape[:-1] and again.dtype == np.int8 and again.shape == values.shape
    assert (again == values).all()


@given(symbols())
def test_words_are_those_worked_out_bit_by_bit(values: np.ndarray) -> None:
    words = packed(values)
    for index in np.ndindex(words.shape):
        assert int(words[index]) == sum((int(value) + 1) << (3 * k) for k, value in enumerate(values[index]))


@given(st.integers(1, MOST_SYMBOLS))
def test_every_symbol_has_bits_of_its_own(num_symbols: int) -> None:
    """All at their highest is all bits set: nothing spills, and the smallest word that holds them is taken."""
    full = packed(np.full((1, num_symbols), HIGHEST, np.int8))
    assert int(full[0]) == 2 ** (3 * num_symbols) - 1
    assert full.itemsize == 1 or 3 * num_symbols > 4 * full.itemsize


def test_what_layouts_take() -> None:
    assert [word_for(width).itemsize for width in (18, 21, 10, 5, 2)] == [8, 8, 4, 2, 1]
    assert worth_packing(np.int8, 18) and not worth_packing(np.int8, 1) and not worth_packing(np.int8, 24)
    assert not worth_packing(np.float32, 18)


@pytest.mark.parametrize("value", [-128, LOWEST - 1, HIGHEST + 1, 127])
def test_what_does_not_fit_is_refused(value: int) -> None:
    values = np.zeros((2, 18), np.int8)
    values[1, 3] = value
    assert not packable(values)
    with pytest.raises(ValueError, match=f"{value}.*hold -1 .. 6"):
        packed(values)
    with pytest.raises(ValueError, match="at most 21"):
        packed(np.zeros((2, MOST_SYMBOLS + 1), np.int8))


def test_a_packed_array_is_indexed_like_the_array(alexnet: Path) -> None:
    features = read(alexnet, merge=False).config_features[:500]
    array = PackedArray(packed(features), features.shape[2])
    configs, columns = np.array([3, 400, 3, 17]), np.array([5, 2])
    assert array.shape == features.shape and len(array) == 500 and array.dtype == np.int8
    for index in (7, slice(2, 9), configs, (configs[None, :], columns[:, None]), (slice(None), 4), (3, 2), []):
        index = np.array(index, int) if isinstance(index, list) else index
        assert (array[index] == features[index]).all() and array[index].shape == features[index].shape
    assert (np.asarray(array) == features).all() and np.asarray(array, np.float32).dtype == np.float32
    assert array.nbytes * 10 == features.nbytes * 4  # ten columns in four bytes


@pytest.mark.parametrize("num_symbols", [-1, 10, 22, 30, "wide", 18.0])
def test_words_of_another_width_are_refused(num_symbols: object, unchecked: None) -> None:
    with pytest.raises((ValueError, TypeError)):
        PackedArray(packed(np.zeros((2, 18), np.int8)), num_symbols)  # type: ignore[arg-type]
