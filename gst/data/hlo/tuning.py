"""Measured layout configurations of a module, and the default one of a module that was not measured."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64, Int8, Int64

from gst.data.hlo.opcodes import CONFIGURABLE

TENSORS, DIMENSIONS = 3, 6  # layouts of output, input and kernel; sizes beyond the sixth are left out
DEFAULT = -1  # no layout asked for: the compiler chooses


def configured_nodes(opcodes: Int64[np.ndarray, " nodes"]) -> Int64[np.ndarray, " configurable"]:
    """The nodes whose layouts TpuGraphs configures: convolutions, dots and reshapes."""
    return np.flatnonzero(np.isin(opcodes, sorted(CONFIGURABLE)))


def tuned_nodes(tuning: Any, num_nodes: int) -> Int64[np.ndarray, " configurable"]:
    """The nodes that the runs of a `ModuleTuningData` configure.

    Raises:
        ValueError: one of them is not in the module.
    """
    last = max(tuning.config_index_to_node)
    if last >= num_nodes:
        raise ValueError(f"its configurations name node {last}, but nodes are 0..{num_nodes - 1}")
    return np.array(tuning.config_index_to_node, np.int64)


def configurations(
    tuning: Any, num_configurable: int
) -> tuple[Int8[np.ndarray, "configs configurable 18"], Float64[np.ndarray, " configs"]]:
    """The configurations of the runs that did not fail, padded with -1, and their runtimes in ns (the published
    `FeaturizeLayoutConfig` in tuning_data_iterator.cc). Without such a run, the default one, with the runtime NaN.

    Raises:
        ValueError: a run does not configure each of the nodes, or a layout is impossible.
    """
    runs = [run for run in tuning.runs if not run.error and run.profile.compute_time_ns > 0]
    for run in runs:
        given = len(run.module_config.layout_config.nodes)
        if given != num_configurable:
            raise ValueError(f"a run configures {given} nodes, but {num_configurable} are configurable")
    features = np.full((max(len(runs), 1), num_configurable, TENSORS * DIMENSIONS), DEFAULT, np.int8)
    for configuration, run in zip(features, runs, strict=False):
        for row, node in zip(configuration, run.module_config.layout_config.nodes, strict=True):
            _fill(row, node)
    return features, np.array([run.profile.compute_time_ns for run in runs] or [np.nan], np.float64)


def _fill(row: Int8[np.ndarray, "18"], node: Any) -> None:
    if len(node.tensors) > TENSORS:
        raise ValueError(
            f"a configuration has layouts of {len(node.tensors)} tensors of a node, want at most {TENSORS}"
        )
    for start, tensor in zip(range(0, len(row), DIMENSIONS), node.tensors, strict=False):
        dims = tensor.dims[:DIMENSIONS]
        if any(not -1 <= dim < 127 for dim in dims):
            raise ValueError(f"a configuration has the layout {list(dims)}; its entries are numbers of dimensions")
        row[start : start + len(dims)] = dims
