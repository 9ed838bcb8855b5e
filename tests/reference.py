"""Slow twins: loops and dictionaries, obviously right. The fast code must agree with them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from embedding_cache import EmbeddingTable
from gst import nn as gst_nn
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch, assemble
from gst.method.draws import choose_fresh, generator_for
from gst.nn import Head

# Small graphs --------------------------------------------------------------------------------------


def random_graph(
    seed: int,
    num_nodes: int = 24,
    num_edges: int = 48,
    num_configurable: int = 5,
    num_configs: int = 3,
    channels: int = 2,
    data: bool = False,
) -> Graph:
    """Any direction, parallel edges and self-loops; without configurable nodes there is one configuration. With `data`
    nodes and edges have more than features."""
    rng = np.random.default_rng(seed)
    shape = (num_configs if num_configurable else 1, num_configurable, channels if num_configurable else 0)
    return Graph(
        rng.normal(size=(num_nodes, 3)).astype(np.float32),
        rng.integers(num_nodes, size=(2, num_edges)),
        rng.integers(8, size=num_nodes),
        rng.permutation(num_nodes)[:num_configurable],
        rng.integers(-1, 6, shape).astype(np.int8),
        rng.uniform(1e3, 1e6, shape[0]),
        node_data={"place": rng.integers(100, size=num_nodes)} if data else {},
        edge_data={"bytes": rng.normal(size=num_edges), "kind": rng.integers(4, size=(num_edges, 2))} if data else {},
    )


@st.composite
def graphs_and_parts(draw: st.DrawFn, data: bool | None = None) -> tuple[Graph, np.ndarray]:
    """A small graph, with data of nodes and edges or without, and the segment of each of its nodes, none empty."""
    num_nodes = draw(st.integers(1, 14))
    graph = random_graph(
        draw(st.integers(0, 2**16)),
        num_nodes,
        draw(st.integers(0, 30)),
        draw(st.integers(0, num_nodes)),
        draw(st.integers(1, 3)),
        data=draw(st.booleans()) if data is None else data,
    )
    given = draw(st.lists(st.integers(0, 4), min_size=num_nodes, max_size=num_nodes))
    return graph, np.unique(given, return_inverse=True)[1]


def whole(graph: Graph) -> np.ndarray:
    """The assignment that cuts nothing."""
    return np.zeros(graph.num_nodes, np.int64)


def without_cut_edges(graph: Graph, parts: np.ndarray) -> Graph:
    kept = [edge for edge in graph.edges.T if parts[edge[0]] == parts[edge[1]]]
    edges = np.array(kept, np.int64).reshape(-1, 2).T.copy()
    return Graph(
        graph.node_features,
        edges,
        graph.opcodes,
        graph.config_nodes,
        graph.config_features,
        graph.targets,
        name=graph.name,
    )


def nodes_within(graph: Graph, start: set[int], hops: int) -> set[int]:
    """Nodes at most `hops` edges away, in either direction."""
    reached = set(start)
    for _ in range(hops):
        reached |= {int(b) for a, b in _both_ways(graph) if a in reached}
    return reached


def _both_ways(graph: Graph) -> list[tuple[int, int]]:
    pairs = [(int(u), int(v)) for u, v in graph.edges.T]
    return pairs + [(v, u) for u, v in pairs]


# Models --------------------------------------------------------------------------------------------


class PlainGNN(nn.Module):
    """Another's: dense matrices, `(x, edge_index)`, no configurations, two layers of messages both ways."""

    def __init__(self, in_channels: int, channels: int = 6) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(in_channels, channels), nn.Linear(channels, channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        adjacency = x.new_zeros(len(x), len(x)).index_put(
            (edge_index[1], edge_index[0]), x.new_ones(()), accumulate=True
        )
        hidden = torch.tanh(self.first(x + adjacency @ x))
        return torch.tanh(self.second(hidden + 0.5 * adjacency.T @ hidden))


def as_batch(graph: Graph) -> SegmentBatch:
    """The whole graph under all its configurations, put together by hand as one segment."""
    tensor = torch.from_numpy
    return SegmentBatch(
        tensor(graph.node_features),
        tensor(graph.opcodes),
        tensor(graph.edges),
        torch.zeros(graph.num_nodes, dtype=torch.long),
        torch.ones(graph.num_nodes, dtype=torch.bool),
        torch.tensor([graph.num_nodes]),
        tensor(graph.config_nodes),
        tensor(graph.config_features).transpose(0, 1).float(),
    )


def embed_nodes(encoder: nn.Module, batch: SegmentBatch) -> Tensor:
    """(nodes, configs, channels), one configuration after the other for an encoder that knows none."""
    if not isinstance(encoder, PlainGNN):
        return encoder(batch).dense()
    by_config = []
    for c in range(batch.num_configs):
        given = batch.node_features.new_zeros(batch.num_nodes, batch.config_features.shape[2])
        given[batch.config_nodes] = batch.config_features[:, c]
        by_config.append(encoder(torch.cat([batch.node_features, given], 1), batch.edge_index))
    return torch.stack(by_config, 1)


def readout(nodes: Tensor, pooling: str) -> Tensor:
    return {"sum": nodes.sum(0), "mean": nodes.mean(0), "max": nodes.amax(0)}[pooling]


def whole_graph_prediction(encoder: nn.Module, head: nn.Module, graph: Graph, pooling: str) -> Tensor:
    """Training as if nobody had heard of segments: (1, configs)."""
    batch = as_batch(graph).to(torch.device("cpu"), torch.float64)
    return head(readout(embed_nodes(encoder, batch), pooling)[None])


DEPTH = 2  # of the encoders of `models`

ENCODERS = {name.lower(): encoder for name, encoder in gst_nn.ENCODERS.items()}
KINDS = ("plain", *ENCODERS)

HALO = {"plain": DEPTH} | {
    name.lower(): DEPTH + getattr(encoder, "further_hops", 0) for name, encoder in gst_nn.ENCODERS.items()
}
"""Context with which a segment tells its nodes all that the whole graph would."""


def models(kind: str, graph: Graph, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, nn.Module]:
    """An encoder of depth `DEPTH` and a head, no lazy layer left."""
    torch.manual_seed(seed)
    if kind == "plain":
        encoder: nn.Module = PlainGNN(graph.node_features.shape[1] + graph.config_features.shape[2])
    else:
        encoder = ENCODERS[kind](6, DEPTH)
    head = Head(6)
    with torch.no_grad():
        head(embed_nodes(encoder, as_batch(graph))[:1])
    return encoder.to(dtype), head.to(dtype)


# The estimate --------------------------------------------------------------------------------------


def rows_in_use(table: EmbeddingTable) -> tuple[Tensor, Tensor, Tensor]:
    """Keys in use, ascending, their rows, and the steps these were written at."""
    state = table.get_extra_state()
    order = state["keys"].argsort()
    return state["keys"][order], state["rows"][order], state["written"][order]


class SlowTraining:
    """Graph by graph, segment by segment, configuration by configuration; the table is a dictionary of rows as
    `table_dtype` can hold them.

    Draws are the method's: first which segments of each graph are fresh, then which stale ones are kept.
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        pooling: str,
        num_fresh: int,
        keep: float,
        rest: str,
        seed: int,
        table_dtype: torch.dtype = torch.float64,
    ) -> None:
        self.encoder, self.head, self.pooling, self.num_fresh, self.keep = (encoder, head, pooling, num_fresh, keep)
        self.rest = rest  # table, recomputed or omitted
        self.table: dict[tuple[str, int, int], Tensor] = {}
        self.table_dtype = table_dtype
        self.seed, self.step = seed, 0

    def __call__(self, graphs: list[SegmentedGraph], configs: Tensor) -> dict[tuple[int, int], Tensor]:
        self.step += 1
        first, second = (generator_for(self.seed, self.step, number) for number in (0, 1))
        fresh = [choose_fresh(graph.num_segments, self.num_fresh, first).tolist() for graph in graphs]
        kept = [(torch.rand(graph.num_segments, generator=second) < self.keep).tolist() for graph in graphs]
        predictions, written = {}, {}
        for g, graph in enumerate(graphs):
            for column, config in enumerate(configs[g].tolist()):
                if config < 0:
                    continue
                weighed = []
                for j in range(graph.num_segments):
                    key = (graph.name, j, config if len(self.configurable(graph, j)) else 0)
                    if fresh[g][j]:
                        row = self.embed(graph, j, config)
                        written[key] = row.detach().to(self.table_dtype).to(row.dtype)
                    else:
                        row = self.stand_in(graph, j, config)
                    known = self.rest == "recomputed" or (self.rest == "table" and key in self.table)
                    weight = self.weigh(known, fresh[g][j], kept[g][j], graph.num_segments, sum(fresh[g]))
                    if weight > 0:
                        weighed.append((weight, int(graph.owned_counts[j]), row))
                predictions[g, column] = self.head(self.pool(weighed, graph.num_nodes)[None, None]).squeeze()
        self.table |= written
        return predictions

    def embed(self, graph: SegmentedGraph, j: int, config: int) -> Tensor:
        batch = assemble([graph], [(0, j)], torch.tensor([[config]])).to(torch.device("cpu"), torch.float64)
        return readout(embed_nodes(self.encoder, batch)[: int(graph.owned_counts[j]), 0], self.pooling)

    def stand_in(self, graph: SegmentedGraph, j: int, config: int) -> Tensor | None:
        if self.rest == "recomputed":
            return self.embed(graph, j, config).detach()
        return self.table.get((graph.name, j, config if len(self.configurable(graph, j)) else 0))

    def configurable(self, graph: SegmentedGraph, j: int) -> np.ndarray:
        return graph.config_rows[graph.config_ptr[j] : graph.config_ptr[j + 1]]

    def weigh(self, known: bool, fresh: bool, kept: bool, num_segments: int, num_fresh: int) -> float:
        if not known:
            return num_segments / num_fresh if fresh else 0.0
        if fresh:
            return self.keep + (1 - self.keep) * num_segments / num_fresh
        return 1.0 if kept else 0.0

    def pool(self, weighed: list[tuple[float, int, Tensor]], num_nodes: int) -> Tensor:
        if self.pooling == "max":
            return torch.stack([row for _, _, row in weighed]).amax(0)
        share = {"sum": lambda count: 1.0, "mean": lambda count: count / num_nodes}[self.pooling]
        return sum(weight * share(count) * row for weight, count, row in weighed)


# Data ----------------------------------------------------------------------------------------------


def merged(rows: np.ndarray, values: np.ndarray) -> list[tuple[bytes, float, int, float]]:
    """Each distinct row in order of appearance: row, mean, count, standard deviation of its values."""
    groups: dict[bytes, list[float]] = {}
    for row, value in zip(rows, values.tolist(), strict=True):
        groups.setdefault(row.tobytes(), []).append(value)
    return [(row, float(np.mean(group)), len(group), float(np.std(group))) for row, group in groups.items()]


# Losses and metrics --------------------------------------------------------------------------------


def _measured(scores: Tensor, targets: Tensor) -> Iterable[list[tuple[Tensor, float]]]:
    for score_row, target_row in zip(scores, targets.tolist(), strict=True):
        yield [(s, t) for s, t in zip(score_row, target_row, strict=True) if not math.isnan(t)]


def slow_pairwise_hinge(scores: Tensor, targets: Tensor) -> Tensor:
    losses = [
        torch.clamp(1.0 - (slow - fast), min=0)
        for row in _measured(scores, targets)
        for (slow, y_slow), (fast, y_fast) in itertools.permutations(row, 2)
        if y_slow > y_fast
    ]
    return sum(losses) / len(losses) if losses else scores.sum() * 0


def slow_list_mle(scores: Tensor, targets: Tensor) -> Tensor:
    """Each configuration against itself and those that are slower."""
    losses = []
    for row in _measured(scores, targets):
        for score, target in row:
            slower = [-s for s, y in row if y > target]
            losses.append(torch.logsumexp(torch.stack([-score, *slower]), 0) + score)
    return sum(losses) / len(losses) if losses else scores.sum() * 0


def slow_log_runtime(scores: Tensor, targets: Tensor) -> Tensor:
    losses = [(s - math.log(y)) ** 2 for row in _measured(scores, targets) for s, y in row]
    return sum(losses) / len(losses) if losses else scores.sum() * 0


def slow_tau(scores: np.ndarray, targets: np.ndarray) -> float:
    """Kendall's tau-b over all pairs."""
    balance = untied_scores = untied_targets = 0
    for i, j in itertools.combinations(range(len(scores)), 2):
        a, b = np.sign(scores[i] - scores[j]), np.sign(targets[i] - targets[j])
        balance += a * b
        untied_scores += a != 0
        untied_targets += b != 0
    return float(balance / math.sqrt(untied_scores * untied_targets)) if untied_scores and untied_targets else math.nan


def slow_ordered_pairs(scores: np.ndarray, targets: np.ndarray) -> float:
    credit, pairs = 0.0, 0
    for i, j in itertools.permutations(range(len(scores)), 2):
        if targets[i] < targets[j]:
            pairs += 1
            credit += 1.0 if scores[i] < scores[j] else 0.5 if scores[i] == scores[j] else 0.0
    return credit / pairs if pairs else math.nan
