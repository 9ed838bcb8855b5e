"""Bounds of a sharing plan: how many rows and messages it can have, whatever segments and configurations are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int64

from gst.graphs.segments import SegmentedGraph
from gst.method.fixed_step import Sizes, largest_sums
from gst.nn.sparse import rounded

PADDING_A_ROW = 64  # entries without weight that an unused row takes at most: a kernel adds those of one row in turn
PARTS = ("own", "forward", "backward")
Direction = Literal["forward", "backward"]


class PlanOptions(NamedTuple):
    """Settings of an encoder that its plans depend on (`Sharing.of`)."""

    num_layers: int
    directions: tuple[Direction, ...]
    share: bool = True
    whole_segments: bool = False
    one_config: bool = False


class Bounds(NamedTuple):
    """Sizes to which a plan is padded.

    Args:
        given: pairs of a configurable node and a configuration.
        rows: before the first layer and after each: at least one for each of `nodes`, and so many more than can be in
            use that no unused row has more than `PADDING_A_ROW` of the entries that are padding.
        entries: of the matrices of each layer, by part.
    """

    nodes: int
    configurable: int
    segments: int
    given: int
    rows: tuple[int, ...]
    entries: tuple[Mapping[str, int], ...]

    @staticmethod
    def of(options: PlanOptions, sizes: Sizes, graphs: Sequence[SegmentedGraph], num_fresh: int) -> Bounds:
        """Return bounds of the plans of all steps with `num_fresh` fresh segments of at most `sizes.graphs` graphs."""
        configs = 1 if options.one_config else sizes.configs
        most = sizes.graphs * largest_sums(graphs, num_fresh, partial(_of_segments, options=options, configs=configs))
        given = sizes.configurable * configs
        layers = options.num_layers
        rows, messages = most[: layers + 1], most[layers + 1 :].reshape(layers, len(PARTS))
        padding = np.append(given, messages.sum(axis=1)) // PADDING_A_ROW + 1
        rows = np.maximum(rows + padding, sizes.nodes)
        return Bounds(
            sizes.nodes, sizes.configurable, sizes.segments, given, tuple(map(rounded, rows.tolist())),
            tuple(dict(zip(PARTS, each, strict=True)) for each in messages.tolist()),
        )  # fmt: skip


def _of_segments(graph: SegmentedGraph, options: PlanOptions, configs: int) -> Int64[np.ndarray, "segments counts"]:
    """Return rows of each segment before the first layer and after each, then messages of each layer by part."""
    return np.array([_of_segment(graph, segment, options, configs) for segment in range(graph.num_segments)])


def _of_segment(graph: SegmentedGraph, segment: int, options: PlanOptions, configs: int) -> list[int]:
    """A node that a configurable one reaches has a row for every configuration, and each other node has one."""
    start, stop = graph.edge_ptr[segment : segment + 2]
    producers, consumers = graph.edges[:, start:stop]
    reached = np.full(graph.row_ptr[segment + 1] - graph.row_ptr[segment], not options.share)
    reached[graph.config_rows[graph.config_ptr[segment] : graph.config_ptr[segment + 1]]] = True
    more = configs - 1
    rows, messages = [len(reached) + more * int(reached.sum())], list[int]()
    for _ in range(options.num_layers):
        before, reached = reached, reached.copy()
        if "forward" in options.directions:
            reached[consumers[before[producers]]] = True
        if "backward" in options.directions:
            reached[producers[before[consumers]]] = True
        if options.whole_segments:
            reached[:] = reached.any()
        rows.append(len(reached) + more * int(reached.sum()))
        messages += [rows[-1], *(len(producers) + more * int(reached[ends].sum()) for ends in (consumers, producers))]
    return rows + messages
