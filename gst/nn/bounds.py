"""Bounds of a sharing plan: how many rows and messages it can have, whatever segments and configurations are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Int64

from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch
from gst.method.fixed_batch import Sizes, largest_sums
from gst.nn.sparse import rounded

PADDING_A_ROW = 64  # entries without weight that an unused row takes at most: a kernel adds those of one row in turn
Direction = Literal["forward", "backward"]
Part = Literal["own", "forward", "backward"]
"""Where a message comes from: the node itself, those whose values it consumes, or those that consume its values."""

PARTS = get_args(Part)


class PlanOptions(NamedTuple):
    """Settings of an encoder that its plans depend on (`Sharing.of`)."""

    num_layers: int
    directions: tuple[Direction, ...]
    share: bool = True
    whole_segments: bool = False
    one_config: bool = False


class Bounds(NamedTuple):
    """Sizes to which a plan of a padded batch is padded.

    Args:
        given: pairs of a configurable node and a configuration.
        rows: before the first layer and after each: so many more than can be in use that no unused row has more than
            `PADDING_A_ROW` of the entries that are padding.
        entries: of the matrices of each layer, by part.
        most: rows and messages that there can be because configurations differ (`_more`).
    """

    given: int
    rows: tuple[int, ...]
    entries: tuple[Mapping[Part, int], ...]
    most: tuple[int, ...]

    @staticmethod
    def of(options: PlanOptions, sizes: Sizes, graphs: Sequence[SegmentedGraph], num_fresh: int) -> Bounds:
        """Return bounds of the plans of all steps with `num_fresh` fresh segments of at most `sizes.graphs` graphs."""
        layers, configs = options.num_layers, 1 if options.one_config else sizes.configs
        counts = np.array([sizes.nodes] * (layers + 1) + [sizes.nodes, sizes.edges, sizes.edges] * layers)
        if options.share:
            more = sizes.graphs * largest_sums(graphs, num_fresh, partial(_of_segments, options=options))
        else:
            more = counts
        most = counts + (configs - 1) * more
        rows, messages = most[: layers + 1], most[layers + 1 :].reshape(layers, len(PARTS))
        given = sizes.configurable * configs
        padding = np.append(given, messages.sum(axis=1)) // PADDING_A_ROW + 1
        return Bounds(
            given, tuple(map(rounded, (rows + padding).tolist())),
            tuple(dict(zip(PARTS, each, strict=True)) for each in messages.tolist()), tuple(more.tolist()),
        )  # fmt: skip

    def check(self, batch: SegmentBatch, options: PlanOptions) -> None:
        """Raise ValueError if the plan of a batch of the host, not padded, can have more rows or messages."""
        more = _more(batch.segment_of_node.numpy(), batch.config_nodes.numpy(), batch.edge_index.numpy(), options)
        if options.share and any(np.greater(more, self.most)):
            raise ValueError(
                f"a plan of {max(more)} further rows does not fit into {max(self.most)}; were its graphs in the sizes?"
            )


def _of_segments(graph: SegmentedGraph, options: PlanOptions) -> Int64[np.ndarray, "segments counts"]:
    rows = []
    for segment, nodes in enumerate(np.diff(graph.row_ptr)):
        inside, uses = (slice(*each[segment : segment + 2]) for each in (graph.edge_ptr, graph.config_ptr))
        rows.append(_more(np.zeros(nodes, np.int64), graph.config_rows[uses], graph.edges[:, inside], options))
    return np.array(rows)


def _more(
    segment_of_node: Int64[np.ndarray, " nodes"], configurable: np.ndarray, edges: np.ndarray, options: PlanOptions
) -> list[int]:
    """Return for each further configuration the rows before the first layer and after each, then the messages of each
    layer by part: a node that a configurable one reaches has a row for every configuration."""
    producers, consumers = edges
    reached = np.zeros(len(segment_of_node), bool)
    reached[configurable] = True
    rows, messages = [int(reached.sum())], list[int]()
    for _ in range(options.num_layers):
        before, reached = reached, reached.copy()
        if "forward" in options.directions:
            reached[consumers[before[producers]]] = True
        if "backward" in options.directions:
            reached[producers[before[consumers]]] = True
        if options.whole_segments:
            reached = np.isin(segment_of_node, segment_of_node[reached])
        rows.append(int(reached.sum()))
        messages += [rows[-1], *(int(reached[ends].sum()) for ends in (consumers, producers))]
    return rows + messages
