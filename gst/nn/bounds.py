"""Bounds of a sharing plan: how many rows and messages it can have, whatever segments and configurations are drawn.

Most states of a large step are equal, so that it needs half or a quarter of these. Where a step may exceed its bounds
(`Sizes.likely`), they come from steps that were drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Int64

from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch
from gst.method.fixed_batch import Sizes, largest_sums
from gst.nn.sparse import rounded

PADDING_A_ROW = 64  # entries without weight that an unused row takes at most: a kernel adds those of one row in turn
SMALL, MARGIN = 1 << 10, 1.125  # further rows in likely bounds, at least, and times those of the steps drawn
Direction = Literal["forward", "backward"]
Part = Literal["own", "forward", "backward"]
"""Where a message comes from: the node itself, those whose values it consumes, or those that consume its values."""

PARTS = get_args(Part)


class PlanOptions(NamedTuple):
    """Settings of an encoder that its plans depend on (`Sharing.of`)."""

    num_layers: int
    directions: tuple[Direction, ...]
    share: bool = True


class Bounds(NamedTuple):
    """Sizes to which a plan of a padded batch is padded.

    Args:
        pairs: pairs of a configurable node and a configuration.
        rows: before the first layer and after each: so many more than can be in use that no unused row has more than
            `PADDING_A_ROW` of the entries that are padding.
        entries: of the matrices of each layer, by part; one of the own part alone has an entry in each row.
        most: rows and messages that there can be because configurations differ, in the order of `_more`.
    """

    pairs: int
    rows: tuple[int, ...]
    entries: tuple[Mapping[Part, int], ...]
    most: tuple[int, ...]

    @staticmethod
    def of(
        options: PlanOptions,
        sizes: Sizes,
        graphs: Sequence[SegmentedGraph],
        num_fresh: int,
        drawn: Callable[[], Int64[np.ndarray, " counts"]],
    ) -> Bounds:
        """Return bounds of the plans of all steps with `num_fresh` fresh segments of at most `sizes.graphs` graphs, or
        likely ones; `drawn` returns `most` of the largest of some steps."""
        layers, configs = options.num_layers, sizes.configs
        counts = np.array([sizes.nodes] * (layers + 1) + [sizes.nodes, sizes.edges, sizes.edges] * layers)
        if options.share:
            each = largest_sums(graphs, num_fresh, partial(_of_segments, options=options))
            more = (configs - 1) * sizes.graphs * each
            if sizes.likely and more.max() > SMALL:
                more = np.minimum(more, np.maximum(np.ceil(MARGIN * drawn()), SMALL).astype(np.int64))
        else:
            more = (configs - 1) * counts
        most = counts + more
        rows, messages = most[: layers + 1], most[layers + 1 :].reshape(layers, len(PARTS))
        pairs = sizes.configurable * configs
        padding = np.append(pairs, messages.sum(axis=1)) // PADDING_A_ROW + 1
        entries = tuple(dict(zip(PARTS, each, strict=True)) for each in messages.tolist())
        return Bounds(pairs, tuple(map(rounded, (rows + padding).tolist())), entries, tuple(more.tolist()))

    def hold_any(self, batch: SegmentBatch, options: PlanOptions) -> bool:
        """Return True if the plan of a batch of the host, not padded, fits even if all states differ that may."""
        if not options.share:
            return True
        more = _more(batch.num_nodes, batch.config_nodes.numpy(), batch.edge_index.numpy(), options)
        return bool(((batch.num_configs - 1) * np.array(more) <= self.most).all())


def _of_segments(graph: SegmentedGraph, options: PlanOptions) -> Int64[np.ndarray, "segments counts"]:
    rows = []
    for segment, nodes in enumerate(np.diff(graph.row_ptr)):
        inside, uses = (slice(*each[segment : segment + 2]) for each in (graph.edge_ptr, graph.config_ptr))
        rows.append(_more(int(nodes), graph.config_rows[uses], graph.edges[:, inside], options))
    return np.array(rows)


def _more(nodes: int, configurable: np.ndarray, edges: np.ndarray, options: PlanOptions) -> list[int]:
    """Return for each further configuration the rows before the first layer and after each, then the messages of each
    layer by part: a node that a configurable one reaches has a row for every configuration."""
    producers, consumers = edges
    reached = np.zeros(nodes, bool)
    reached[configurable] = True
    rows, messages = [int(reached.sum())], list[int]()
    for _ in range(options.num_layers):
        before, reached = reached, reached.copy()
        if "forward" in options.directions:
            reached[consumers[before[producers]]] = True
        if "backward" in options.directions:
            reached[producers[before[consumers]]] = True
        rows.append(int(reached.sum()))
        messages += [rows[-1], *(int(reached[ends].sum()) for ends in (consumers, producers))]
    return rows + messages
