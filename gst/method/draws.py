"""Graphs as a model is given them, and the draws of a training step: fresh segments, and those that dropout keeps."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from embedding_cache.table import KeyRanges
from gst.graphs.config_classes import config_classes
from gst.graphs.graph import Graph, converted, is_hetero, is_pyg, sources_of
from gst.graphs.segments import SegmentedGraph, segment
from gst.method.batch import SegmentBatch, assemble, check_alike

MOST_BYTES = 1 << 30  # of graphs that are kept
MOST_NEW, MOST_CHANGED = 5000, 50  # graphs in a row without a known one, before a warning
EDGE_NUMBER = "_edge_number"


class Entrance:
    """Turns the argument `graphs` of a model into segmented graphs; PyG's `Data` is cut once, and kept by content while
    all take at most 1 GiB, the last used ones.

    Args:
        max_nodes: of `gst.segment`.

    Examples:
        >>> from types import SimpleNamespace
        >>> data = SimpleNamespace(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> [graph.num_segments for graph in Entrance(max_nodes=2)([data])]
        [2]
    """

    def __init__(self, max_nodes: int) -> None:
        self.max_nodes = max_nodes
        self._cut: dict[str, SegmentedGraph] = {}
        self._edges: set[int] = set()
        self._num_bytes = self._num_new = self._num_changed = 0
        self._has_warned = False

    def __call__(self, graphs: Any) -> tuple[SegmentedGraph, ...]:
        """Return segmented graphs; `graphs` is a list, or a batch of PyG's `DataLoader`.

        Raises:
            ValueError: it is a single graph, or empty.
        """
        refuse_transforms()
        graphs = graphs.to_data_list() if hasattr(graphs, "to_data_list") else graphs
        if isinstance(graphs, Graph | SegmentedGraph) or is_pyg(graphs):
            raise ValueError(f"the model was given one {type(graphs).__name__}; want a list of graphs: model([graph])")
        if not isinstance(graphs, Sequence):
            raise ValueError(f"the model was given a {type(graphs).__name__}; want a list of segmented graphs or Data")
        if not graphs:
            raise ValueError("the model was given no graphs; want a list of at least one")
        return tuple(self._cut_of(each) if is_pyg(each) else each for each in graphs)

    def _cut_of(self, data: Any) -> SegmentedGraph:
        graph, sources = converted(data, with_target=False), sources_of(data)
        if not sources:
            return self._remembered(graph)
        kept = {"x": graph.node_features, **graph.node_data, **graph.edge_data}
        if is_hetero(data) or not kept.keys() >= sources.keys():
            names = ", ".join(sources if is_hetero(data) else sources.keys() - kept.keys())
            raise ValueError(
                f"{names} requires a gradient, which the model passes on to x and to tensors with a row for each node "
                "or edge of a Data with one type of nodes; detach() it"
            )
        # The cut depends on the rest alone: what is learned outside of the model changes in each step.
        blank = {name: np.zeros_like(array) if name in sources else array for name, array in kept.items()}
        cut = self._remembered(
            replace(
                graph, name="", node_features=blank["x"], node_data={name: blank[name] for name in graph.node_data},
                edge_data={EDGE_NUMBER: np.arange(graph.num_edges)} | {name: blank[name] for name in graph.edge_data},
            )
        )  # fmt: skip
        edge_ids = cut.edge_data[EDGE_NUMBER]
        differentiable = replace(
            cut, name=graph.name, node_features=graph.node_features[cut.node_ids],
            node_data={name: array[cut.node_ids] for name, array in graph.node_data.items()},
            edge_data={name: array[edge_ids] for name, array in graph.edge_data.items()},
        )  # fmt: skip
        vars(differentiable).update(sources=sources, edge_ids=edge_ids)  # `assemble` takes rows from the sources
        return differentiable

    def _remembered(self, graph: Graph) -> SegmentedGraph:
        key = graph.digest()
        if (cut := self._cut.pop(key, None)) is None:
            cut = segment(graph, self.max_nodes)
            self._num_bytes += cut.nbytes()
            self._num_new += 1
            edges = hash(graph.edges.tobytes())
            self._num_changed += edges in self._edges
            self._edges.add(edges)
            if not self._has_warned and (self._num_changed >= MOST_CHANGED or self._num_new >= MOST_NEW):
                self._has_warned = True
                warnings.warn(
                    f"the last {self._num_new} graphs were new, {self._num_changed} of them with the edges of earlier "
                    "ones: a graph that changes in each step (noise, a random transform) is cut anew, and its rows in "
                    "a table are never read again; change features in the encoder, or cut once: gst.segment(data)",
                    stacklevel=6,
                )
        else:
            self._num_new = self._num_changed = 0
        self._cut[key] = cut  # the last one used comes last
        while len(self._cut) > 1 and self._num_bytes > MOST_BYTES:
            self._num_bytes -= self._cut.pop(next(iter(self._cut))).nbytes()
        return cut

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for `copy` and `pickle`, without graphs."""
        return vars(self) | vars(Entrance(self.max_nodes))


def refuse_transforms() -> None:
    """Raise ValueError inside `torch.func.grad`, `vmap`, `jvp`, ..., and in forward mode: arrays have none of these."""
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0:
        raise ValueError(
            "the model reads graphs in NumPy, which torch.func.grad, vmap and jvp and forward mode do not follow: take "
            "torch.autograd.grad(model(graphs).sum(), inputs), with create_graph=True for second derivatives"
        )


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Segments of `graphs`, those of one graph after those of another.

    Args:
        graph, number: position of each segment's graph in `graphs`, and number of the segment within it.
        rows, node_counts: nodes of each segment with context, and without.
        configurable: True for segments with a configurable node. The others are the same under every configuration.
    """

    graphs: tuple[SegmentedGraph, ...]
    graph: Int64[Tensor, " segments"]
    number: Int64[Tensor, " segments"]
    rows: Int64[Tensor, " segments"]
    node_counts: Int64[Tensor, " segments"]
    configurable: Bool[Tensor, " segments"]

    @staticmethod
    def of(graphs: Sequence[SegmentedGraph]) -> Catalogue:
        """List the segments of `graphs`; ValueError if one of them is no `SegmentedGraph`."""
        refuse_transforms()
        for position, graph in enumerate(graphs):
            if not isinstance(graph, SegmentedGraph):
                given = type(graph).__name__
                raise ValueError(f"graph {position} is a {given}; want it cut into segments: gst.segment(graph)")
        check_alike(graphs)

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
        """Return (graph, number) of each of `segments`, as `assemble` takes them."""
        return list(zip(self.graph[segments].tolist(), self.number[segments].tolist(), strict=True))

    def chunks(
        self, segments: Int64[Tensor, " chosen"], num_configs: int, max_rows: int
    ) -> Iterator[Int64[Tensor, " chunk"]]:
        """Cut `segments` into runs of at most `max_rows` (node, configuration) pairs, or of a single segment."""
        costs = (self.rows * torch.where(self.configurable, num_configs, 1))[segments]
        start, filled = 0, 0
        for stop, cost in enumerate(costs.tolist()):
            if stop > start and filled + cost > max_rows:
                yield segments[start:stop]
                start, filled = stop, 0
            filled += cost
        if start < len(segments):
            yield segments[start:]


def table_keys(
    catalogue: Catalogue, configs: Int64[Tensor, "graphs configs"], ranges: KeyRanges, slot: int, by_class: bool
) -> Int64[Tensor, "segments entries"]:
    """Return the keys of all (segment, configuration) pairs in an embedding table; -1 for padding.

    A segment without configurable nodes has one key for all configurations, and with `by_class` configurations that
    give a segment the same features share one. If some segment then has several, the last entry of each is the key of
    its origin (`gst.method.origins`), -1 where there is none. Keys belong to the content of a graph and its cut,
    whatever its name. `ranges` of the table allocate them; `slot` is the number of the encoder.

    Raises:
        ValueError: two graphs have one fingerprint.
    """
    keys, is_padding = [], torch.nn.functional.pad(configs[catalogue.graph] < 0, (0, 1))
    of_graph = catalogue.configurable.split([graph.num_segments for graph in catalogue.graphs])
    for graph, configurable, chosen in zip(catalogue.graphs, of_graph, configs.clamp(min=0).numpy(), strict=True):
        if by_class:
            classes = config_classes(graph)
            origins = classes.counts > 1
            counts, numbers = classes.counts + origins, np.c_[classes.of(chosen), classes.counts]
        else:
            origins = np.zeros(graph.num_segments, np.bool_)
            counts = np.where(configurable.numpy(), graph.num_configs, 1)
            numbers = np.where(counts[:, None] > 1, np.append(chosen, 0)[None, :], 0)
        starts = counts.cumsum() - counts
        sizes = (
            f"{graph.num_segments} segments, {len(graph.node_features)} rows, {graph.edges.shape[1]} edges, "
            f"{graph.num_configs} configurations"
        )
        first = ranges.first_key(slot, graph.fingerprint, int(counts.sum()), sizes)
        entries = first + starts[:, None] + numbers
        entries[~origins, -1] = -1
        keys.append(torch.from_numpy(entries))
    every = torch.where(is_padding, -1, torch.cat(keys))
    return every if bool((every[:, -1] >= 0).any()) else every[:, :-1]


def choose_fresh(num_segments: int, num_fresh: int, generator: torch.Generator) -> Bool[Tensor, " segments"]:
    """Mark min(num_fresh, num_segments) segments True, drawn uniformly without replacement."""
    fresh = torch.zeros(num_segments, dtype=torch.bool)
    if num_fresh >= num_segments:
        return ~fresh
    fresh[torch.randperm(num_segments, generator=generator)[:num_fresh]] = True
    return fresh


def choose_kept(
    fresh: Bool[Tensor, " segments"], keep_probability: float, generator: torch.Generator
) -> Bool[Tensor, " segments"]:
    """Mark each segment True with `keep_probability`: Stale Embedding Dropout (Cao et al. 2023, section 3.3)."""
    return torch.rand(len(fresh), generator=generator) < keep_probability


def generator_for(*numbers: int) -> torch.Generator:
    """Return a generator that depends on `numbers` (a seed, an epoch, a graph ...) and on nothing else."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = ((state ^ number) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return torch.Generator().manual_seed(state % 2**63)


@dataclass(frozen=True, eq=False)
class Peers:
    """The graphs of one step over all processes, graph i in process i % world_size; an idle one recomputes graph 0."""

    rank: int
    world_size: int
    graphs: tuple[SegmentedGraph, ...]
    configs: Int64[Tensor, "graphs configs"]
    targets: Float64[Tensor, "graphs configs ..."]

    @property
    def idle(self) -> bool:
        return self.rank >= len(self.graphs)

    @property
    def mine(self) -> list[int]:
        """Positions of this process's graphs in `graphs`."""
        return [0] if self.idle else list(range(self.rank, len(self.graphs), self.world_size))


@dataclass(frozen=True, eq=False)
class Draw:
    """The work of one step, decided before any segment is read.

    Args:
        configs: configurations of each graph, -1 where a graph has fewer than another.
        fresh: the segments that are encoded with gradient.
        inclusion: the probability with which each segment could be one of them.
        kept: the segments that dropout keeps if they are stale.
        number: number of the step; with the seed it decides all draws of the step.
        peers, whole: the processes that share the step, and the draw for all of them; None for one process.
    """

    catalogue: Catalogue
    configs: Int64[Tensor, "graphs configs"]
    fresh: Bool[Tensor, " segments"]
    inclusion: Float[Tensor, " segments"]
    kept: Bool[Tensor, " segments"]
    number: int
    peers: Peers | None = None
    whole: Draw | None = None

    def fresh_batch(self) -> SegmentBatch:
        """Read the fresh segments, in memory of the host."""
        picks = self.catalogue.picks(self.fresh.nonzero().squeeze(1))
        return assemble(self.catalogue.graphs, picks, self.configs)

    def part_of(self, peers: Peers) -> Draw:
        """Return the part of the draw that belongs to this process."""
        graphs = [self.catalogue.graphs[place] for place in peers.mine]
        drawn = torch.stack([self.fresh, self.kept]), self.inclusion
        by_graph = [each.split([g.num_segments for g in self.catalogue.graphs], -1) for each in drawn]
        (fresh, kept), inclusion = (torch.cat([each[place] for place in peers.mine], -1) for each in by_graph)
        configs = self.configs[peers.mine]
        return Draw(Catalogue.of(graphs), configs, fresh, inclusion, kept, self.number, peers, self)


def draw_segments(
    catalogue: Catalogue,
    configs: Int64[Tensor, "graphs configs"],
    number: int,
    seed: int,
    num_fresh: int,
    keep_probability: float,
    rank: int = 0,
) -> Draw:
    """Draw `num_fresh` segments of each graph uniformly (Cao et al. 2023), and those that dropout keeps; the same for
    equal arguments.

    Args:
        rank: of a process that draws for its own graphs alone, so that processes draw differently.
    """
    own = (rank,) if rank else ()
    generator, counts = generator_for(seed, number, 0, *own), [graph.num_segments for graph in catalogue.graphs]
    chosen = [choose_fresh(count, num_fresh, generator) for count in counts]
    chances = [torch.full((count,), min(1.0, num_fresh / count), dtype=torch.float64) for count in counts]
    dropout = generator_for(seed, number, 1, *own)
    kept = [choose_kept(each, keep_probability, dropout) for each in chosen]
    return Draw(catalogue, configs, torch.cat(chosen), torch.cat(chances), torch.cat(kept), number)


def checked_configs(graphs: Sequence[SegmentedGraph], configs: Tensor | None) -> Tensor:
    """Return `configs`, or all configurations of each graph, padded with -1; ValueError if they do not fit."""
    if configs is None:
        every = torch.arange(max(graph.num_configs for graph in graphs)).repeat(len(graphs), 1)
        return torch.where(every < torch.tensor([[graph.num_configs] for graph in graphs]), every, -1)
    if len(configs) != len(graphs):
        raise ValueError(f"configs has {len(configs)} rows for {len(graphs)} graphs; give one row for each")
    for graph, row in zip(graphs, configs, strict=True):
        if int(row.max()) >= graph.num_configs:
            raise ValueError(f"configuration {int(row.max())} of {graph.name!r}, which has {graph.num_configs}")
    return configs.cpu()
