"""Sizes to which the steps of a training are padded, so that all of them have the same shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64

from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch


@runtime_checkable
class Plans(Protocol):
    """What an encoder works out from a batch on the host (`SegmentBatch.plans`), in tensors of fixed shapes."""

    def of(self, batch: SegmentBatch, pinned: bool = False) -> Mapping[Any, Any]:
        """The plans of a batch of the host that is not padded; in memory that an accelerator can fetch from if they are
        to be `pinned`.

        Raises:
            ValueError: they are larger than the sizes they are padded to.
        """

    def put(self, plans: Mapping[Any, Any], batch: SegmentBatch) -> None:
        """Make them the plans of the padded `batch`: copy them into the tensors of the plans that it has, if it has
        some, and else to its device."""


class Sizes(NamedTuple):
    """To which a step is padded.

    Args:
        nodes, edges, configurable, segments: of its batch, in which one node and one segment are padding.
        graphs, configs: of its predictions.
        plans: of an encoder that takes a `SegmentBatch`.

    Examples:
        >>> import gst
        >>> path = gst.Graph(np.zeros((6, 1), np.float32), np.stack([np.arange(5), np.arange(1, 6)]))
        >>> Sizes.of([gst.segment(path, 3, "contiguous")] * 4, num_graphs=2, num_fresh=1, num_configs=7)
        Sizes(nodes=5, edges=2, configurable=0, segments=3, graphs=2, configs=7, plans=None)
    """

    nodes: int
    edges: int
    configurable: int
    segments: int
    graphs: int
    configs: int
    plans: Plans | None = None

    @staticmethod
    def of(
        graphs: Sequence[SegmentedGraph], num_graphs: int, num_fresh: int, num_configs: int, encoder: object = None
    ) -> Sizes:
        """Into which every step of at most so many of the graphs and configurations fits.

        Args:
            encoder: one that takes a `SegmentBatch`. Its method `fixed_plans(sizes, graphs, num_fresh)`, which those of
                `gst.nn` have, makes the `Plans`; it reads the edges of all segments.

        Raises:
            ValueError: layers of the encoder have other shapes in each step.
        """
        most = largest_sums(graphs, num_fresh, lambda graph: np.stack(
            [np.diff(graph.row_ptr), np.diff(graph.edge_ptr), np.diff(graph.config_ptr), np.ones(graph.num_segments)], 1
        ))  # fmt: skip
        nodes, edges, configurable, segments = (num_graphs * most).tolist()  # a step may hold one graph several times
        sizes = Sizes(nodes + 1, edges, configurable, segments + 1, num_graphs, num_configs)
        plans = getattr(getattr(encoder, "_orig_mod", encoder), "fixed_plans", None)  # of torch.compile
        return sizes if plans is None else sizes._replace(plans=plans(sizes, graphs, num_fresh))


def largest_sums(
    graphs: Sequence[SegmentedGraph], num_fresh: int, counts: Callable[[SegmentedGraph], np.ndarray]
) -> Int64[np.ndarray, " counts"]:
    """Bounds of what the fresh segments of one graph have together.

    Args:
        counts: (segments, counts) of a graph: what is counted of each segment.
    """
    return np.max(
        [np.sort(counts(graph), axis=0)[-num_fresh:].sum(axis=0) for graph in graphs], axis=0
    ).astype(np.int64)  # fmt: skip
