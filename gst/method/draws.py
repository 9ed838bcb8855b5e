"""Draws of one training step, made before any segment is read: fresh segments, dropout, and the weights of both.

With h_j the embedding of segment j now, g_j its row and q_j its probability to be fresh, the difference estimator
sum_j g_j + sum_{j fresh} (h_j - g_j) / q_j has no bias (Saerndal et al., Model Assisted Survey Sampling, 1992,
chapters 3 and 6) and the variance sum_j (1 - q_j) / q_j |h_j - g_j|^2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from embedding_cache.table import KeyRanges
from gst.graphs.config_classes import config_classes
from gst.graphs.segments import SegmentedGraph
from gst.method.batch import check_alike


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
) -> Int64[Tensor, "segments configs"]:
    """Return the keys of all (segment, configuration) pairs in an embedding table; -1 for padding.

    A segment without configurable nodes has one key for all configurations, and with `by_class` configurations that
    give a segment the same features share one. Keys belong to the content of a graph and its cut, whatever its name.
    `ranges` of the table allocate them; `slot` is the number of the encoder.

    Raises:
        ValueError: two graphs have one fingerprint.
    """
    keys = []
    of_graph = catalogue.configurable.split([graph.num_segments for graph in catalogue.graphs])
    for graph, configurable, chosen in zip(catalogue.graphs, of_graph, configs.clamp(min=0).numpy(), strict=True):
        if by_class:
            classes = config_classes(graph)
            counts, numbers = classes.counts, classes.of(chosen)
        else:
            counts = np.where(configurable.numpy(), graph.num_configs, 1)
            numbers = np.where(counts[:, None] > 1, chosen[None, :], 0)
        starts = counts.cumsum() - counts
        first = ranges.first_key(slot, graph.fingerprint, int(counts.sum()), _sizes_of(graph))
        keys.append(torch.from_numpy(first + starts[:, None] + numbers))
    return torch.where(configs[catalogue.graph] >= 0, torch.cat(keys), -1)


def _sizes_of(graph: SegmentedGraph) -> str:
    rows, edges = graph.node_features.shape[0], graph.edges.shape[1]
    return f"{graph.num_segments} segments, {rows} rows, {edges} edges, {graph.num_configs} configurations"


def choose_fresh(num_segments: int, num_fresh: int, generator: torch.Generator) -> Bool[Tensor, " segments"]:
    """Mark min(num_fresh, num_segments) segments True, drawn uniformly without replacement."""
    fresh = torch.zeros(num_segments, dtype=torch.bool)
    if num_fresh >= num_segments:
        return ~fresh
    fresh[torch.randperm(num_segments, generator=generator)[:num_fresh]] = True
    return fresh


def choose_kept(
    fresh: Bool[Tensor, " segments"], keep_probability: float, generator: torch.Generator, fixed_number: bool = False
) -> Bool[Tensor, " segments"]:
    """Mark each segment True with `keep_probability`: Stale Embedding Dropout (Cao et al. 2023, section 3.3).

    The paper draws each independently. `fixed_number` keeps the same number of segments that are not `fresh` in every
    step (one of the nearest two where p times their number is no integer): their sum varies less.
    """
    if not fixed_number:
        return torch.rand(len(fresh), generator=generator) < keep_probability
    stale = (~fresh).nonzero().squeeze(1)
    number = int(keep_probability * len(stale) + float(torch.rand(1, generator=generator, dtype=torch.float64)))
    kept = torch.zeros_like(fresh)
    kept[stale[torch.randperm(len(stale), generator=generator)[:number]]] = True
    return kept


def generator_for(*numbers: int) -> torch.Generator:
    """Return a generator that depends on `numbers` (a seed, an epoch, a graph ...) and on nothing else."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = ((state ^ number) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return torch.Generator().manual_seed(state % 2**63)


Estimate = Literal["auto", "fresh", "dropout", "fixed_dropout", "difference", "regression", "composite"]
MAXIMA = ("max", "softmax")  # readouts that no correction, which may be negative, can be added to
ALL_ROWS = ("difference", "regression", "composite")  # estimates that use every row


def checked_estimate(
    pooling: str, num_fresh: int, keep_probability: float, has_table: bool, estimate: Estimate
) -> Estimate:
    """Return the estimate that `auto` stands for, or the given one.

    Raises:
        ValueError: a setting of `GraphSegmentTraining` is out of range, or two of them exclude each other.

    Examples:
        >>> checked_estimate("mean", 1, 1.0, True, "auto")
        'difference'
    """
    if not isinstance(num_fresh, int | np.integer):
        raise ValueError(f"num_fresh is {num_fresh!r}; want a whole number of segments, from 1")
    if num_fresh < 1:
        raise ValueError(f"num_fresh is {num_fresh}; a step needs at least one fresh segment per graph")
    if not 0.0 <= keep_probability <= 1.0:
        raise ValueError(f"keep_probability is {keep_probability}; it is a probability, from 0 to 1")
    if estimate not in get_args(Estimate):
        raise ValueError(f"estimate is {estimate!r}; use one of {', '.join(get_args(Estimate))}")
    if estimate == "fresh" and has_table:
        raise ValueError("estimate='fresh' leaves out what the table would give; use one of the two")
    if estimate == "auto":
        return "difference" if has_table and keep_probability == 1 and pooling not in MAXIMA else "dropout"
    if estimate in ALL_ROWS and keep_probability < 1:
        raise ValueError(f"keep_probability is {keep_probability}; estimate={estimate!r} uses all rows: leave it 1")
    if estimate in ALL_ROWS and pooling in MAXIMA:
        raise ValueError(f"estimate={estimate!r} corrects a sum, and pooling={pooling!r} is none; use 'sum' or 'mean'")
    return estimate


class SegmentWeights(NamedTuple):
    """Weights of fresh embeddings and of rows in the pooled embedding of a graph; 0 where there is none."""

    fresh: Float[Tensor, "segments configs"]
    stale: Float[Tensor, "segments configs"]


def dropout_weights(
    fresh: Bool[Tensor, " segments"],
    inclusion: Float[Tensor, " segments"],
    is_known: Bool[Tensor, "segments configs"],
    kept: Bool[Tensor, " segments"],
    keep_probability: float,
) -> SegmentWeights:
    """Return the weights of Stale Embedding Dropout (Cao et al. 2023, section 3.3, equation 1) for J segments, S fresh.

    A known stale segment is `kept` with probability p and weight 1; a known fresh one weighs p + (1 - p) / q, where q
    is its `inclusion` (S / J for uniform draws). An unknown segment, one without a row, counts only while it is fresh,
    and weighs 1 / q. So the expected weight of every segment is 1. The estimate has no bias if rows are what the
    encoder would compute now, and with p = 0 whatever the rows are.

    Examples:
        >>> fresh, kept = torch.tensor([True, False, False]), torch.tensor([False, True, False])
        >>> is_known = torch.ones(3, 1, dtype=torch.bool)
        >>> weights = dropout_weights(fresh, torch.full((3,), 1 / 3), is_known, kept, keep_probability=0.5)
        >>> weights.fresh.squeeze(1), weights.stale.squeeze(1)
        (tensor([2., 0., 0.]), tensor([0., 1., 0.]))
    """
    scale = inclusion.reciprocal()[:, None]
    when_fresh = torch.where(is_known, keep_probability + (1 - keep_probability) * scale, scale)
    stale = (is_known & (kept & ~fresh)[:, None]).to(when_fresh.dtype)
    return SegmentWeights(when_fresh * fresh[:, None], stale)


@dataclass(frozen=True, eq=False)
class Peers:
    """The graphs of one step over all processes, graph i in process i % world_size; an idle one recomputes graph 0."""

    rank: int
    world_size: int
    graphs: tuple[SegmentedGraph, ...]
    configs: Int64[Tensor, "graphs configs"]
    targets: Float64[Tensor, "graphs configs"]

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
    estimate: Estimate = "dropout",
    rank: int = 0,
) -> Draw:
    """Draw `num_fresh` segments of each graph uniformly (Cao et al. 2023), and those that dropout keeps; the same for
    equal arguments.

    Args:
        estimate: `fixed_dropout` keeps the same number of segments in every step.
        rank: of a process that draws for its own graphs alone, so that processes draw differently.
    """
    own = (rank,) if rank else ()
    generator, counts = generator_for(seed, number, 0, *own), [graph.num_segments for graph in catalogue.graphs]
    chosen = [choose_fresh(count, num_fresh, generator) for count in counts]
    chances = [torch.full((count,), min(1.0, num_fresh / count), dtype=torch.float64) for count in counts]
    dropout = generator_for(seed, number, 1, *own)
    kept = [choose_kept(each, keep_probability, dropout, estimate == "fixed_dropout") for each in chosen]
    return Draw(catalogue, configs, torch.cat(chosen), torch.cat(chances), torch.cat(kept), number)


def scale_gradient(embedded: Tensor, weights: Tensor) -> Tensor:
    """Return the same values, with their gradients times `weights` (one for each segment and configuration)."""
    scale = weights.to(embedded, non_blocking=True)[..., None]
    return embedded.detach() + (embedded - embedded.detach()) * scale


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
