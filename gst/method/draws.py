"""Draws of one training step, made before any segment is read: fresh segments, dropout, and the weights of both.

With h_j the embedding of segment j now, g_j its row and q_j its probability to be fresh, the difference estimator
sum_j g_j + sum_{j fresh} (h_j - g_j) / q_j has no bias (Saerndal et al., Model Assisted Survey Sampling, 1992,
chapters 3 and 6) and the variance sum_j (1 - q_j) / q_j |h_j - g_j|^2, least for q_j proportional to |h_j - g_j|.
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

_UNIT = 2**40  # parts of a whole that probabilities are counted in


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


def inclusion_probabilities(
    scores: Float[Tensor, " keys"], num_chosen: int, uniform_share: float = 0.1
) -> Float[Tensor, " keys"]:
    """Return probabilities of choosing each of N keys: q = u n / N + (1 - u) min(1, c scores).

    Their sum is min(n, N) with n = `num_chosen`. The uniform share u bounds the weights 1 / q by N / (u n), however
    wrong the scores are (a defensive mixture: Hesterberg, Technometrics 37, 1995). If too few scores are above 0, the
    others share the rest equally. The result is float64, on the host.

    Raises:
        ValueError: n is below 1, u is outside 0..1, or a score is negative or not finite.

    Examples:
        >>> inclusion_probabilities(torch.tensor([3.0, 1.0, 0.0]), num_chosen=1, uniform_share=0.0).tolist()
        [0.75, 0.25, 0.0]
    """
    if num_chosen < 1:
        raise ValueError(f"num_chosen is {num_chosen}; wanted at least 1: an estimate needs a key computed anew")
    if not 0 <= uniform_share <= 1:
        raise ValueError(f"uniform_share is {uniform_share}; wanted 0..1: it is a share")
    weights = scores.detach().cpu().double().numpy()
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError("scores are negative or not finite; wanted at least 0: look for NaN in what was pushed")
    num_keys = len(weights)
    if num_chosen >= num_keys:
        return torch.ones(num_keys, dtype=torch.float64)
    proportional = _capped(weights, num_chosen)
    return torch.from_numpy(uniform_share * num_chosen / num_keys + (1 - uniform_share) * proportional)


def sample_by_probability(probabilities: Float[Tensor, " keys"], generator: torch.Generator) -> Bool[Tensor, " keys"]:
    """Choose keys, each with its probability (to 1e-12), and always as many as these sum to.

    Systematic sampling in random order (Madow 1949; Hartley and Rao 1962): lay the probabilities end to end in a random
    order and take those that u, u + 1, u + 2, ... fall upon, for one uniform u in [0, 1).

    Raises:
        ValueError: a probability is outside 0..1, or their sum is not a whole number.

    Examples:
        >>> int(sample_by_probability(torch.tensor([0.75, 0.25, 1.0]), torch.Generator().manual_seed(0)).sum())
        2
    """
    lengths = _lengths(probabilities.detach().cpu().double())
    order = torch.randperm(len(lengths), generator=generator)
    start = int(torch.randint(_UNIT, (), generator=generator))
    chosen = torch.empty(len(lengths), dtype=torch.bool)
    chosen[order] = _systematic(lengths[order], start)
    return chosen


def _capped(scores: np.ndarray, num_chosen: int) -> np.ndarray:
    """Return min(1, c scores) with sum `num_chosen`: the largest are certain until the scaled rest is at most 1."""
    if not scores.any():
        return np.full(len(scores), num_chosen / len(scores))
    descending = np.argsort(-scores, kind="stable")
    ordered = scores[descending] / scores.max()
    sums = np.cumsum(ordered[::-1])[::-1]
    left = num_chosen - np.arange(num_chosen)
    certain = int(np.argmax(left * ordered[:num_chosen] <= sums[:num_chosen]))
    rest = ordered[certain:] if sums[certain] > 0 else np.ones(len(scores) - certain)
    capped = np.ones(len(scores))
    capped[descending[certain:]] = np.minimum(1, rest / rest.sum() * left[certain])
    return capped


def _lengths(probabilities: Float[Tensor, " keys"]) -> Int64[Tensor, " keys"]:
    """Return probabilities in units of 1 / `_UNIT`, integers with a whole sum, so that rounding can lose no key."""
    if not len(probabilities):
        return torch.empty(0, dtype=torch.int64)
    lowest, highest, total = (float(each) for each in (*probabilities.aminmax(), probabilities.sum()))
    if not (lowest >= 0 and highest <= 1 + 1e-9):
        raise ValueError(f"probabilities are {lowest}..{highest}; wanted 0..1")
    if abs(total - round(total)) > 1e-5:
        raise ValueError(f"probabilities sum to {total}; wanted a whole number: use inclusion_probabilities")
    lengths = (probabilities * _UNIT).round().long().clamp(max=_UNIT)
    if round(total) == len(lengths):
        return torch.full_like(lengths, _UNIT)
    lost = round(total) * _UNIT - int(lengths.sum())
    lengths[lengths.argmin() if lost > 0 else lengths.argmax()] += lost
    return lengths


def _systematic(lengths: Int64[Tensor, " keys"], start: int) -> Bool[Tensor, " keys"]:
    """Mark the intervals, laid end to end, that hold one of start, start + 1 whole, ...; 0 <= start < 1 whole."""
    passed = -(start - lengths.cumsum(0)).div(_UNIT, rounding_mode="floor")
    return passed.diff(prepend=passed.new_zeros(1)) > 0


def generator_for(*numbers: int) -> torch.Generator:
    """Return a generator that depends on `numbers` (a seed, an epoch, a graph ...) and on nothing else."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = ((state ^ number) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return torch.Generator().manual_seed(state % 2**63)


class DrawnAges:
    """The last two steps in which each key of an embedding table belonged to a fresh segment.

    This age depends on draws alone, so that a step can be drawn while the one before it is computed. Of the two steps
    the earlier one counts where the later one lies ahead: a resumed training draws the same segments again.

    Examples:
        >>> ages = DrawnAges()
        >>> ages.record(torch.tensor([[0, 2]]), step=3)
        >>> ages.at(torch.tensor([[0, 1], [2, -1]]), step=5).tolist()
        [[2, 5], [2, 0]]
    """

    def __init__(self) -> None:
        self._steps = torch.zeros(2, 0, dtype=torch.int64)

    def at(self, keys: Int64[Tensor, "segments configs"], step: int) -> Int64[Tensor, "segments configs"]:
        """Return the steps since each key was last drawn before `step`; `step` if never, 0 for the key -1 (padding)."""
        return torch.where(keys >= 0, step - self._last(keys.clamp(min=0).flatten(), step).view_as(keys), 0)

    def record(self, keys: Int64[Tensor, "fresh configs"], step: int) -> None:
        """Take note of the keys of fresh segments."""
        chosen = keys[keys >= 0].unique()
        self._steps[:, chosen] = torch.stack([torch.full_like(chosen, step), self._last(chosen, step)])

    def _last(self, keys: Int64[Tensor, " keys"], step: int) -> Int64[Tensor, " keys"]:
        """Return the last step before `step` of each key, 0 if none."""
        missing = int(keys.max()) + 1 - self._steps.shape[1] if len(keys) else 0
        if missing > 0:
            more = max(missing, self._steps.shape[1] // 2)  # grows by half, so that many graphs cost linear time
            self._steps = torch.cat([self._steps, self._steps.new_zeros(2, more)], 1)
        later, earlier = self._steps[:, keys]
        return torch.where(later < step, later, torch.where(earlier < step, earlier, 0))

    def state_dict(self) -> dict[str, Tensor]:
        return {"steps": self._steps.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._steps = state["steps"].clone()


Refresh = Literal["uniform", "age"]
Estimate = Literal["auto", "fresh", "dropout", "fixed_dropout", "difference", "regression", "composite"]
MAXIMA = ("max", "softmax")  # readouts that no correction, which may be negative, can be added to
ALL_ROWS = ("difference", "regression", "composite")  # estimates that use every row


def checked_estimate(
    pooling: str, num_fresh: int, keep_probability: float, has_table: bool, refresh: Refresh, estimate: Estimate
) -> Estimate:
    """Return the estimate that `auto` stands for, or the given one.

    Raises:
        ValueError: a setting of `GraphSegmentTraining` is out of range, or two of them exclude each other.

    Examples:
        >>> checked_estimate("mean", 1, 1.0, True, "uniform", "auto")
        'difference'
    """
    if not isinstance(num_fresh, int | np.integer):
        raise ValueError(f"num_fresh is {num_fresh!r}; want a whole number of segments, from 1")
    if num_fresh < 1:
        raise ValueError(f"num_fresh is {num_fresh}; a step needs at least one fresh segment per graph")
    if not 0.0 <= keep_probability <= 1.0:
        raise ValueError(f"keep_probability is {keep_probability}; it is a probability, from 0 to 1")
    if refresh not in get_args(Refresh):
        raise ValueError(f"refresh is {refresh!r}; use one of {', '.join(get_args(Refresh))}")
    if refresh == "age" and not has_table:
        raise ValueError("refresh='age' goes by the ages of rows of a table; add table=EmbeddingTable(...)")
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
        keys: `table_keys`, where draws go by age and the step is of one process.
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
    scores: Float[Tensor, " segments"] | None = None,
    estimate: Estimate = "dropout",
    rank: int = 0,
) -> Draw:
    """Draw `num_fresh` segments of each graph, and those that dropout keeps; the same for equal arguments.

    Args:
        scores: segments are drawn with probability proportional to them (`inclusion_probabilities`). Without scores
            draws are uniform (Cao et al. 2023).
        estimate: `fixed_dropout` keeps the same number of segments in every step.
        rank: of a process that draws for its own graphs alone, so that processes draw differently.
    """
    own = (rank,) if rank else ()
    generator, counts = generator_for(seed, number, 0, *own), [graph.num_segments for graph in catalogue.graphs]
    if scores is None:
        chosen = [choose_fresh(count, num_fresh, generator) for count in counts]
        chances = [torch.full((count,), min(1.0, num_fresh / count), dtype=torch.float64) for count in counts]
    else:
        chances = [inclusion_probabilities(each, min(num_fresh, len(each))) for each in scores.split(counts)]
        chosen = [sample_by_probability(each, generator) for each in chances]
    dropout = generator_for(seed, number, 1, *own)
    kept = [choose_kept(each, keep_probability, dropout, estimate == "fixed_dropout") for each in chosen]
    return Draw(catalogue, configs, torch.cat(chosen), torch.cat(chances), torch.cat(kept), number)


def scale_gradient(embedded: Tensor, weights: Tensor) -> Tensor:
    """Return the same values, with their gradients times `weights` (one for each segment and configuration)."""
    scale = weights.to(embedded, non_blocking=True)[..., None]
    return embedded.detach() + (embedded - embedded.detach()) * scale


def uniform_gradient(
    draw: Draw, is_known: Bool[Tensor, "segments configs"], num_fresh: int, keep_probability: float
) -> Float64[Tensor, "segments configs"]:
    """Return factors of gradients after which their expectation under dropout is that of uniform draws."""
    p = keep_probability
    counts = torch.tensor([graph.num_segments for graph in draw.catalogue.graphs], dtype=torch.float64)
    uniform = (num_fresh / counts[draw.catalogue.graph]).clamp(max=1)
    ratio = (p * uniform + 1 - p) / (p * draw.inclusion + 1 - p)
    return torch.where(is_known, ratio[:, None], torch.ones_like(ratio[:, None]))


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
