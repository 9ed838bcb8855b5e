"""Sizes to which the steps of a training are padded, so that all of them have the same shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64

from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch

LOOPS_A_NODE = 64  # edges of padding, all of them from a node to itself, that a padding node has at most


class NoFixedShapes(ValueError):
    """Steps of a model cannot have fixed shapes; the message says why."""


@runtime_checkable
class Plans(Protocol):
    """Makes what an encoder works out from a batch on the host (`SegmentBatch.plans`), in tensors of fixed shapes."""

    def of(self, batch: SegmentBatch, pinned: bool = False) -> Mapping[Any, Any]:
        """The plans of a batch that is on the host and not padded.

        Args:
            pinned: put them in memory that an accelerator can fetch from while the host goes on.

        Raises:
            ValueError: they are larger than the sizes they are padded to.
        """

    def put(self, plans: Mapping[Any, Any], batch: SegmentBatch) -> None:
        """Make them the plans of the padded `batch`. The first time they are moved to its device; later ones are copied
        into the tensors of the first."""


class Sizes(NamedTuple):
    """The size to which every step of a training is padded.

    Args:
        nodes, edges, configurable, segments: of the padded batch (`SegmentBatch.padded_to`). One segment at least is
            padding, and a node for each segment of padding and for every `LOOPS_A_NODE` edges of it.
        graphs, configs: of the padded predictions.
        plans: makes the plans of an encoder that takes a `SegmentBatch`; None for other encoders.

    Examples:
        >>> import gst
        >>> path = gst.Graph(np.zeros((6, 1), np.float32), np.stack([np.arange(5), np.arange(1, 6)]))
        >>> Sizes.of([gst.segment(path, 3, "contiguous")] * 4, num_graphs=2, num_fresh=1, num_configs=7)
        Sizes(nodes=7, edges=2, configurable=0, segments=3, graphs=2, configs=7, plans=None)
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
        """The size that fits every step of `num_graphs` of the graphs or fewer, with `num_fresh` fresh segments of each
        and `num_configs` configurations or fewer.

        Args:
            encoder: an encoder that takes a `SegmentBatch`; it needs `Plans`, which its method
                `fixed_plans(sizes, graphs, num_fresh)` makes. Encoders of `gst.nn` have this method. It reads the edges
                of all segments.

        Raises:
            NoFixedShapes: the shapes of a layer of the encoder change from step to step.
        """
        most = largest_sums(graphs, num_fresh, lambda graph: np.stack(
            [np.diff(graph.row_ptr), np.diff(graph.edge_ptr), np.diff(graph.config_ptr), np.ones(graph.num_segments)], 1
        ))  # fmt: skip
        nodes, edges, configurable, segments = (num_graphs * most).tolist()  # a step may hold one graph several times
        padding = segments + 1 + edges // LOOPS_A_NODE
        sizes = Sizes(nodes + padding, edges, configurable, segments + 1, num_graphs, num_configs)
        plans = plan_maker(encoder)
        return sizes if plans is None else sizes._replace(plans=plans(sizes, graphs, num_fresh))


def plan_maker(encoder: object) -> Callable[[Sizes, Sequence[SegmentedGraph], int], Plans] | None:
    """The method `fixed_plans` of an encoder, also of a compiled one; None if it has none."""
    return getattr(getattr(encoder, "_orig_mod", encoder), "fixed_plans", None)


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
