"""Control of a learned model: ridge regression on features summed over each graph, which a network should beat.

The features of a configuration are sums over nodes: node features, counts of opcodes, and counts of the values of each
configuration feature, by opcode where opcodes and values are few. None of them shows an edge.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf

import numpy as np
from jaxtyping import Float64
from scipy.stats import rankdata
from torch import Tensor

from gst.cost.losses import CLASSES
from gst.cost.metrics import evaluate
from gst.graphs.segments import SegmentedGraph

Part = Sequence[tuple[SegmentedGraph, Tensor]]
"""Graphs, each with the numbers of some of its configurations."""

Features = Float64[np.ndarray, "configs features"]
Goals = Float64[np.ndarray, "configs outputs"]
Regress = Callable[[Features, Goals], Callable[[Features], Goals]]
VALUES = 16  # of whole-numbered configuration features, -1 (padding) and more; greater ones count as the greatest
BY_OPCODE = 1024  # most columns of counts by opcode
AT_ONCE = 1 << 22  # values of configuration features
MOST_FEATURES = 2_000
MOST_VALUES = 1 << 25  # of the features of all training configurations, which are evenly thinned
PENALTIES = 10.0 ** np.arange(-3, 4)  # of ridge regression, times the number of configurations


def control_metrics(
    loss: str, training: Part, held_out: Part, seconds: float = inf, regress: Regress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:  # fmt: skip
    """Fit a regression on the training part, and return its metrics on another part (`gst.cost.metrics.evaluate`).

    It predicts classes with `cross_entropy`, logarithms with `log_runtime`, values with `squared_error`, and with every
    other loss the place of a configuration among those of its graph.

    Args:
        seconds: the result is empty if the features of the training part take longer, if there are more than
            `MOST_FEATURES`, and for graphs with several targets.
        regress: `ridge` unless given.

    Examples:
        >>> import torch, gst
        >>> from gst.data.synthetic import synthetic_program
        >>> graph, configs = gst.segment(synthetic_program(100, 60, num_regions=1), max_nodes=50), torch.arange(60)
        >>> sorted(control_metrics("log_runtime", [(graph, configs[:40])], [(graph, configs[40:])]))[:2]
        ['median_error', 'ordered_pairs']
    """
    graphs = [graph for graph, _ in [*training, *held_out]]
    opcodes = 1 + max(int(graph.opcodes.max(initial=0)) for graph in graphs)
    width = max(num_features(graph, opcodes) for graph in graphs)
    if width > MOST_FEATURES or any(graph.targets.ndim > 1 for graph in graphs):
        return {}
    ends, total = clock() + seconds, sum(len(configs) for _, configs in training)
    stride = -(-total * width // MOST_VALUES)
    goals = _goals(loss, [graph.targets[configs[::stride].numpy()] for graph, configs in training])

    def check() -> None:
        if clock() > ends:
            raise TimeoutError

    try:
        known = [summed_features(graph, configs[::stride].numpy(), opcodes, check) for graph, configs in training]
    except TimeoutError:
        return {}
    predict = (regress or ridge)(np.concatenate(known), goals)
    scored = []
    for graph, configs in held_out:
        features, targets = summed_features(graph, configs.numpy(), opcodes), graph.targets[configs.numpy()]
        real, scores = ~np.isnan(targets), predict(features)
        if real.any():
            scored.append((scores[real] if loss in CLASSES else scores[real, 0], targets[real]))
    return evaluate(loss, scored)


def num_features(graph: SegmentedGraph, opcodes: int) -> int:
    """Return the number of features of each configuration of a graph."""
    channels, is_whole = graph.config_features.shape[2], graph.config_features.dtype.kind in "iub"
    values = channels * _num_groups(graph, opcodes) * (VALUES if is_whole else 1)
    return graph.node_features.shape[1] + opcodes + values


def _num_groups(graph: SegmentedGraph, opcodes: int) -> int:
    """Return the number of groups in which configuration features are counted: one for each opcode, or one."""
    return opcodes if opcodes * graph.config_features.shape[2] * VALUES <= BY_OPCODE else 1


def summed_features(
    graph: SegmentedGraph, configs: np.ndarray, opcodes: int, check: Callable[[], None] = lambda: None
) -> Features:
    """Return the features of configurations of a graph.

    Args:
        opcodes: number of opcodes, equal for graphs that are compared.
        check: called often; it may raise an exception to end the work.
    """
    sums, kinds = np.zeros(graph.node_features.shape[1]), np.zeros(opcodes)
    for first, owned in zip(graph.row_ptr[:-1], graph.owned_counts, strict=True):
        check()
        rows = slice(first, first + owned)
        sums += graph.node_features[rows].sum(0, dtype=np.float64)
        kinds += np.bincount(graph.opcodes[rows], minlength=opcodes)
    columns, channels = graph.config_features.shape[1:]
    num_groups, groups = _num_groups(graph, opcodes), np.zeros(columns, np.int32)
    if num_groups > 1:
        owners = np.repeat(graph.row_ptr[:-1], np.diff(graph.config_ptr))
        groups[graph.config_columns] = graph.opcodes[graph.config_rows + owners]
    common = len(sums) + opcodes
    result = np.zeros((len(configs), num_features(graph, opcodes)))
    result[:, :common] = np.r_[sums, kinds]
    parts = max(1, min(len(configs), len(configs) * columns * channels // AT_ONCE))
    for part in np.array_split(np.arange(len(configs)), parts):
        for some in np.array_split(np.arange(columns), max(1, columns * channels // AT_ONCE)):
            check()
            values = np.asarray(graph.config_features[configs[part, None], some[None]])
            result[part, common:] += _counts(values, groups[some], num_groups)
    return result


def _counts(values: np.ndarray, groups: np.ndarray, num_groups: int) -> Features:
    """Count values (configs, columns, channels) by channel and group of columns; sum them if they are fractions."""
    configs, _, channels = values.shape
    is_whole = values.dtype.kind in "iub"
    bins = num_groups * (VALUES if is_whole else 1)
    result = np.zeros((configs, channels, bins))
    offsets = np.arange(configs)[:, None] * bins
    for channel in range(channels):
        each = values[:, :, channel].astype(np.int64 if is_whole else np.float64)
        keys = offsets + (groups * VALUES + np.clip(each, -1, VALUES - 2) + 1 if is_whole else groups)
        weights = None if is_whole else each.ravel()
        result[:, channel] = np.bincount(keys.ravel(), weights, configs * bins).reshape(configs, bins)
    return result.reshape(configs, channels * bins)


def _goals(loss: str, targets: Sequence[np.ndarray]) -> Goals:
    """Return the goals of a regression for each loss, see `control_metrics`."""
    together = np.concatenate(targets)
    if loss in CLASSES:
        classes = np.arange(np.nanmax(together, initial=0) + 1)
        return np.where(np.isnan(together)[:, None], np.nan, together[:, None] == classes)
    if loss == "log_runtime":
        return np.log(together)[:, None]
    if loss == "squared_error" or all(len(each) == 1 for each in targets):
        return together[:, None]
    places = np.full(len(together), np.nan)
    start = 0
    for each in targets:
        real = np.flatnonzero(~np.isnan(each))
        places[start + real] = (rankdata(each[real]) - (len(real) + 1) / 2) / max(len(real), 1)
        start += len(each)
    return places[:, None]


def ridge(features: Features, goals: Goals) -> Callable[[Features], Goals]:
    """Return the ridge regression of goals on standardised features; goals that are NaN are left out.

    The penalty has the least generalised cross-validation error (Golub, Heath and Wahba 1979)."""
    real = ~np.isnan(goals).any(1)
    features, goals = features[real], goals[real]
    center, scale = features.mean(0), features.std(0)
    scale[scale <= 1e-9 * (1 + np.abs(center))] = inf  # a constant column
    design, middle = (features - center) / scale, goals.mean(0)
    squares, vectors = np.linalg.eigh(design.T @ design)
    squares, projected = squares.clip(0), vectors.T @ (design.T @ (goals - middle))
    best, weights = inf, np.zeros((features.shape[1], goals.shape[1]))
    for penalty in PENALTIES * len(goals):
        tried = vectors @ (projected / (squares + penalty)[:, None])
        left = 1 - (squares / (squares + penalty)).sum() / len(goals)
        error = np.square(goals - middle - design @ tried).mean() / max(left, 1e-9) ** 2
        if error < best:
            best, weights = error, tried
    return lambda each: ((each - center) / scale) @ weights + middle
