"""Small generated graphs with a label for each: a class, in the manner of MalNet, or a number to regress."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.drop_in import message_graph
from gst.data.malnet import DEGREE_COLUMNS, degree_profile

if TYPE_CHECKING:
    from torch_geometric.data import Data

NUM_FAMILIES = 5  # as MalNet-Tiny has types of software
NUM_FEATURES = len(DEGREE_COLUMNS)  # of a node whose graph has a family
NUM_KINDS = 3

Edges = np.ndarray
"""Pairs of nodes, int64, shape (2, edges), each once in one direction."""


class Example(NamedTuple):
    """A graph and its label, with the names that PyG's `Data` gives them.

    Args:
        x: float32 (nodes, features).
        edge_index: int64 (2, edges), every edge in both directions.
        y: the label, a tensor without axes: int64 for a class, float32 for a number.
    """

    x: Tensor
    edge_index: Tensor
    y: Tensor


def families(num_graphs: int = 200, seed: int = 0) -> list[Example]:
    """Generate graphs of five families; the label is the family.

    As in MalNet (Freitas et al. 2021) nodes have no features of their own, so `x` is their local degree profile, its
    columns brought to mean 0 and deviation 1 over all graphs."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(80, 160, size=num_graphs)
    labels = np.arange(num_graphs) % NUM_FAMILIES
    edges = [_both_ways(FAMILIES[label](int(nodes), generator)) for label, nodes in zip(labels, sizes, strict=True)]
    profiles = np.concatenate([degree_profile(*each) for each in zip(edges, sizes.tolist(), strict=True)])
    x = torch.from_numpy((profiles - profiles.mean(0)) / profiles.std(0)).float().split(sizes.tolist())
    return [
        Example(x[i], torch.from_numpy(edge_index), torch.tensor(label))
        for i, (edge_index, label) in enumerate(zip(edges, labels.tolist(), strict=True))
    ]


def homophily(num_graphs: int = 200, seed: int = 0) -> list[Example]:
    """Generate graphs whose label is their homophily.

    Nodes are of three kinds, one-hot; `y` is the mean over nodes of the share of neighbours of the node's own kind
    ("node homophily"; Pei et al. 2020, section 3.2.1)."""
    generator = np.random.default_rng(seed)
    examples = []
    for _ in range(num_graphs):
        nodes = int(generator.integers(80, 160))
        edge_index = _both_ways(_small_world(nodes, generator))
        starts = generator.random(nodes) < generator.uniform(0.05, 1.0)  # of a stretch of one kind
        kinds = generator.integers(NUM_KINDS, size=nodes)[np.maximum.accumulate(np.where(starts, np.arange(nodes), 0))]
        alike = kinds[edge_index[0]] == kinds[edge_index[1]]
        share = np.bincount(edge_index[1], alike, nodes) / np.bincount(edge_index[1], minlength=nodes).clip(min=1)
        x = np.eye(NUM_KINDS, dtype=np.float32)[kinds]
        y = torch.tensor(share.mean(), dtype=torch.float32)
        examples.append(Example(torch.from_numpy(x), torch.from_numpy(edge_index), y))
    return examples


def shuffled(examples: list[Example], seed: int = 0) -> list[Example]:
    """The same graphs and the same labels, dealt anew: nothing is left to learn."""
    order = np.random.default_rng(seed).permutation(len(examples))
    return [example._replace(y=examples[i].y) for example, i in zip(examples, order, strict=True)]


def as_pyg(examples: list[Example]) -> list[Data]:
    """As a PyG user has them."""
    from torch_geometric.data import Data

    return [Data(**example._asdict()) for example in examples]


def as_message_graphs(examples: list[Example]) -> list[tuple[message_graph.Graph, Tensor]]:
    """As a DGL user has them: graphs that carry their features, and labels."""
    graphs = [message_graph.graph((e.edge_index[0], e.edge_index[1]), len(e.x)) for e in examples]
    for graph, example in zip(graphs, examples, strict=True):
        graph.ndata["x"] = example.x
    return [(graph, example.y) for graph, example in zip(graphs, examples, strict=True)]


def _both_ways(edges: Edges) -> Edges:
    edges = edges[:, edges[0] != edges[1]]
    return np.unique(np.concatenate([edges, edges[::-1]], axis=1), axis=1)


def _small_world(nodes: int, generator: np.random.Generator) -> Edges:
    """A ring whose nodes know the next two, one edge in ten led elsewhere (Watts and Strogatz 1998)."""
    source = np.tile(np.arange(nodes), 2)
    target = (source + np.repeat([1, 2], nodes)) % nodes
    elsewhere = generator.random(2 * nodes) < 0.1
    return np.stack([source, np.where(elsewhere, generator.integers(nodes, size=2 * nodes), target)])


def _tree(nodes: int, generator: np.random.Generator) -> Edges:
    """Each node hangs from an earlier one."""
    new = np.arange(1, nodes)
    return np.stack([new, generator.integers(new)])


def _preferential(nodes: int, generator: np.random.Generator) -> Edges:
    """Each node joins two earlier ones, drawn by degree (Barabasi and Albert 1999)."""
    ends = [0, 1]
    for new in range(2, nodes):
        first, second = generator.integers(len(ends), size=2)
        ends += [new, ends[first], new, ends[second]]
    return np.array(ends).reshape(-1, 2).T


def _uniform(nodes: int, generator: np.random.Generator) -> Edges:
    """Two edges per node between any nodes (Erdos and Renyi 1959)."""
    return generator.integers(nodes, size=(2, 2 * nodes))


def _grid(nodes: int, generator: np.random.Generator) -> Edges:
    """Rows of 6 to 11 nodes, each joined to the next and to the one below, one edge in twenty missing."""
    width = int(generator.integers(6, 12))
    ids = np.arange(nodes)
    across = ids[(ids % width < width - 1) & (ids + 1 < nodes)]
    down = ids[: max(0, nodes - width)]
    edges = np.stack([np.concatenate([across, down]), np.concatenate([across + 1, down + width])])
    return edges[:, generator.random(edges.shape[1]) > 0.05]


FAMILIES = (_small_world, _tree, _preferential, _uniform, _grid)
