"""What one training step does, drawn before any of it is read: the segments of its graphs, their keys in the embedding
table, fresh segments, dropout and the weights of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from embedding_cache import inclusion_probabilities, sample_by_probability
from embedding_cache.table import KeyRanges
from gst.graphs.config_classes import ConfigClasses, config_classes
from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch
from gst.method.exchange import Peers, Traffic


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
    def of(graphs: Sequence[SegmentedGraph], all_configurable: bool = False) -> Catalogue:
        """Args:
            all_configurable: configurations matter to all segments, as where layer histories cross the cuts.

        Raises:
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
            together([(np.diff(graph.config_ptr) > 0) | all_configurable for graph in graphs]),
        )

    def __len__(self) -> int:
        return len(self.graph)

    @property
    def first_nodes(self) -> Int64[Tensor, " segments"]:
        """The smallest id of the nodes that each segment owns."""
        return torch.from_numpy(np.concatenate([graph.node_ids[graph.row_ptr[:-1]] for graph in self.graphs]))

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


def table_keys(
    catalogue: Catalogue, configs: Int64[Tensor, "graphs configs"], ranges: KeyRanges, slot: int, by_class: bool
) -> Int64[Tensor, "segments configs"]:
    """Keys in an embedding table of all (segment, configuration) pairs; -1 for padding. A segment without configurable
    nodes has one key for all configurations. Keys belong to the content of a graph and its cut, whatever its name.

    Args:
        by_class: configurations that give a segment the same features share its key (`gst.graphs.config_classes`).
        ranges: of the table; the keys of a graph are allocated when it is first met.
        slot: of the encoder whose rows these are.

    Raises:
        ValueError: two graphs have one fingerprint.
    """
    keys = []
    of_graph = catalogue.configurable.split([graph.num_segments for graph in catalogue.graphs])
    for graph, configurable, chosen in zip(catalogue.graphs, of_graph, configs.clamp(min=0).numpy(), strict=True):
        apart = ConfigClasses.all_apart(configurable.numpy(), graph.num_configs)
        classes = config_classes(graph) if by_class else apart
        starts = classes.counts.cumsum() - classes.counts
        first = ranges.first_key(slot, graph.fingerprint, int(classes.counts.sum()), _sizes_of(graph))
        keys.append(torch.from_numpy(first + starts[:, None] + classes.of(chosen)))
    return torch.where(configs[catalogue.graph] >= 0, torch.cat(keys), -1)


def _sizes_of(graph: SegmentedGraph) -> str:
    rows, edges = graph.node_features.shape[0], graph.edges.shape[1]
    return f"{graph.num_segments} segments, {rows} rows, {edges} edges, {graph.num_configs} configurations"


def choose_fresh(num_segments: int, num_fresh: int, generator: torch.Generator) -> Bool[Tensor, " segments"]:
    """min(num_fresh, num_segments) segments, uniformly without replacement, marked True."""
    fresh = torch.zeros(num_segments, dtype=torch.bool)
    if num_fresh >= num_segments:
        return ~fresh
    fresh[torch.randperm(num_segments, generator=generator)[:num_fresh]] = True
    return fresh


def choose_by_strata(
    values: Shaped[Tensor, " segments"], num_fresh: int, generator: torch.Generator
) -> tuple[Bool[Tensor, " segments"], Float64[Tensor, " segments"]]:
    """Stratified draw: sort J segments by `values`, cut that order into S = min(num_fresh, J) strata of J / S segments
    (rounded up in the first strata, down in the last), and draw one segment of each, uniformly.

    A segment is drawn with probability q = 1 / (segments of its stratum), and sum_{j fresh} y_j / q_j has the
    expectation sum_j y_j; its variance is that within the strata alone (Saerndal, Swensson and Wretman, Model Assisted
    Survey Sampling, 1992, section 3.7).

    Returns:
        which segments are fresh, and q of each.

    Examples:
        >>> fresh, inclusion = choose_by_strata(torch.tensor([30, 10, 20]), 2, torch.Generator().manual_seed(0))
        >>> int(fresh.sum()), bool(fresh[0]), inclusion.tolist()
        (2, True, [1.0, 0.5, 0.5])
    """
    fresh, inclusion = torch.zeros(len(values), dtype=torch.bool), torch.ones(len(values), dtype=torch.float64)
    for stratum in torch.argsort(values, stable=True).tensor_split(min(num_fresh, len(values))):
        inclusion[stratum] = 1 / len(stratum)
        fresh[stratum[torch.randint(len(stratum), (), generator=generator)]] = True
    return fresh, inclusion


def choose_kept(
    fresh: Bool[Tensor, " segments"], keep_probability: float, generator: torch.Generator, fixed_number: bool = False
) -> Bool[Tensor, " segments"]:
    """Stale Embedding Dropout: each segment with `keep_probability`, marked True.

    Args:
        fresh: the segments whose rows are not used, kept or not.
        fixed_number: keep the same number of stale segments in every step (the nearest two if p of their number is no
            integer) instead of drawing each independently, as the paper does. Each is kept with the same probability,
            and the sum of the kept ones varies less, because their number no longer does.
    """
    if not fixed_number:
        return torch.rand(len(fresh), generator=generator) < keep_probability
    stale = (~fresh).nonzero().squeeze(1)
    number = int(keep_probability * len(stale) + float(torch.rand(1, generator=generator, dtype=torch.float64)))
    kept = torch.zeros_like(fresh)
    kept[stale[torch.randperm(len(stale), generator=generator)[:number]]] = True
    return kept


def generator_for(*numbers: int) -> torch.Generator:
    """A generator that depends on `numbers` (a seed, an epoch, a graph ...) and on nothing else."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = ((state ^ number) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return torch.Generator().manual_seed(state % 2**63)


Refresh = Literal["uniform", "size", "order", "age", "drift", "gradient"]
REFRESH_BY_ROWS = ("drift", "gradient")  # draws that depend on rows of the table

Estimate = Literal["auto", "dropout", "fixed_dropout", "difference", "regression", "composite"]


def resolved(estimate: Estimate, has_table: bool, keep_probability: float, pooling: str) -> Estimate:
    """What `auto` stands for: `difference` with a table, unless dropout is asked for or there is no sum to correct."""
    if estimate != "auto":
        return estimate
    return "difference" if has_table and keep_probability == 1 and pooling != "max" else "dropout"


class SegmentWeights(NamedTuple):
    """Weights of the J segments of a graph in the estimate of its pooled embedding.

    Args:
        fresh: of the embedding computed in this step; 0 for segments that are not fresh.
        stale: of the row in the table; 0 where there is none.
    """

    fresh: Float[Tensor, "segments configs"]
    stale: Float[Tensor, "segments configs"]


def dropout_weights(
    fresh: Bool[Tensor, " segments"],
    inclusion: Float[Tensor, " segments"],
    is_known: Bool[Tensor, "segments configs"],
    kept: Bool[Tensor, " segments"],
    keep_probability: float,
) -> SegmentWeights:
    """Weights of Stale Embedding Dropout (Cao et al. 2023, section 3.3, equation 1), S of the J segments being fresh.

    A known stale segment is kept with probability p and weight 1; a known fresh one weighs p + (1 - p) / q, where q is
    the probability with which it was chosen (S / J where all are equally likely). An unknown segment (nothing was ever
    computed for it under this configuration) counts only while it is fresh, and then weighs 1 / q. So the expected
    weight of every segment is 1: the estimate is without bias if rows are what the encoder would compute now, and with
    p = 0 whatever the rows are.

    Args:
        fresh: the segments encoded with gradient in this step.
        inclusion: q of each segment, > 0.
        is_known: whether something can stand in for the segment when it is stale.
        kept: which segments dropout keeps if they are stale: `choose_kept`.
        keep_probability: p, in [0, 1].

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
class Draw:
    """What is to be done in one step, before anything of it was read.

    Args:
        configs: configurations of each graph, -1 where a graph has fewer than another.
        fresh: the segments that are encoded with gradient.
        inclusion: the probability with which each segment could be one of them.
        kept: the segments that dropout keeps if they are stale.
        number: of the step; with the seed it decides all draws of the step.
        peers: the processes that share the step, if there are any.
        whole: what is drawn for all of them.
        keys: `table_keys`, where the draw went by ages and the step is of one process.
    """

    catalogue: Catalogue
    configs: Int64[Tensor, "graphs configs"]
    fresh: Bool[Tensor, " segments"]
    inclusion: Float[Tensor, " segments"]
    kept: Bool[Tensor, " segments"]
    number: int
    peers: Peers | None = None
    whole: Draw | None = None
    keys: Int64[Tensor, "segments configs"] | None = None

    def part_of(self, peers: Peers) -> Draw:
        """What this process does of it."""
        graphs = [self.catalogue.graphs[place] for place in peers.mine]
        drawn = torch.stack([self.fresh, self.kept]), self.inclusion
        by_graph = [each.split([g.num_segments for g in self.catalogue.graphs], -1) for each in drawn]
        (fresh, kept), inclusion = (torch.cat([each[place] for place in peers.mine], -1) for each in by_graph)
        configs = self.configs[peers.mine]
        return Draw(Catalogue.of(graphs), configs, fresh, inclusion, kept, self.number, peers, self)


@dataclass(frozen=True, eq=False)
class PrefetchedStep:
    """A draw and the fresh segments, read and on the device of the model (None once the encoder is frozen).

    Args:
        arrived: when a copy to an accelerator, on a stream of its own, is done.
        traffic: what moves to and from a table that several processes share.
    """

    draw: Draw
    batch: SegmentBatch | None
    traffic: Traffic | None = None
    arrived: torch.Event | None = None


def draw_segments(
    catalogue: Catalogue,
    configs: Int64[Tensor, "graphs configs"],
    number: int,
    seed: int,
    num_fresh: int,
    keep_probability: float,
    scores: Float[Tensor, " segments"] | None = None,
    estimate: Estimate = "dropout",
    rank: int = 0,
    strata_by: Shaped[Tensor, " segments"] | None = None,
) -> Draw:
    """Draw the fresh segments of each graph, and those that dropout keeps; the same for the same `number`, `seed` and
    `rank`.

    Args:
        num_fresh: S, of each graph; all of a graph that has fewer.
        keep_probability: p of Stale Embedding Dropout.
        scores: segments are drawn with probability proportional to them (`inclusion_probabilities`), say to the
            expected error of their rows.
        strata_by: what segments are sorted by before `choose_by_strata` draws one of each stratum. With neither, draws
            are uniform (Cao et al. 2023).
        estimate: which draws dropout makes; the others keep all rows.
        rank: of a process that draws for its own graphs alone, so that processes draw differently.
    """
    own = (rank,) if rank else ()
    generator, counts = generator_for(seed, number, 0, *own), [graph.num_segments for graph in catalogue.graphs]
    if strata_by is not None:
        drawn = [choose_by_strata(each, num_fresh, generator) for each in strata_by.split(counts)]
        chosen, chances = [fresh for fresh, _ in drawn], [inclusion for _, inclusion in drawn]
    elif scores is None:
        chosen = [choose_fresh(count, num_fresh, generator) for count in counts]
        chances = [torch.full((count,), min(1.0, num_fresh / count), dtype=torch.float64) for count in counts]
    else:
        chances = [inclusion_probabilities(each, min(num_fresh, len(each))) for each in scores.split(counts)]
        chosen = [sample_by_probability(each, generator) for each in chances]
    dropout = generator_for(seed, number, 1, *own)
    kept = [choose_kept(each, keep_probability, dropout, estimate == "fixed_dropout") for each in chosen]
    return Draw(catalogue, configs, torch.cat(chosen), torch.cat(chances), torch.cat(kept), number)
