"""Tensors of all kinds come out of one buffer as they went in."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from gst.util.packing import ALIGNMENT, Packed, sent

KINDS = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@given(st.lists(st.tuples(st.sampled_from(KINDS), SHAPES), max_size=6))
def test_tensors_come_out_as_they_went_in(drawn: list[tuple[torch.dtype, tuple[int, ...]]]) -> None:
    tensors = {str(i): (10 * torch.rand(shape)).to(kind) for i, (kind, shape) in enumerate(drawn)}
    packed = Packed.of(tensors).to(torch.device("cpu"))
    assert list(packed.tensors) == list(tensors) and packed.buffer.dtype == torch.uint8
    for name, each in packed.tensors.items():
        torch.testing.assert_close(each, tensors[name], rtol=0, atol=0)
        assert each.untyped_storage().data_ptr() == packed.buffer.data_ptr() or not each.numel()
    assert all(start % ALIGNMENT == 0 for _, _, start in packed.layout.values())


def test_one_copy_brings_all_of_them() -> None:
    tensors = {"a": torch.ones(3, 2), "b": torch.arange(4)}
    there = sent(tensors, torch.device("meta"))
    assert [(name, each.shape, each.dtype, each.device.type) for name, each in there.items()] == [
        (name, each.shape, each.dtype, "meta") for name, each in tensors.items()
    ]
    assert len({each.untyped_storage()._cdata for each in there.values()}) == 1
    assert sent(tensors, torch.device("cpu"))["a"] is tensors["a"]
