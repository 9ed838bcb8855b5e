"""Pruning around configurable nodes: what is left, and what it changes of the differences between configurations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments.reproductions.kaggle.pruning import reduce
from gst.graphs.graph import Graph
from gst.graphs.segments import segment
from gst.method.batch import assemble
from gst.method.encoding import call_of, embed_segments
from gst.nn import ENCODERS, SAGE

Pairs = list[tuple[int, int]]


def made(num_nodes: int, edges: Pairs, config_nodes: list[int], seed: int = 0, configs: int = 4) -> Graph:
    rng = np.random.default_rng(seed)
    return Graph(
        rng.normal(size=(num_nodes, 3)).astype(np.float32),
        np.array(edges, np.int64).reshape(-1, 2).T,
        rng.integers(0, 5, num_nodes),
        np.array(config_nodes, np.int64),
        rng.normal(size=(configs, len(config_nodes), 2)).astype(np.float32),
        rng.random(configs),
        name="made",
    )


def chain(num_nodes: int, config_nodes: list[int], **options: Any) -> Graph:
    return made(num_nodes, [(i, i + 1) for i in range(num_nodes - 1)], config_nodes, **options)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    size = draw(st.integers(1, 14))
    node = st.integers(0, size - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=20))
    config_nodes = draw(st.lists(node, unique=True, min_size=1, max_size=3))
    return made(size, edges, config_nodes, draw(st.integers(0, 9)), draw(st.integers(1, 3)))


# What is left --------------------------------------------------------------------------------------


def distances(graph: Graph) -> list[float]:
    """One step at a time, over edges in both directions."""
    found = [0.0 if node in graph.config_nodes else float("inf") for node in range(graph.num_nodes)]
    for _ in range(graph.num_nodes):
        for u, v in graph.edges.T.tolist():
            found[u], found[v] = min(found[u], found[v] + 1), min(found[v], found[u] + 1)
    return found


@given(graphs(), st.integers(0, 4))
def test_nodes_within_the_hops_and_the_edges_among_them(graph: Graph, hops: int) -> None:
    kept = [node for node, distance in enumerate(distances(graph)) if distance <= hops]
    small = reduce(graph, f"hops:{hops}")
    np.testing.assert_array_equal(small.node_features, graph.node_features[kept])
    np.testing.assert_array_equal(small.opcodes, graph.opcodes[kept])
    inner = [(u, v) for u, v in graph.edges.T.tolist() if u in kept and v in kept]
    assert [(kept[u], kept[v]) for u, v in small.edges.T.tolist()] == inner
    assert [kept[node] for node in small.config_nodes] == graph.config_nodes.tolist()
    for same in ("config_features", "targets", "counts", "spreads"):
        np.testing.assert_array_equal(getattr(small, same), getattr(graph, same))
    assert small.name == graph.name


# What it changes -----------------------------------------------------------------------------------


def scores(encoder: torch.nn.Module, graph: Graph, pooling: Any = "sum") -> torch.Tensor:
    """Of all configurations, by a linear head on the pooled states, in double precision."""
    whole = segment(graph, parts=np.zeros(graph.num_nodes, np.int64))
    batch = assemble([whole], [(0, 0)], torch.arange(graph.num_configs)[None]).to(torch.device("cpu"), torch.float64)
    with torch.no_grad():
        encoder.double()(batch)  # gives lazy layers their widths
        pooled = embed_segments(encoder.double(), batch, call_of(encoder), pooling)[0]
    return pooled @ torch.linspace(-1, 2, pooled.shape[-1], dtype=torch.float64)


def differences(values: torch.Tensor) -> torch.Tensor:
    return values[:, None] - values[None, :]


def change(encoder: torch.nn.Module, graph: Graph, hops: int) -> float:
    """The largest change of a difference between two configurations."""
    gap = differences(scores(encoder, graph)) - differences(scores(encoder, reduce(graph, f"hops:{hops}")))
    return float(gap.abs().max())


def encoder_of(kind: Any, num_layers: int, **options: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return kind(8, num_layers, 5, **options)


EXACT = [
    *((encoder, {}, getattr(encoder, "further_hops", 0)) for encoder in ENCODERS.values()),
    (SAGE, {"aggregation": "sum"}, 0),
    (SAGE, {"aggregation": "max"}, 0),
]


@pytest.mark.parametrize(("kind", "options", "more"), EXACT, ids=lambda value: getattr(value, "__name__", str(value)))
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_twice_the_depth_keeps_differences_and_one_hop_less_does_not(
    kind: Any, options: dict[str, Any], more: int, num_layers: int
) -> None:
    """On a chain that goes on: the bound is met exactly, not only obeyed."""
    graph, encoder = chain(24, [0, 20], seed=3), encoder_of(kind, num_layers, **options)
    assert change(encoder, graph, 2 * num_layers + more) < 1e-10
    assert change(encoder, graph, 2 * num_layers + more - 1) > 1e-6


@pytest.mark.parametrize("directions", [("forward",), ("backward",), ("forward", "backward")], ids=str)
@given(graph=graphs())
def test_differences_are_kept_whatever_the_graph_and_the_direction_of_messages(directions: Any, graph: Graph) -> None:
    assert change(encoder_of(SAGE, 2, directions=directions), graph, 4) < 1e-10


# Bad input -----------------------------------------------------------------------------------------


OTHERS = ["", "hops", "hops:", "hops:1.5", "hops:x", "hops: 1", "segments", "Hops:1"]


@pytest.mark.parametrize(
    ("method", "config_nodes", "problem"),
    [
        *((method, [0], "there are 'none' and 'hops:K'") for method in OTHERS),
        ("hops:-1", [0], "'hops:-1' asks for -1 hops; the number of hops starts at 0"),
        ("hops:2", [], "'made' has no configurable node, so hops:2 would leave nothing of it"),
    ],
)
def test_what_cannot_be_pruned_is_refused(method: str, config_nodes: list[int], problem: str) -> None:
    graph = chain(3, config_nodes)
    with pytest.raises(ValueError, match=problem):
        reduce(graph, method)
    assert reduce(graph, "none") is graph
