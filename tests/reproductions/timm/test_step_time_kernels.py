"""Kernels of step times: layouts under TorchInductor, and values read in another order than they lie."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from experiments.reproductions.graphnet.reader import Operation, Value
from experiments.reproductions.timm.step_time.captured import operators
from experiments.reproductions.timm.step_time.fusion import prefers_channels_last, runs_channels_last
from experiments.reproductions.timm.step_time.kernels import CLASSES, COLUMNS, Kernels, kernels_of
from gst.programs import capture_module


def column(kernels: Kernels, name: str) -> np.ndarray:
    return kernels.columns[:, COLUMNS.index(name)]


def value(name: int, *shape: int, strides: tuple[int, ...] | None = None) -> Value:
    in_order = tuple(int(np.prod(shape[place + 1 :])) for place in range(len(shape)))
    return Value(name, name, shape, strides or in_order, torch.float32, False)


def convolutions(*groups: int) -> list[Operation]:
    layers = [nn.Conv2d(96, 96, 3, padding=1, groups=each) for each in groups]
    return operators(capture_module(nn.Sequential(*layers).eval(), (torch.zeros(1, 96, 32, 32),)))


def test_inductor_changes_the_layout_unless_grouped_convolutions_lose_more_than_others_gain() -> None:
    plain, grouped = convolutions(1), convolutions(2)
    assert prefers_channels_last(plain)
    assert not prefers_channels_last(grouped)
    assert prefers_channels_last(convolutions(1, 1, 2))  # 0.823 twice and 1.358 half
    assert not prefers_channels_last(convolutions(1, 2, 2, 2))
    assert not prefers_channels_last([])
    assert runs_channels_last(grouped, True, False, True)  # always on a CPU
    assert not runs_channels_last(plain, False, False, True)


def test_reads_in_another_order_are_scattered() -> None:
    source, result = value(0, 8, 16, 32), value(1, 8, 16, 32)
    for strides, share in (((512, 32, 1), 0), ((16 * 32, 1, 16), 1)):
        call = Operation("clone", (source._replace(strides=strides),), (result,), {}, False)
        kernels = kernels_of([call], "fp32", False)
        assert column(kernels, "bytes scattered") == share * column(kernels, "bytes read")


def names(kernels: Kernels) -> list[str]:
    return [CLASSES[kind] for kind in kernels.kind]


def weight(name: int, *shape: int) -> Value:
    return value(name, *shape)._replace(is_parameter=True)


def test_a_convolution_copies_a_slice_of_its_input_whatever_the_compiler() -> None:
    whole, part = value(0, 1, 64, 16, 16), value(1, 1, 32, 16, 16, strides=(64 * 256, 256, 16, 1))
    made = Operation("relu", (value(5, 1, 64, 16, 16),), (whole,), {}, False)
    view = Operation("getitem", (whole,), (part._replace(storage=0),), {}, True)
    filters, result = weight(2, 32, 32, 1, 1), value(3, 1, 32, 16, 16)
    sliced = [made, view, Operation("conv2d", (part._replace(storage=0), filters), (result,), {}, False)]
    plain = [made, Operation("conv2d", (whole, weight(2, 32, 64, 1, 1)), (result,), {}, False)]
    assert names(kernels_of(sliced, "fp32", False)) == ["pointwise", "copy", "conv 1x1"]
    assert names(kernels_of(plain, "fp32", False)) == ["pointwise", "conv 1x1"]
    compiled = kernels_of(sliced, "fp32", True)
    assert names(compiled) == ["fused pointwise", "fused pointwise", "conv 1x1"]
    assert column(compiled, "bytes read")[1] == 4 * part.numel


def test_layouts_are_those_of_each_kernel_and_normalizations_put_elements_in_order() -> None:
    images = value(0, 1, 32, 16, 16)
    last = value(1, 1, 32, 16, 16, strides=(32 * 256, 1, 16 * 32, 32))
    for each, is_last in ((images, 0), (last, 1)):
        relu = Operation("relu", (each,), (each._replace(name=2, storage=2),), {}, False)
        assert column(kernels_of([relu], "fp32", False), "is channels last") == is_last
    tokens = value(1, 1, 16, 16, 32, strides=(32 * 256, 16, 1, 256))  # channels of images in NCHW, seen as the last
    norm = Operation("layer_norm", (tokens, weight(3, 32)), (value(4, 1, 16, 16, 32),), {}, False)
    assert names(kernels_of([norm], "fp32", False)) == ["copy", "layer norm"]
    assert names(kernels_of([norm], "amp", False)) == ["copy", "layer norm"]
    half = tokens._replace(dtype=torch.float16)
    amp = kernels_of([norm._replace(reads=(half, weight(3, 32)))], "amp", False)
    assert names(amp) == ["cast", "copy", "layer norm"]  # a cast keeps the order of dimensions


@pytest.mark.parametrize("count, is_cpu, kernels", [(4, False, 1), (9, False, 2), (4, True, 2)])
def test_a_long_concatenation_is_written_before_it_is_read(count: int, is_cpu: bool, kernels: int) -> None:
    parts = [value(place, 1, 8, 16, 16) for place in range(count)]
    joined, result = value(50, 1, 8 * count, 16, 16), value(51, 1, 8 * count, 16, 16)
    calls = [Operation("cat", tuple(parts), (joined,), {}, False), Operation("relu", (joined,), (result,), {}, False)]
    compiled = kernels_of(calls, "fp32", True, is_cpu=is_cpu)
    assert len(compiled.kind) == kernels
    assert column(compiled, "bytes written").sum() == kernels * 4 * result.numel


def test_a_compiler_reads_the_input_of_a_group_norm_twice() -> None:
    images, result = value(0, 1, 64, 32, 32), value(1, 1, 64, 32, 32)
    norm = Operation("group_norm", (images, weight(2, 64), weight(3, 64)), (result,), {}, False)
    relu = Operation("relu", (result,), (value(4, 1, 64, 32, 32),), {}, False)
    compiled = kernels_of([norm, relu], "fp32", True)
    assert names(compiled) == ["fused reduction", "fused pointwise"]
    assert column(compiled, "bytes read") == pytest.approx(2 * [4 * images.numel], rel=0.01)
