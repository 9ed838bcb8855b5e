"""Compiled kernels of pooling on a CPU: states of nodes go in, with the row of each configuration; sums or maxima of
segments and their gradients come out. A row that all configurations share is read once."""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from gst.util.compiled import compiled


@compiled
@no_type_check
def _varies(rows):
    """True if a node has more than one row."""
    for row in rows:  # noqa: SIM110 - numba knows no generators
        if row != rows[0]:
            return True
    return False


@compiled
@no_type_check
def sum_forward(rows, row_of, segment, out):
    """Add up rows; a row common to all configurations is added once for its segment, and then to each of them."""
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
def sum_backward(gradient, row_of, segment, rows_gradient):
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
def max_forward(rows, row_of, segment, out):
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
def count_largest(rows, row_of, segment, out, holders):
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
def max_backward(rows, row_of, segment, out, shares, rows_gradient):
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
