"""Sums and maxima over the nodes of each segment, straight from shared rows, on a CPU.

What one row says for many configurations is read where it lies, never written out for each of them. One thread does
it: others would have to share the cores with those of PyTorch, which go on spinning for a while after each product.
"""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from partitioners.compiled import compiled


class SegmentSums(torch.autograd.Function):
    """`(rows, row_of, segment, num_segments)` -> `(segments, configs, channels)`, in float32 at least: node i says
    `rows[row_of[i, c]]` of configuration c to `segment[i]`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, row_of: Tensor, segment: Tensor, num_segments: int) -> Tensor:
        ctx.shape, ctx.dtype = rows.shape, rows.dtype
        ctx.save_for_backward(row_of, segment)
        wide = _wide(rows)
        out = wide.new_zeros(num_segments, row_of.shape[1], rows.shape[1])
        _sum_forward(*_arrays(wide, row_of, segment, out))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        row_of, segment = ctx.saved_tensors
        rows_gradient = gradient.new_zeros(ctx.shape)
        _sum_backward(*_arrays(gradient, row_of, segment, rows_gradient))
        return rows_gradient.to(ctx.dtype), None, None, None


class SegmentMaxima(torch.autograd.Function):
    """The same of maxima, -inf without nodes. Equal maxima share the gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, row_of: Tensor, segment: Tensor, num_segments: int) -> Tensor:
        wide = _wide(rows)
        out = wide.new_full((num_segments, row_of.shape[1], rows.shape[1]), -torch.inf)
        _max_forward(*_arrays(wide, row_of, segment, out))
        ctx.save_for_backward(rows, row_of, segment, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        rows, row_of, segment, out = ctx.saved_tensors
        wide, holders = _wide(rows), torch.zeros_like(out)
        _count_largest(*_arrays(wide, row_of, segment, out, holders))
        rows_gradient = torch.zeros_like(wide)
        _max_backward(*_arrays(wide, row_of, segment, out, gradient / holders, rows_gradient))
        return rows_gradient.to(rows.dtype), None, None, None


def _wide(rows: Tensor) -> Tensor:
    return rows.detach().to(torch.promote_types(rows.dtype, torch.float32))


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    return [tensor.contiguous().numpy() for tensor in tensors]


@compiled
@no_type_check
def _varies(rows):
    """Whether a node has more than one row."""
    for row in rows:  # noqa: SIM110 - numba knows no generators
        if row != rows[0]:
            return True
    return False


@compiled
@no_type_check
def _sum_forward(rows, row_of, segment, out):
    """What a node says of all configurations alike is added once for its segment, and then to each of them."""
    once = np.zeros((out.shape[0], out.shape[2]), out.dtype)
    for node in range(len(row_of)):
        if not _varies(row_of[node]):
            total, row = once[segment[node]], rows[row_of[node, 0]]
            for channel in range(out.shape[2]):
                total[channel] += row[channel]
            continue
        for config in range(row_of.shape[1]):
            total, row = out[segment[node], config], rows[row_of[node, config]]
            for channel in range(out.shape[2]):
                total[channel] += row[channel]
    for place in range(out.shape[0]):
        for config in range(out.shape[1]):
            total = out[place, config]
            for channel in range(out.shape[2]):
                total[channel] += once[place, channel]


@compiled
@no_type_check
def _sum_backward(gradient, row_of, segment, rows_gradient):
    together = np.zeros((gradient.shape[0], rows_gradient.shape[1]), rows_gradient.dtype)
    for place in range(gradient.shape[0]):
        for config in range(gradient.shape[1]):
            given = gradient[place, config]
            for channel in range(rows_gradient.shape[1]):
                together[place, channel] += given[channel]
    for node in range(len(row_of)):
        if not _varies(row_of[node]):
            total, given = rows_gradient[row_of[node, 0]], together[segment[node]]
            for channel in range(rows_gradient.shape[1]):
                total[channel] += given[channel]
            continue
        for config in range(row_of.shape[1]):
            total, given = rows_gradient[row_of[node, config]], gradient[segment[node], config]
            for channel in range(rows_gradient.shape[1]):
                total[channel] += given[channel]


@compiled
@no_type_check
def _max_forward(rows, row_of, segment, out):
    """A value that is no number stays, as in PyTorch."""
    once = np.full((out.shape[0], out.shape[2]), -np.inf, out.dtype)
    for node in range(len(row_of)):
        if not _varies(row_of[node]):
            most, row = once[segment[node]], rows[row_of[node, 0]]
            for channel in range(out.shape[2]):
                value = row[channel]
                most[channel] = value if value > most[channel] or value != value else most[channel]
            continue
        for config in range(row_of.shape[1]):
            most, row = out[segment[node], config], rows[row_of[node, config]]
            for channel in range(out.shape[2]):
                value = row[channel]
                most[channel] = value if value > most[channel] or value != value else most[channel]
    for place in range(out.shape[0]):
        for config in range(out.shape[1]):
            most = out[place, config]
            for channel in range(out.shape[2]):
                value = once[place, channel]
                most[channel] = value if value > most[channel] or value != value else most[channel]


@compiled
@no_type_check
def _least_over_configs(out):
    """A node that says one thing of all configurations can be the largest for one only if it is the least of these."""
    least = out[:, 0].copy()
    for place in range(out.shape[0]):
        for config in range(1, out.shape[1]):
            for channel in range(out.shape[2]):
                least[place, channel] = min(least[place, channel], out[place, config, channel])
    return least


@compiled
@no_type_check
def _count_largest(rows, row_of, segment, out, holders):
    least = _least_over_configs(out)
    for node in range(len(row_of)):
        place = segment[node]
        if not _varies(row_of[node]):
            row = rows[row_of[node, 0]]
            for channel in range(out.shape[2]):
                if row[channel] == least[place, channel]:
                    for config in range(row_of.shape[1]):
                        if out[place, config, channel] == row[channel]:
                            holders[place, config, channel] += 1
            continue
        for config in range(row_of.shape[1]):
            row, most = rows[row_of[node, config]], out[place, config]
            count = holders[place, config]
            for channel in range(out.shape[2]):
                count[channel] += row[channel] == most[channel]


@compiled
@no_type_check
def _max_backward(rows, row_of, segment, out, shares, rows_gradient):
    least = _least_over_configs(out)
    for node in range(len(row_of)):
        place = segment[node]
        if not _varies(row_of[node]):
            row, total = rows[row_of[node, 0]], rows_gradient[row_of[node, 0]]
            for channel in range(out.shape[2]):
                if row[channel] == least[place, channel]:
                    for config in range(row_of.shape[1]):
                        if out[place, config, channel] == row[channel]:
                            total[channel] += shares[place, config, channel]
            continue
        for config in range(row_of.shape[1]):
            row, most = rows[row_of[node, config]], out[place, config]
            share, total = shares[place, config], rows_gradient[row_of[node, config]]
            for channel in range(out.shape[2]):
                total[channel] += share[channel] if row[channel] == most[channel] else 0.0
