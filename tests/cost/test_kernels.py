"""Kernels of step times: attention before torch 2.0, layouts under TorchInductor, and what counts as scattered."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gst.cost.step_time.captured import operators
from gst.cost.step_time.fusion import prefers_channels_last, runs_channels_last
from gst.cost.step_time.kernels import CLASSES, COLUMNS, Kernels, kernels_of
from gst.cost.step_time.machines import machine_of
from gst.cost.step_time.rows import Setting, kernel_descriptors, kernel_times, row_of
from gst.data.graphnet import Operation, Value
from gst.programs import capture_module

PRODUCTS = [place for place, name in enumerate(CLASSES) if name.startswith(("conv", "linear", "matmul", "attention"))]


def column(kernels: Kernels, name: str) -> np.ndarray:
    return kernels.columns[:, COLUMNS.index(name)]


def value(name: int, *shape: int, strides: tuple[int, ...] | None = None) -> Value:
    in_order = tuple(int(np.prod(shape[place + 1 :])) for place in range(len(shape)))
    return Value(name, name, shape, strides or in_order, torch.float32, False)


def convolutions(*groups: int) -> list[Operation]:
    layers = [nn.Conv2d(96, 96, 3, padding=1, groups=each) for each in groups]
    return operators(capture_module(nn.Sequential(*layers).eval(), (torch.zeros(1, 96, 32, 32),)))


def test_separate_attention_has_the_same_products_and_moves_the_scores() -> None:
    query, keys = value(0, 1, 4, 64, 32), value(1, 1, 4, 64, 32)
    call = Operation("scaled_dot_product_attention", (query, keys, keys), (value(2, 1, 4, 64, 32),), {}, False)
    fused, separate = (kernels_of([call], "amp", False, torch=version) for version in (200, 113))
    flops = [column(each, "flops")[np.isin(each.kind, PRODUCTS)].sum() for each in (fused, separate)]
    assert flops[0] == flops[1] == 4 * 4 * 64 * 64 * 32
    names = [CLASSES[kind] for kind in separate.kind]
    assert [name for name in names if name != "cast"] == ["matmul", "multiply", "softmax", "matmul"]
    softmax = names.index("softmax")
    assert column(separate, "bytes written")[softmax] == 2 * column(separate, "bytes read")[softmax]  # in 32 bits
    assert column(separate, "inner")[softmax] == 64


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


def test_equal_kernels_count_as_many() -> None:
    kernels = kernels_of(convolutions(1, 1, 1), "fp32", False)
    merged = kernels.merged()
    assert (len(kernels.kind), len(merged.kind), merged.repeats.tolist()) == (3, 1, [3])
    setting, machine = Setting("rtx3090", "infer", "fp32", False, 291, False), machine_of("rtx3090")
    assert kernel_times(merged, 4, machine).sum(1) == pytest.approx(kernel_times(kernels, 4, machine).sum(1))
    for first, second in zip(row_of(kernels, 4, 32, setting), row_of(merged, 4, 32, setting), strict=True):
        assert first == pytest.approx(second)
    assert kernel_descriptors(merged, 4, setting)[0] == pytest.approx(kernel_descriptors(kernels, 4, setting)[0])
