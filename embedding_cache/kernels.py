"""Compiled loops: rows of host memory copied by number, at the rate of a plain copy of as many bytes.

A row is an array of whole words (integers of the widest size that divides it), whatever its dtype. Random rows of a
large table miss every cache, and the processor cannot guess which comes next; so each kernel asks for the row `AHEAD`
turns later before it copies the present one. `slots` may repeat in a gather, not in a scatter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, no_type_check

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `kernel` on its first call and keep the machine code for later processes, disk permitting.

    Write `@no_type_check` under this decorator: numba must see the bare function, not one wrapped by the
    shape checker that the tests install. numba raises RuntimeError when neither the package's folder nor
    the user's cache folder can be written (a read-only container); the kernel is then compiled once per
    process.
    """
    try:
        return numba.njit(cache=True, nogil=True)(kernel)
    except RuntimeError:
        return numba.njit(nogil=True)(kernel)


LINE = 64  # bytes of a cache line
AHEAD = 16  # rows; fewer and memory is not ready, many more and the first are pushed out again


@intrinsic
@no_type_check
def _prefetch(context: Any, rows: Any, row: Any, word: Any) -> Any:
    """Ask for the line of `rows[row, word]` into the second-level cache: the first can wait for too few at a time."""

    @no_type_check
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        byte, integer = ir.PointerType(ir.IntType(8)), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, integer, integer, integer])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        address = builder.bitcast(_address(target, builder, signature.args, values), byte)
        builder.call(function, [address, integer(0), integer(2), integer(1)])  # to read, second level, data
        return target.get_dummy_value()

    return types.void(rows, row, word), generate


@intrinsic
@no_type_check
def _stream_line(context: Any, source: Any, source_row: Any, word: Any, sink: Any, sink_row: Any) -> Any:
    """Copy the line at `source[source_row, word]` to `sink[sink_row, word]`, aligned, past the caches."""

    @no_type_check
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        line, kinds = ir.PointerType(ir.VectorType(ir.IntType(64), LINE // 8)), signature.args
        loaded = builder.load(builder.bitcast(_address(target, builder, kinds[:3], values[:3]), line), align=8)
        place = _address(target, builder, (kinds[3], kinds[4], kinds[2]), (values[3], values[4], values[2]))
        store = builder.store(loaded, builder.bitcast(place, line), align=LINE)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
        return target.get_dummy_value()

    return types.void(source, source_row, word, sink, sink_row), generate


@intrinsic
@no_type_check
def _fence(context: Any) -> Any:
    """Let other threads see what was streamed before anything that follows."""

    @no_type_check
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.fence("seq_cst")
        return target.get_dummy_value()

    return types.void(), generate


@no_type_check
def _address(target: Any, builder: Any, kinds: Any, values: Any) -> Any:
    """Of `values[0][values[1], values[2]]`."""
    array = target.make_array(kinds[0])(target, builder, values[0])
    where = [target.cast(builder, values[axis], kinds[axis], types.int64) for axis in (1, 2)]
    return cgutils.get_item_pointer(target, builder, kinds[0], array, where, wraparound=False)


@compiled
@no_type_check
def gather(rows, slots, out):
    """out[i] = rows[slots[i]]."""
    words, per_line = rows.shape[1], LINE // rows.itemsize
    if words == 1:  # the processor looks far enough ahead by itself
        for i in range(len(slots)):
            out[i, 0] = rows[slots[i], 0]
        return
    for i in range(len(slots)):
        later = slots[min(i + AHEAD, len(slots) - 1)]
        for word in range(0, words, per_line):
            _prefetch(rows, later, word)
        slot = slots[i]
        for word in range(words):
            out[i, word] = rows[slot, word]


@compiled
@no_type_check
def gather_streaming(rows, slots, out):
    """`gather` of rows of whole lines into an `out` that begins at one and is larger than the caches: written through
    them, it would be read from memory before it is written there."""
    words, per_line = rows.shape[1], LINE // rows.itemsize
    for i in range(len(slots)):
        later = slots[min(i + AHEAD, len(slots) - 1)]
        for word in range(0, words, per_line):
            _prefetch(rows, later, word)
        slot = slots[i]
        for word in range(0, words, per_line):
            _stream_line(rows, slot, word, out, i)
    _fence()


@compiled
@no_type_check
def scatter(rows, slots, given):
    """rows[slots[i]] = given[i]."""
    words, per_line = rows.shape[1], LINE // rows.itemsize
    for i in range(len(slots)):
        later = slots[min(i + AHEAD, len(slots) - 1)]
        for word in range(0, words, per_line):
            _prefetch(rows, later, word)
        slot = slots[i]
        for word in range(words):
            rows[slot, word] = given[i, word]


@compiled
@no_type_check
def scatter_streaming(rows, slots, given):
    """`scatter` of rows of whole lines, which need not be read before they are overwritten."""
    words, per_line = rows.shape[1], LINE // rows.itemsize
    for i in range(len(slots)):
        slot = slots[i]
        for word in range(0, words, per_line):
            _stream_line(given, i, word, rows, slot)
    _fence()
