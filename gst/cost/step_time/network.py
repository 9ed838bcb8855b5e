"""Network over the kernels of a program: how many times longer than at peak rates each takes, from its shapes.

time = sum over kernels and terms of (time at peak rates) x exp(network(kernel, setting) + scale(table, class, term))

The network is shared by all tables, so that what one table says about a window or a narrow product serves the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from gst.cost.step_time.kernels import CLASSES, Kernels
from gst.cost.step_time.machines import Machine, machine_of
from gst.cost.step_time.rows import TERMS, Setting, kernel_descriptors, kernel_times

LEAST, MOST = -4.0, 5.0  # logarithms of how many times longer than at peak rates
ROWS = 512  # programs whose kernels are worked out at once


class Network(NamedTuple):
    """Two layers with a sum around the second; codes of classes and tables beside the descriptors of a kernel.

    Args:
        least, most: of each descriptor in training; what lies outside is taken for the nearer of the two.
        lowest, highest: of the logarithms that it gave each class and term in training; no others are given.
        classes: code of each class of kernels.
        tables: code of each table.
        base: logarithm of each class and term that the network adds to.
        scale: the same of each table.
        first, second, last: matrices, one output a column.
        first_bias, second_bias, last_bias: what is added to them.
    """

    least: Float64[np.ndarray, " descriptors"]
    most: Float64[np.ndarray, " descriptors"]
    lowest: Float64[np.ndarray, "classes terms"]
    highest: Float64[np.ndarray, "classes terms"]
    classes: Float64[np.ndarray, "classes code"]
    tables: Float64[np.ndarray, "tables code"]
    base: Float64[np.ndarray, "classes terms"]
    scale: Float64[np.ndarray, "tables classes terms"]
    first: Float64[np.ndarray, "inputs hidden"]
    first_bias: Float64[np.ndarray, " hidden"]
    second: Float64[np.ndarray, "hidden hidden"]
    second_bias: Float64[np.ndarray, " hidden"]
    last: Float64[np.ndarray, "hidden terms"]
    last_bias: Float64[np.ndarray, " terms"]

    def log_factors(
        self, kind: Int64[np.ndarray, " kernels"], descriptors: Float64[np.ndarray, "kernels descriptors"],
        tables: Sequence[int],
    ) -> Float64[np.ndarray, "kernels terms"]:  # fmt: skip
        """Logarithm of what the time at peak rates of each kernel is multiplied by, in a setting like some tables."""
        code, scale = self.tables[list(tables)].mean(0), self.scale[list(tables)].mean(0)
        bounded = np.clip(descriptors, self.least, self.most)
        inputs = np.concatenate([bounded, self.classes[kind], np.tile(code, (len(kind), 1))], 1)
        hidden = _silu(inputs @ self.first + self.first_bias)
        hidden = hidden + _silu(hidden @ self.second + self.second_bias)
        factors = hidden @ self.last + self.last_bias + self.base[kind] + scale[kind]
        return np.clip(factors, self.lowest[kind], self.highest[kind])


def _silu(array: np.ndarray) -> np.ndarray:
    return np.asarray(array / (1 + np.exp(-np.clip(array, -60, 60))))


def network_times(
    networks: Sequence[Network], programs: Sequence[tuple[Kernels, int]], settings: Sequence[Setting],
    tables: dict[Setting, list[int]], machine: Machine | None = None,
) -> Float64[np.ndarray, "rows terms"]:  # fmt: skip
    """Milliseconds by term and class of kernels, flattened, averaged over networks: (rows, TERMS * classes).

    Args:
        programs: kernels and batch of each row.
        settings: of each row.
        tables: places of the tables that a setting is like.
        machine: of all rows; None = that of the setting.
    """
    result = np.zeros((len(programs), TERMS, len(CLASSES)))
    for setting in set(settings):
        chosen = [place for place, each in enumerate(settings) if each == setting]
        rates = machine or machine_of(setting.machine)
        for begin in range(0, len(chosen), ROWS):
            part = chosen[begin : begin + ROWS]
            kernels = [programs[place] for place in part]
            kind = np.concatenate([each.kind for each, _ in kernels])
            times = np.concatenate([kernel_times(each, batch, rates) for each, batch in kernels], 1)
            described = np.concatenate([kernel_descriptors(each, batch, setting, rates) for each, batch in kernels])
            factors = np.mean([np.exp(each.log_factors(kind, described, tables[setting])) for each in networks], 0)
            row = np.repeat(part, [len(each.kind) for each, _ in kernels])
            for term in range(TERMS):
                np.add.at(result[:, term], (row, kind), times[term] * factors[:, term])
    return result.reshape(len(programs), -1)
