"""Small symbols in few bits: the layouts of a configuration as one integer for each configurable node.

The layout features of TpuGraphs (Phothilimthana et al. 2023, arXiv 2308.13490) are dimension numbers 0 .. 5, padded
with -1. Three bits tell eight symbols apart, so 18 of them take 54 bits: 8 bytes in place of 18, and of 72 in the
published files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int8, Shaped, UInt
from numpy.typing import DTypeLike

BITS, LOWEST = 3, -1
HIGHEST = LOWEST + (1 << BITS) - 1
MOST_SYMBOLS = 64 // BITS
WORDS = tuple(np.dtype(f"<u{size}") for size in (1, 2, 4, 8))
AT_ONCE = 4  # symbols that one look into the table unpacks


def word_for(num_symbols: int) -> np.dtype:
    """The smallest unsigned integer that holds so many symbols; at most 21 of them fit."""
    if not 0 <= num_symbols <= MOST_SYMBOLS:
        raise ValueError(f"{num_symbols} symbols do not fit into 64 bits; at most {MOST_SYMBOLS} do")
    return next(word for word in WORDS if num_symbols * BITS <= word.itemsize * 8)


def worth_packing(dtype: DTypeLike, num_symbols: int) -> bool:
    """Whether symbols of this type take less room packed."""
    return np.dtype(dtype) == np.int8 and num_symbols <= MOST_SYMBOLS and word_for(num_symbols).itemsize < num_symbols


def packable(values: Shaped[np.ndarray, "*rows symbols"]) -> bool:
    """Whether all values are among the eight that three bits tell apart, -1 .. 6."""
    return not values.size or bool(values.min() >= LOWEST and values.max() <= HIGHEST)


def packed(values: Int8[np.ndarray, "*rows symbols"]) -> UInt[np.ndarray, "*rows"]:
    """Symbol k of a row, plus one, in the bits 3k .. 3k + 2 of its word.

    Raises:
        ValueError: a value is not among -1 .. 6, or there are more than 21 in a row.
    """
    word = word_for(values.shape[-1])
    if not packable(values):
        raise ValueError(f"values {values.min()} .. {values.max()} do not fit {BITS} bits, which hold -1 .. {HIGHEST}")
    words = np.zeros(values.shape[:-1], word)
    for k in range(values.shape[-1]):
        words |= (values[..., k] - LOWEST).astype(word) << word.type(BITS * k)
    return words


def unpacked(words: UInt[np.ndarray, "*rows"], num_symbols: int) -> Int8[np.ndarray, "*rows symbols"]:
    """What `packed` was given. Four symbols at a time are looked up in a table of all that twelve bits can say."""
    looks = -(-num_symbols // AT_ONCE)
    found = np.empty((*words.shape, looks), FOUR_SYMBOLS.dtype)
    mask = min(len(FOUR_SYMBOLS) - 1, np.iinfo(words.dtype).max)
    for look in range(looks):
        place = (words >> words.dtype.type(look * AT_ONCE * BITS)) & words.dtype.type(mask)
        found[..., look] = FOUR_SYMBOLS[place]
    return found.view(np.int8)[..., :num_symbols]


def _four_symbols() -> np.ndarray:
    """For each number of twelve bits its four symbols, an int8 each, as one integer of 32 bits."""
    numbers = np.arange(1 << (AT_ONCE * BITS))
    symbols = (numbers[:, None] >> BITS * np.arange(AT_ONCE)) & (HIGHEST - LOWEST)
    return (symbols + LOWEST).astype(np.int8).view(np.uint32).ravel()


FOUR_SYMBOLS = _four_symbols()


@dataclass(frozen=True, eq=False)
class PackedArray:
    """An int8 array whose last axis is packed, in memory or memory-mapped: what is indexed is unpacked, nothing else.

    Args:
        words: a word for each row of symbols.
        num_symbols: the length of the last axis.
    """

    words: UInt[np.ndarray, "*rows"]
    num_symbols: int

    def __post_init__(self) -> None:
        if not isinstance(self.num_symbols, int) or word_for(self.num_symbols) != self.words.dtype:
            raise ValueError(f"{self.num_symbols} symbols are not packed in {self.words.dtype}")

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.words.shape, self.num_symbols)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.int8)

    @property
    def nbytes(self) -> int:
        return self.words.nbytes

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: Any) -> np.ndarray:
        """As numpy does; the last axis comes whole, so `index` may not reach it.

        Raises:
            IndexError: it has an ellipsis, which would stand for the axes of the words.
        """
        if any(part is Ellipsis for part in (index if isinstance(index, tuple) else (index,))):
            raise IndexError("the symbols of a packed array come whole; index the axes before them, with no ellipsis")
        return unpacked(np.asarray(self.words[index]), self.num_symbols)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("unpacking makes a copy")
        return unpacked(np.asarray(self.words), self.num_symbols).astype(dtype or np.int8, copy=False)
