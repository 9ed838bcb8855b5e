"""Kernels as the rows of timm's tables have them: attention before torch 2.0, and equal kernels counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from experiments.reproductions.graphnet.reader import Operation, Value
from experiments.reproductions.timm.programs import merged, separate_attention
from experiments.reproductions.timm.step_time.captured import operators
from experiments.reproductions.timm.step_time.kernels import CLASSES, COLUMNS, Kernels, kernels_of
from experiments.reproductions.timm.step_time.machines import machine_of
from experiments.reproductions.timm.step_time.rows import Setting, kernel_descriptors, kernel_times, row_of
from gst.programs import capture_module

PRODUCTS = [place for place, name in enumerate(CLASSES) if name.startswith(("conv", "linear", "matmul", "attention"))]


def column(kernels: Kernels, name: str) -> np.ndarray:
    return kernels.columns[:, COLUMNS.index(name)]


def value(name: int, *shape: int) -> Value:
    strides = tuple(int(np.prod(shape[place + 1 :])) for place in range(len(shape)))
    return Value(name, name, shape, strides, torch.float32, False)


def convolutions(*groups: int) -> list[Operation]:
    layers = [nn.Conv2d(96, 96, 3, padding=1, groups=each) for each in groups]
    return operators(capture_module(nn.Sequential(*layers).eval(), (torch.zeros(1, 96, 32, 32),)))


def test_separate_attention_has_the_same_products_and_moves_the_scores() -> None:
    query, keys = value(0, 1, 4, 64, 32), value(1, 1, 4, 64, 32)
    call = Operation("scaled_dot_product_attention", (query, keys, keys), (value(2, 1, 4, 64, 32),), {}, False)
    fused, separate = (kernels_of(calls, "amp", False) for calls in ([call], separate_attention([call])))
    flops = [column(each, "flops")[np.isin(each.kind, PRODUCTS)].sum() for each in (fused, separate)]
    assert flops[0] == flops[1] == 4 * 4 * 64 * 64 * 32
    names = [CLASSES[kind] for kind in separate.kind]
    assert [name for name in names if name != "cast"] == ["matmul", "multiply", "softmax", "matmul"]
    softmax = names.index("softmax")
    assert names[softmax - 1] == "cast"  # to 32 bits
    assert column(separate, "bytes written")[softmax] == column(separate, "bytes read")[softmax] == 4 * 4 * 64 * 64
    assert column(separate, "inner")[softmax] == 64


def test_equal_kernels_count_as_many() -> None:
    kernels = kernels_of(convolutions(1, 1, 1), "fp32", False)
    few = merged(kernels)
    assert (len(kernels.kind), len(few.kind), few.repeats.tolist()) == (3, 1, [3])
    setting, machine = Setting("rtx3090", "infer", "fp32", False, 291, False), machine_of("rtx3090")
    assert kernel_times(few, 4, machine).sum(1) == pytest.approx(kernel_times(kernels, 4, machine).sum(1))
    for first, second in zip(row_of(kernels, 4, 32, setting), row_of(few, 4, 32, setting), strict=True):
        assert first == pytest.approx(second)
    assert kernel_descriptors(few, 4, setting)[0] == pytest.approx(kernel_descriptors(kernels, 4, setting)[0])
