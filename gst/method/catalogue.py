"""All segments of the graphs of a step in one list, and the key of each in the embedding table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from gst.graphs.segments import SegmentedGraph


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Segments of `graphs`, those of one graph after those of another.

    Args:
        graph: which of the graphs each segment belongs to.
        number: which segment of that graph it is.
        rows: nodes it holds, context included.
        node_counts: nodes it owns.
        configurable: whether it holds a configurable node. The others are the same under every configuration.
    """

    graphs: tuple[SegmentedGraph, ...]
    graph: Int64[Tensor, " segments"]
    number: Int64[Tensor, " segments"]
    rows: Int64[Tensor, " segments"]
    node_counts: Int64[Tensor, " segments"]
    configurable: Bool[Tensor, " segments"]

    @staticmethod
    def of(graphs: Sequence[SegmentedGraph]) -> Catalogue:
        """Raises:
        ValueError: one of `graphs` is no `SegmentedGraph`.
        """
        for position, graph in enumerate(graphs):
            if not isinstance(graph, SegmentedGraph):
                given = type(graph).__name__
                raise ValueError(f"graph {position} is a {given}; want it cut into segments: gst.segment(graph)")

        def together(arrays: list[np.ndarray]) -> Tensor:
            return torch.from_numpy(np.concatenate(arrays))

        return Catalogue(
            tuple(graphs),
            together([np.full(graph.num_segments, g) for g, graph in enumerate(graphs)]),
            together([np.arange(graph.num_segments) for graph in graphs]),
            together([np.diff(graph.row_ptr) for graph in graphs]),
            together([graph.owned_counts for graph in graphs]),
            together([np.diff(graph.config_ptr) > 0 for graph in graphs]),
        )

    def __len__(self) -> int:
        return len(self.graph)

    @property
    def graph_node_counts(self) -> Int64[Tensor, " graphs"]:
        return torch.tensor([graph.num_nodes for graph in self.graphs])

    def picks(self, segments: Int64[Tensor, " chosen"]) -> list[tuple[int, int]]:
        """(graph, number) of each of `segments`, as `assemble` takes them."""
        return list(zip(self.graph[segments].tolist(), self.number[segments].tolist(), strict=True))

    def chunks(
        self, segments: Int64[Tensor, " chosen"], num_configs: int, max_rows: int
    ) -> Iterator[Int64[Tensor, " chunk"]]:
        """`segments` in stretches of at most `max_rows` (node, configuration) pairs, one segment being the least."""
        costs = (self.rows * torch.where(self.configurable, num_configs, 1))[segments]
        start, filled = 0, 0
        for stop, cost in enumerate(costs.tolist()):
            if stop > start and filled + cost > max_rows:
                yield segments[start:stop]
                start, filled = stop, 0
            filled += cost
        if start < len(segments):
            yield segments[start:]


class KeyAllocator:
    """Table keys of all (segment, configuration) pairs of the data, allocated when a graph is first met. A segment
    without configurable nodes has one key for all configurations. A graph is identified by its name."""

    def __init__(self) -> None:
        self.num_keys = 0
        self._first: dict[str, int] = {}
        self._sizes: dict[str, int] = {}

    def keys(self, catalogue: Catalogue, configs: Int64[Tensor, "graphs configs"]) -> Int64[Tensor, "segments configs"]:
        """-1 for padding.

        Raises:
            ValueError: a graph bears the name of another one.
        """
        sizes = torch.where(
            catalogue.configurable, torch.tensor([g.num_configs for g in catalogue.graphs])[catalogue.graph], 1
        )
        ends = sizes.cumsum(0)
        totals = torch.zeros(len(catalogue.graphs), dtype=torch.long).index_add(0, catalogue.graph, sizes)
        first = [self._place(graph.name, int(total)) for graph, total in zip(catalogue.graphs, totals, strict=True)]
        shift = torch.tensor(first) - (totals.cumsum(0) - totals)
        starts = ends - sizes + shift[catalogue.graph]
        chosen = configs[catalogue.graph]
        keys = starts[:, None] + torch.where(catalogue.configurable[:, None], chosen, 0)
        return torch.where(chosen >= 0, keys, -1)

    def _place(self, name: str, size: int) -> int:
        if name not in self._first:
            self._first[name], self._sizes[name] = self.num_keys, size
            self.num_keys += size
        if self._sizes[name] != size:
            raise ValueError(
                f"two graphs are named {name!r} (with {self._sizes[name]} and {size} table rows); the table tells "
                f"graphs apart by their names, so give each its own"
            )
        return self._first[name]

    def state_dict(self) -> dict[str, list[int]]:
        return {name: [first, self._sizes[name]] for name, first in self._first.items()}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        self._first = {name: first for name, (first, _) in state.items()}
        self._sizes = {name: size for name, (_, size) in state.items()}
        self.num_keys = sum(self._sizes.values())
