from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from reference import random_graph

from experiments.reproductions.tpugraphs.states import StateModel, decisions
from gst.cost.metrics import kendall_tau
from gst.graphs.graph import Graph


def program(seed: int, num_configs: int = 400, copies: float = 0.0, noise: float = 0.0) -> Graph:
    """Five configurable nodes, the last of which copies the first; runtimes in ns, sums of the states' costs and of
    `copies` times a cost of each pair."""
    random = np.random.default_rng(seed)
    graph = random_graph(seed, num_configs=num_configs, channels=1)
    chosen = random.integers(4, size=(num_configs, 5))
    chosen[:, 4] = 3 - chosen[:, 0]
    runtime = 1e6 + sum(random.exponential(1e4, 4)[chosen[:, node]] for node in range(5))
    for a in range(4):
        for b in range(a):
            runtime = runtime + copies * random.exponential(1e4, (4, 4))[chosen[:, a], chosen[:, b]]
    runtime = runtime + random.normal(0, noise, num_configs) if noise else runtime
    return Graph(
        graph.node_features, graph.edges, graph.opcodes, graph.config_nodes,
        chosen[:, :, None].astype(np.int8), runtime,
    )  # fmt: skip


@given(seed=st.integers(0, 500))
def test_decisions_are_the_distinct_ways_to_tell_configurations_apart(seed: int) -> None:
    graph = random_graph(seed, num_configs=6)
    found = decisions(graph)
    ways = set()
    for node in range(len(graph.config_nodes)):
        rows = [row.tobytes() for row in graph.config_features[:, node]]
        way = tuple(sorted(set(rows), key=rows.index).index(row) for row in rows)
        ways |= {way} if max(way) else set()
    assert {tuple(column) for column in found.T.tolist()} == ways and found.shape[1] == len(ways)


def test_additive_runtimes_are_found_from_a_few_of_them() -> None:
    graph = program(1)
    predicted = StateModel().fit(graph, np.arange(60)).predict()
    np.testing.assert_allclose(predicted[60:], graph.targets[60:], rtol=1e-4)


def test_pairs_are_found_where_they_matter_and_left_out_where_not() -> None:
    known, rest = np.arange(300), np.arange(300, 400)
    model = StateModel().fit(program(2, noise=2e3), known)
    assert model.pair_penalty is None or model.pair_penalty > 1
    graph = program(2, copies=1.0)
    model = StateModel().fit(graph, known)
    assert model.pair_penalty is not None
    assert kendall_tau(model.predict()[rest], graph.targets[rest]) > 0.95
