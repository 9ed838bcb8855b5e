"""Giant programs whose runtime is known by construction and is nowhere written in a part of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gst.data.source import GraphSource
from gst.graph import Graph

NUM_OPCODES = 8
NUM_CHOICES = 4


def synthetic_program(
    num_nodes: int = 200_000,
    num_configs: int = 128,
    num_regions: int = 20,
    configurable: float = 0.1,
    seed: int = 0,
) -> Graph:
    """A directed acyclic graph in which every configurable node chooses one of four implementations.

    The runtime of a configuration, in ns, is the sum over configurable nodes of size x cost[opcode, choice] plus, for
    every edge between two configurable nodes that choose differently, the size of the producer (a layout copy). The
    graph has regions, and each configuration mixes the choices of each region in its own way: a region tells nothing
    of another, so the whole graph is needed.

    Args:
        num_regions: stretches of the graph with their own mix of choices.
        configurable: share of nodes that choose. They come in pairs joined by an edge.
    """
    generator = np.random.default_rng(seed)
    nodes = np.arange(1, num_nodes)
    reach = np.minimum(generator.geometric(0.2, (2, len(nodes))), nodes)
    edges = np.stack([np.concatenate([nodes - reach[0], nodes - reach[1]]), np.tile(nodes, 2)])
    edges = np.unique(edges, axis=1)
    opcodes = generator.integers(NUM_OPCODES, size=num_nodes)
    sizes = np.exp(generator.normal(3.0, 1.0, num_nodes))
    cost = generator.uniform(0.5, 4.0, (NUM_OPCODES, NUM_CHOICES))

    first = np.arange(1, num_nodes - 1, max(2, round(2 / configurable)))
    config_nodes = np.sort(np.concatenate([first, first + 1])) if num_nodes > 2 else np.arange(num_nodes)
    edges = np.unique(np.concatenate([edges, np.stack([first, first + 1])], axis=1), axis=1)
    region = config_nodes * num_regions // num_nodes
    mixes = generator.dirichlet(np.full(NUM_CHOICES, 0.5), (num_configs, num_regions)).cumsum(-1)
    draws = generator.random((num_configs, len(config_nodes)))
    choices = np.minimum((draws[..., None] > mixes[:, region]).sum(-1), NUM_CHOICES - 1)

    column = np.full(num_nodes, -1)
    column[config_nodes] = np.arange(len(config_nodes))
    between = edges[:, (column[edges] >= 0).all(0)]
    runtimes = (sizes[config_nodes] * cost[opcodes[config_nodes], choices]).sum(1)
    differs = choices[:, column[between[0]]] != choices[:, column[between[1]]]
    runtimes += differs @ sizes[between[0]]
    return Graph(
        node_features=np.log(sizes)[:, None].astype(np.float32),
        edges=edges,
        opcodes=opcodes,
        config_nodes=config_nodes,
        config_features=choices[..., None].astype(np.int8),
        targets=np.round(runtimes * 1000),
        name=f"synthetic-{num_nodes}-{seed}",
    )


@dataclass(frozen=True)
class SyntheticPrograms(GraphSource):
    """A dataset of `num_graphs` synthetic programs; arguments as in `synthetic_program`."""

    num_graphs: int = 1
    num_nodes: int = 200_000
    num_configs: int = 128
    num_regions: int = 20
    configurable: float = 0.1
    seed: int = 0

    def __iter__(self) -> Iterator[Graph]:
        for i in range(self.num_graphs):
            yield synthetic_program(
                self.num_nodes, self.num_configs, self.num_regions, self.configurable, self.seed + i
            )
